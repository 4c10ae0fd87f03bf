package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/ratelimit"
)

// identity is everything that a counter's key is made of.
type identity struct {
	group, id, name string
	generation      int64
	scope           ratelimit.Scope
	algorithm       ratelimit.Algorithm
	window          time.Duration
}

func (i identity) key() ratelimit.Key {
	l := &ratelimit.Limit{Name: i.name, Algorithm: i.algorithm, Window: i.window, Quota: 7}
	if i.algorithm.Bucket() {
		l.Window = 0
		l.Refill = ratelimit.Rate{Units: 1, Every: i.window}
	}
	return ratelimit.CounterKey(ratelimit.Subject{Group: i.group, Generation: i.generation, Scope: i.scope, ID: i.id}, l)
}

// same reports whether two identities are one counter: a bucket's rate is not part of it.
func (i identity) same(o identity) bool {
	if i.algorithm.Bucket() {
		i.window, o.window = 0, 0
	}
	return i == o
}

func drawIdentity(t *rapid.T) identity {
	nasty := rapid.StringOfN(rapid.SampledFrom([]rune(":/|{}* \n%é\x00ab")), 0, 4, -1)
	return identity{
		group: nasty.Draw(t, "group"), id: nasty.Draw(t, "id"), name: nasty.Draw(t, "name"),
		generation: rapid.Int64Range(-1, 2).Draw(t, "generation"),
		scope:      rapid.SampledFrom([]ratelimit.Scope{ratelimit.ScopeTenant, ratelimit.ScopeUser, ratelimit.ScopeKey, ratelimit.ScopeAddress, ""}).Draw(t, "scope"),
		algorithm: rapid.SampledFrom([]ratelimit.Algorithm{
			ratelimit.SlidingWindowLog, ratelimit.SlidingWindowCounter, ratelimit.FixedWindow, ratelimit.TokenBucket, ratelimit.LeakyBucket,
		}).Draw(t, "algorithm"),
		window: rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(t, "window"),
	}
}

// B055: different identities never share a key, equal ones always do.
func TestKeysMeetOnlyWhenTheyShould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawIdentity(t), drawIdentity(t)
		if rapid.Bool().Draw(t, "almost equal") {
			// Move one character over a boundary, or change a single part.
			b = a
			switch rapid.IntRange(0, 4).Draw(t, "change") {
			case 0:
				b.group, b.id = a.group+a.id, ""
			case 1:
				b.id, b.name = "", a.id+a.name
			case 2:
				b.generation++
			case 3:
				b.window *= 2
			}
		}
		if (a.key() == b.key()) != a.same(b) {
			t.Fatalf("%+v and %+v: keys %s and %s", a, b, a.key(), b.key())
		}
	})
}

// B032: whatever bytes a group holds, its counters share one slot, and the key is fit for Redis and for a log.
func TestKeysOfOneGroupShareASlot(t *testing.T) {
	tag := func(k ratelimit.Key) string { return string(k)[:18] }
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawIdentity(t), drawIdentity(t)
		b.group = a.group
		if tag(a.key()) != tag(b.key()) {
			t.Fatalf("%s and %s", a.key(), b.key())
		}
		if len(a.key()) != 41 {
			t.Fatalf("%q is %d bytes long", a.key(), len(a.key()))
		}
		for _, r := range string(a.key()) {
			if r <= ' ' || r > '~' {
				t.Fatalf("%q", a.key())
			}
		}
	})
	tags := map[string]bool{}
	for i := range 1000 {
		tags[tag(identity{group: time.Duration(i).String()}.key())] = true
	}
	require.Len(t, tags, 1000, "different groups spread over the slots")
}

func TestAChangedQuotaKeepsTheCounter(t *testing.T) {
	s := ratelimit.Subject{Group: "7"}
	a := ratelimit.Limit{Name: "n", Algorithm: ratelimit.TokenBucket, Quota: 10, Refill: ratelimit.Rate{Units: 1, Every: time.Second}}
	b := a
	b.Quota, b.Refill.Units, b.Cost, b.Mode = 20, 5, 3, ratelimit.Shadow
	require.Equal(t, ratelimit.CounterKey(s, &a), ratelimit.CounterKey(s, &b))
}

// SameCounter says of two limits what their keys say.
func TestSameCounterIsTheSameKey(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		limit := func(name string) *ratelimit.Limit {
			return &ratelimit.Limit{
				Name: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, name+" name"), Scope: rapid.SampledFrom([]ratelimit.Scope{ratelimit.ScopeTenant, ratelimit.ScopeUser}).Draw(rt, name+" scope"),
				Algorithm: rapid.SampledFrom([]ratelimit.Algorithm{ratelimit.SlidingWindowLog, ratelimit.FixedWindow, ratelimit.TokenBucket}).Draw(rt, name+" algorithm"),
				Quota:     rapid.Int64Range(0, 9).Draw(rt, name+" quota"), Window: rapid.SampledFrom([]time.Duration{time.Second, time.Minute}).Draw(rt, name+" window"),
				Refill: ratelimit.Rate{Units: rapid.Int64Range(1, 3).Draw(rt, name+" refill"), Every: time.Second},
			}
		}
		key := func(l *ratelimit.Limit) ratelimit.Key {
			return ratelimit.CounterKey(ratelimit.Subject{Group: "g", Scope: l.Scope, ID: "x"}, l)
		}
		a, b := limit("a"), limit("b")
		require.Equal(rt, key(a) == key(b), ratelimit.SameCounter(a, b))
	})
}
