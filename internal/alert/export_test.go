package alert

import "context"

// Deliver sends what is due now on every channel, instead of Run.
func (s *Service) Deliver(ctx context.Context) error {
	for _, c := range s.couriers {
		for {
			sent, err := c.round(ctx)
			if err != nil {
				return err
			}
			if !sent {
				break
			}
		}
	}
	return nil
}

// JudgeOnce is a judgement.
var JudgeOnce = judge
