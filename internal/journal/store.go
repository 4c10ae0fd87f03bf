package journal

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// ExplainedFor is how long explanations are kept.
const ExplainedFor = 24 * time.Hour

// Batch is what a journal hands over in one go.
type Batch struct {
	// Writer and Number name the batch: numbers of one writer rise from 1.
	Writer uuid.UUID
	Number int64

	Requests     []Request
	Explanations []Explanation // one for each id
	Gaps         []Gap
}

// Sink stores batches. Its errors wrap tenants.ErrUnavailable when waiting may help.
type Sink interface {
	// WriteJournal stores a batch as a whole, by the deadline of ctx. A batch whose number was stored already changes nothing. An
	// explanation that is there already is counted up.
	WriteJournal(ctx context.Context, b *Batch) error
	// MaintainJournal makes room for the days ahead and drops what is older than it has to be kept: the request log after
	// `retention`, explanations after ExplainedFor. Any number of replicas may call it at one time.
	MaintainJournal(ctx context.Context, retention time.Duration) error
}

// Filter narrows the request log; zero fields match all. From is inclusive, To exclusive.
type Filter struct {
	Tenant    string
	Verdict   decision.Verdict
	Address   string // as Facts.Address
	Door      decision.Door
	LimitName string
	// DecisionID finds the calls that got one answer.
	DecisionID uuid.UUID
	From, To   time.Time
}

// Reader reads what was stored. Errors are tenants.ErrNotFound, tenants.ErrCursor and tenants.ErrUnavailable.
type Reader interface {
	// Explanation is the one of a decision; ErrNotFound also after ExplainedFor.
	Explanation(ctx context.Context, id uuid.UUID) (Explanation, error)
	// ListRequests lists the request log, the newest first.
	ListRequests(ctx context.Context, f Filter, p tenants.Page) (tenants.List[Request], error)
	// ListGaps lists what was dropped within a stretch of time, the latest first, at most 100.
	ListGaps(ctx context.Context, from, to time.Time) ([]Gap, error)
}
