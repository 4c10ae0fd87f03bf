package ratelimit

// leakyState is a leaky bucket: a token bucket's level, read as a queue that drains at the outflow. A hit that fits is
// told how long those before it take.
type leakyState struct{ bucketState }

func (s leakyState) look(l *Limit, now, units int64) look {
	level := s.at(l, now).level
	return look{
		fit:   s.fit(l, level, units),
		delay: waitOfFloat(drain(l, level)),
		step:  waitOfFloat(drain(l, float64(units))),
	}
}

func (s leakyState) take(l *Limit, now, units int64) leakyState {
	return leakyState{s.bucketState.take(l, now, units)}
}

func (s leakyState) refund(l *Limit, now, units int64) leakyState {
	return leakyState{s.bucketState.refund(l, now, units)}
}

func (s leakyState) raise(l *Limit, now int64, known []Portion) leakyState {
	return leakyState{s.bucketState.raise(l, now, known)}
}
