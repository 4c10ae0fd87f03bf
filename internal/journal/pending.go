package journal

import (
	"time"

	"github.com/google/uuid"

	"github.com/pegel-dev/pegel/internal/decision"
)

// Bounds of what is gathered.
const (
	// maxRequests and maxExplanations wait for the sink, about 25 MB in all. Beyond it the newest are dropped.
	maxRequests     = 20_000
	maxExplanations = 10_000
	// batchRows is the most of either that goes in one batch.
	batchRows = 5_000
	// strangersPerSecond is how many rows of each kind hits that no tenant pays for can cause: anybody can send those, from as
	// many addresses as he has, and none of them may fill the disk.
	strangersPerSecond = 500
	// samplesPerSecond is how many allowed hits are explained, whatever Config.Sample makes of the traffic.
	samplesPerSecond = 20
)

// pending is what waits for the sink. Refused calls that do not differ are one row. Run's goroutine owns it.
type pending struct {
	requests       []Request
	requestAt      map[requestKey]int
	explanations   []Explanation
	explanationAt  map[uuid.UUID]int
	strangeRequest rate
	strangeReason  rate
	sampled        rate
	gap            Gap // what was dropped and is not written down yet; zero times for nothing
}

// requestKey is everything in which calls that share a row are equal.
type requestKey struct {
	decision uuid.UUID
	facts    Facts
}

func newPending() *pending {
	return &pending{requestAt: make(map[requestKey]int), explanationAt: make(map[uuid.UUID]int)}
}

func (p *pending) empty() bool {
	return len(p.requests) == 0 && len(p.explanations) == 0 && p.gap.To.IsZero()
}

// full reports whether a whole batch waits.
func (p *pending) full() bool {
	return len(p.requests) >= batchRows || len(p.explanations) >= batchRows
}

// addRequest keeps a call, or reports that there is no room.
func (p *pending) addRequest(ids *decision.IDSource, decisionID uuid.UUID, at time.Time, facts *Facts) bool {
	merges := facts.Verdict == decision.Deny
	key := requestKey{decisionID, *facts}
	if merges {
		if i, ok := p.requestAt[key]; ok {
			p.requests[i].Count++
			return true
		}
		if facts.Reason == TooManyHeld && p.turnIntoRefusal(decisionID, facts) {
			return true
		}
	}
	if len(p.requests) >= maxRequests || facts.Tenant == "" && !p.strangeRequest.take(at, strangersPerSecond) {
		return false
	}
	id, err := uuid.Parse(ids.Next(at))
	if err != nil {
		return false // IDSource makes nothing else
	}
	if merges {
		p.requestAt[key] = len(p.requests)
	}
	p.requests = append(p.requests, Request{ID: id, At: at, DecisionID: decisionID, Count: 1, Facts: *facts})
	return true
}

// turnIntoRefusal finds the call that was to wait and found no place: it was added just before, as slowed.
func (p *pending) turnIntoRefusal(decisionID uuid.UUID, facts *Facts) bool {
	const near = 256
	for i := len(p.requests) - 1; i >= max(0, len(p.requests)-near); i-- {
		if r := &p.requests[i]; r.DecisionID == decisionID && r.Verdict == decision.Slow {
			r.Facts = *facts
			return true
		}
	}
	return false
}

// addExplanation keeps one, or counts up the one that is there; it reports that there is no room.
func (p *pending) addExplanation(id uuid.UUID, o *decision.Observation, facts *Facts) bool {
	if i, ok := p.explanationAt[id]; ok {
		e := &p.explanations[i]
		if facts.Reason == TooManyHeld { // the same hit once more: what became of it
			count := e.Count
			*e = explanationOf(id, o, facts)
			e.Count = count
			return true
		}
		e.Count++
		if o.At.After(e.LastAt) {
			e.LastAt = o.At
		}
		return true
	}
	if len(p.explanations) >= maxExplanations || facts.Tenant == "" && !p.strangeReason.take(o.At, strangersPerSecond) {
		return false
	}
	p.explanationAt[id] = len(p.explanations)
	p.explanations = append(p.explanations, explanationOf(id, o, facts))
	return true
}

// dropped notes that something was lost between two moments.
func (p *pending) dropped(from, to time.Time, requests, decisions int64) {
	if requests == 0 && decisions == 0 {
		return
	}
	if p.gap.From.IsZero() || from.Before(p.gap.From) {
		p.gap.From = from
	}
	if to.After(p.gap.To) {
		p.gap.To = to
	}
	p.gap.Requests += requests
	p.gap.Decisions += decisions
}

// cut takes the oldest batch out.
func (p *pending) cut(replica string) Batch {
	var b Batch
	b.Requests, p.requests = head(p.requests, batchRows)
	b.Explanations, p.explanations = head(p.explanations, batchRows)
	clear(p.requestAt)
	clear(p.explanationAt)
	for i := range p.explanations { // what stays behind must still be found; calls are merged anew
		p.explanationAt[p.explanations[i].ID] = i
	}
	if !p.gap.To.IsZero() {
		p.gap.Replica = replica
		b.Gaps, p.gap = []Gap{p.gap}, Gap{}
	}
	return b
}

// head splits off the first n; the rest is moved to memory of its own, so that a batch can be let go of as a whole.
func head[T any](list []T, n int) (first, rest []T) {
	if len(list) <= n {
		return list, nil
	}
	return list[:n:n], append([]T(nil), list[n:]...)
}

// rate allows so many a second.
type rate struct {
	second int64
	n      int
}

func (r *rate) take(at time.Time, most int) bool {
	// What is a little late counts in the second that is open.
	if second := at.Unix(); second > r.second || second < r.second-1 {
		r.second, r.n = second, 0
	}
	r.n++
	return r.n <= most
}
