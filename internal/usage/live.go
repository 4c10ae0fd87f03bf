package usage

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// Exchange is where replicas tell each other what they see: Redis, or Postgres. Reports are opaque and at most a few MB.
type Exchange interface {
	// Name is "redis" or "postgres".
	Name() string
	// Publish replaces the report of an instance, which is forgotten after ReplicaTTL.
	Publish(ctx context.Context, instance string, report []byte) error
	// Reports are those of every instance that published within ReplicaTTL, by the exchange's clock.
	Reports(ctx context.Context) (map[string][]byte, error)
	// Withdraw forgets an instance's report.
	Withdraw(ctx context.Context, instance string) error
}

const (
	// shareFor is how long one reading of the reports answers everybody.
	shareFor = 100 * time.Millisecond
	// readLimit bounds one reading, of each exchange.
	readLimit = 500 * time.Millisecond
	// totalsFor is how long the minutes of replicas that are gone are not read again.
	totalsFor = 15 * time.Second
	// briefAge is from when on a replica's brief report counts although there is an older one with all of its tenants.
	briefAge = 5 * time.Second
)

// TotalRow is a minute of everything one run of a replica decided.
type TotalRow struct {
	Instance string
	Minute   time.Time
	Counts
}

// live merges what all replicas report. It implements Live.
type live struct {
	own       func() *report
	exchanges []Exchange
	totals    func(ctx context.Context, from time.Time) ([]TotalRow, error)
	now       func() time.Time
	log       *slog.Logger

	reading sync.Mutex // held by whoever reads; the others wait for what it finds
	latest  *picture
	// latestAt is when the reading of latest ended.
	latestAt time.Time
	gone     []TotalRow
	goneAt   time.Time
}

// picture is what the reports say together. It is shared: nobody changes it.
type picture struct {
	tenants  []TenantUsage // in the order of Overview.Tenants
	overview Overview      // with everything but Tenants, and all names
}

// Overview is in Live.
func (l *live) Overview(ctx context.Context, top int) Overview {
	p := l.picture(ctx)
	top = max(top, 0)
	o := p.overview
	o.Tenants = p.tenants[:min(top, len(p.tenants))]
	o.Addresses = o.Addresses[:min(top, len(o.Addresses))]
	o.Services = o.Services[:min(top, len(o.Services))]
	return o
}

// Tenant is in Live.
func (l *live) Tenant(ctx context.Context, id int64) (TenantUsage, bool) {
	p := l.picture(ctx)
	i := slices.IndexFunc(p.tenants, func(u TenantUsage) bool { return u.TenantID == id })
	if i < 0 {
		return TenantUsage{}, false
	}
	return p.tenants[i], true
}

// Levels is in Live.
func (l *live) Levels(ctx context.Context) []TenantUsage { return l.picture(ctx).tenants }

// picture is the latest, read anew when it is older than everybody shares.
func (l *live) picture(ctx context.Context) *picture {
	l.reading.Lock()
	defer l.reading.Unlock()
	now := l.now()
	if l.latest != nil && now.Sub(l.latestAt) < shareFor && !now.Before(l.latestAt) {
		return l.latest
	}
	// Somebody else may wait for this reading: it does not end with whoever began it.
	ctx = context.WithoutCancel(ctx)
	reports, missing := l.read(ctx)
	p := merge(reports, now)
	p.overview.Missing = missing
	p.overview.Series = l.series(ctx, reports, now)
	// From when it was there, not from when it was asked for: from a store that hangs each reading takes longer than it is shared
	// for, and everybody who waits for this one would begin another, one after the other.
	l.latest, l.latestAt = p, l.now()
	return p
}

// read is every replica's report, this one's as it is now.
func (l *live) read(ctx context.Context) (reports []*report, missing []string) {
	own := l.own()
	byInstance := map[string]*report{own.Replica.Instance: own}
	answers := make([]map[string][]byte, len(l.exchanges))
	var all sync.WaitGroup
	for i, exchange := range l.exchanges {
		all.Go(func() {
			limit, cancel := context.WithTimeout(ctx, readLimit)
			defer cancel()
			var err error
			if answers[i], err = exchange.Reports(limit); err != nil {
				answers[i] = nil
				l.log.DebugContext(ctx, "the reports of the other replicas cannot be read now",
					slog.String("from", exchange.Name()), slog.Any("error", err))
			}
		})
	}
	all.Wait()
	for i, answer := range answers {
		if answer == nil {
			missing = append(missing, l.exchanges[i].Name())
		}
		for instance, raw := range answer {
			r := &report{}
			if instance == own.Replica.Instance || json.Unmarshal(raw, r) != nil || r.Replica.Instance != instance {
				continue // of another version of Pegel, or nobody's
			}
			if other := byInstance[instance]; other == nil || r.replaces(other) {
				byInstance[instance] = r
			}
		}
	}
	return slices.Collect(maps.Values(byInstance)), missing
}

