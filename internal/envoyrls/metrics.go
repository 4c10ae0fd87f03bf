package envoyrls

import (
	"log/slog"
	"sync"
	"sync/atomic"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

// reason is why something in a call holds no limit.
type reason string

// The reasons. They are label values: a fixed set.
const (
	otherDomain   reason = "domain"      // a call for another domain
	unknownEntry  reason = "entry"       // an entry that is no fact
	noSubject     reason = "no_subject"  // a descriptor that names neither tenant nor address
	limitOverride reason = "limit"       // a limit in a descriptor: plans say what holds, not the proxy
	noDescriptors reason = "descriptors" // a call without any
)

// metrics count what this door does. Nothing of a call is in a label but the reason and the answer.
type metrics struct {
	calls   *prometheus.CounterVec
	ignored map[reason]prometheus.Counter
	once    once
}

func newMetrics(r prometheus.Registerer, log *slog.Logger) *metrics {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pegel_rls_calls_total", Help: "Calls of Envoy's rate-limit service, by answer.",
		}, []string{"answer"}),
		ignored: make(map[reason]prometheus.Counter),
		once:    once{log: log},
	}
	ignored := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pegel_rls_ignored_total", Help: "What no limit holds for in calls of Envoy's rate-limit service, by reason: each should be 0.",
	}, []string{"reason"})
	for _, why := range []reason{otherDomain, unknownEntry, noSubject, limitOverride, noDescriptors} {
		m.ignored[why] = ignored.WithLabelValues(string(why))
	}
	if r != nil {
		r.MustRegister(m.calls, ignored)
	}
	return m
}

// called counts one call by its answer: OK, OVER_LIMIT or the code of its error.
func (m *metrics) called(answer any, err error) {
	label := status.Code(err).String()
	if response, ok := answer.(*ratelimitv3.RateLimitResponse); ok && err == nil {
		label = response.GetOverallCode().String()
	}
	m.calls.WithLabelValues(label).Inc()
}

// ignore counts something that holds no limit, and says so in the log when it is new. name is a domain or an entry's key,
// never a value: values are the clients'.
func (m *metrics) ignore(why reason, name string) {
	m.ignored[why].Inc()
	m.once.say(why, name)
}

// once logs each reason and name one time.
type once struct {
	log  *slog.Logger
	seen sync.Map // said → struct{}
	size atomic.Int64
}

type said struct {
	why  reason
	name string
}

// Bounds of what is remembered: names come from Envoy's configuration, so there are few unless somebody plays with us.
const (
	maxSaid     = 64
	maxSaidName = 64 // bytes
)

var ignoredText = map[reason]string{
	otherDomain:   "no limit holds in this domain: it is not PEGEL_RLS_DOMAIN, and its calls are let through",
	unknownEntry:  "an entry of a descriptor is none of tenant, user, key, remote_address, path and method, and is ignored",
	noSubject:     "a descriptor names neither tenant nor remote_address, and is let through",
	limitOverride: "a limit in a descriptor is ignored: the tenant's plan says what holds",
	noDescriptors: "a call without descriptors is let through",
}

func (o *once) say(why reason, name string) {
	if len(name) > maxSaidName {
		name = name[:maxSaidName]
	}
	what := said{why, name}
	if _, known := o.seen.Load(what); known || o.size.Load() >= maxSaid {
		return
	}
	if _, known := o.seen.LoadOrStore(what, struct{}{}); known {
		return
	}
	o.size.Add(1)
	o.log.Warn("Envoy: "+ignoredText[why], slog.String("name", name))
}
