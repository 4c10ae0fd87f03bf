package ratelimit

import "context"

// Nobody is a Store that decides as this one does when none of its stores answers: for charges that must not wait.
func (f *Failover) Nobody() Store { return nobody{f} }

type nobody struct{ *Failover }

// Source is SourceNone.
func (nobody) Source() Source { return SourceNone }

// Decide never fails; a charge with a closed limit does.
func (n nobody) Decide(ctx context.Context, charges []Charge, out []Outcome) error {
	for i := range charges {
		n.alone(ctx, &charges[i], &out[i], ErrBusy)
	}
	return nil
}