// replaces says which of one replica's reports to believe: the newer one, but one with its tenants rather than one without
// that is a little newer.
func (r *report) replaces(o *report) bool {
	age := r.Replica.ReportedAt.Sub(o.Replica.ReportedAt)
	switch {
	case r.Brief && !o.Brief:
		return age > briefAge
	case !r.Brief && o.Brief:
		return age >= -briefAge
	}
	return age > 0
}

// merge makes one picture of all reports.
func merge(reports []*report, now time.Time) *picture {
	p := &picture{overview: Overview{At: now.UTC()}}
	o := &p.overview
	byID := make(map[int64]*reportTenant)
	addresses, services := map[string]*Refusals{}, map[string]*Refusals{}
	for _, r := range reports {
		o.Replicas = append(o.Replicas, r.Replica)
		o.Total.Add(&r.Total)
		o.Anonymous.Add(&r.Anonymous)
		o.WrongCredentials += r.Wrong
		o.Dropped += r.Dropped
		o.Omitted += r.Omitted
		for i := range r.Tenants {
			if t := byID[r.Tenants[i].ID]; t != nil {
				t.merge(&r.Tenants[i])
			} else {
				byID[r.Tenants[i].ID] = &r.Tenants[i]
			}
		}
		addUp(addresses, r.Addresses)
		addUp(services, r.Services)
	}
	o.Addresses, o.Services = listed(addresses), listed(services)
	slices.SortFunc(o.Replicas, func(x, y Replica) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Instance, y.Instance))
	})
	p.tenants = make([]TenantUsage, 0, len(byID))
	for _, t := range byID {
		p.tenants = append(p.tenants, t.show())
	}
	slices.SortFunc(p.tenants, func(x, y TenantUsage) int {
		return cmp.Or(cmp.Compare(y.Utilization, x.Utilization), cmp.Compare(y.Last60s.Hits(), x.Last60s.Hits()), cmp.Compare(x.Tenant, y.Tenant))
	})
	o.Active = len(p.tenants)
	for i := range p.tenants {
		if !p.tenants[i].HighSince.IsZero() {
			o.High = append(o.High, p.tenants[i])
		}
	}
	slices.SortStableFunc(o.High, func(x, y TenantUsage) int { return x.HighSince.Compare(y.HighSince) })
	o.High = o.High[:min(len(o.High), MaxHigh)]
	return p
}

func addUp(sums map[string]*Refusals, list []Refusals) {
	for _, r := range list {
		if sum := sums[r.Name]; sum != nil {
			sum.Count += r.Count
			sum.Error += r.Error
		} else {
			sums[r.Name] = &r
		}
	}
}

func listed(sums map[string]*Refusals) []Refusals {
	list := make([]Refusals, 0, len(sums))
	for _, sum := range sums {
		list = append(list, *sum)
	}
	return most(list, len(list))
}

// series is the last hour: what the replicas that are here report in steps of 10 s, and of those that are gone the minutes that
// they wrote, spread evenly.
func (l *live) series(ctx context.Context, reports []*report, now time.Time) []Point {
	step := int64(SeriesStep / time.Second)
	end := now.Unix() / step // the running step, which is not shown
	first := end - seriesPoints + 1
	sums := make([]flow, seriesPoints-1)
	add := func(at int64, f flow) {
		if i := at - first; i >= 0 && i < int64(len(sums)) {
			for k := range f {
				sums[i][k] += f[k]
			}
		}
	}
	here := make(map[string]bool, len(reports))
	for _, r := range reports {
		here[r.Replica.Instance] = !r.Brief
		for i, f := range r.Series {
			add(r.SeriesFirst+int64(i), f)
		}
	}
	perMinute := 60 / step
	scaled := make([][3]float64, len(sums))
	for _, row := range l.minutesOfGone(ctx, now) {
		if here[row.Instance] {
			continue
		}
		for k := range perMinute {
			if i := row.Minute.Unix()/step + k - first; i >= 0 && i < int64(len(scaled)) {
				scaled[i][0] += float64(row.Admitted) / 60
				scaled[i][1] += float64(row.Slowed) / 60
				scaled[i][2] += float64(row.Refused) / 60
			}
		}
	}
	points := make([]Point, len(sums))
	for i, f := range sums {
		points[i] = Point{
			At: when((first + int64(i)) * step), Allowed: scaled[i][0] + float64(f[0])/float64(step),
			Slowed: scaled[i][1] + float64(f[1])/float64(step), Refused: scaled[i][2] + float64(f[2])/float64(step),
		}
	}
	return points
}

// minutesOfGone are the last hour's minutes of all replicas, read now and then. Without Postgres they are those read last.
func (l *live) minutesOfGone(ctx context.Context, now time.Time) []TotalRow {
	if age := now.Sub(l.goneAt); l.totals == nil || age >= 0 && age < totalsFor {
		return l.gone
	}
	limit, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	l.goneAt = now
	if rows, err := l.totals(limit, now.Add(-SeriesLength)); err == nil {
		l.gone = rows
	}
	return l.gone
}
