package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pegel-dev/pegel/internal/usage"
)

const (
	// exchangeTimeout bounds one read or write of a report, which may be larger than anything a decision sends.
	exchangeTimeout = 500 * time.Millisecond
	// listTTL is how long the list of replicas is kept without any of them.
	listTTL = 4 * usage.ReplicaTTL
)

// Exchange is where replicas tell each other what they see, on the Redis of a Store. Nothing in it is a counter: it lives for
// seconds, and losing it costs a second of the live picture.
type Exchange struct {
	store *Store
	group func() string
}

var _ usage.Exchange = (*Exchange)(nil)

// NewExchange makes one for the replicas that share a group: the id of the installation, empty while it is not known.
func NewExchange(store *Store, group func() string) *Exchange {
	return &Exchange{store: store, group: group}
}

// Name is "redis".
func (*Exchange) Name() string { return "redis" }

var errNoGroup = errors.New("the configuration is not loaded yet")

// keys are the list of instances and an instance's report. They share a slot of a Cluster.
func (e *Exchange) keys() (list string, report func(instance string) string, err error) {
	group := e.group()
	if group == "" {
		return "", nil, errNoGroup
	}
	prefix := "pegel:usage:{" + group + "}:"
	return prefix + "replicas", func(instance string) string { return prefix + "report:" + instance }, nil
}

// client is the store's, with time for large reports.
func (e *Exchange) client() redis.UniversalClient {
	client := *e.store.client.Load()
	if one, ok := client.(*redis.Client); ok {
		return one.WithTimeout(exchangeTimeout)
	}
	return client
}

// Publish is in usage.Exchange.
func (e *Exchange) Publish(ctx context.Context, instance string, report []byte) error {
	list, key, err := e.keys()
	if err != nil {
		return err
	}
	pipeline := e.client().Pipeline()
	pipeline.Set(ctx, key(instance), report, usage.ReplicaTTL)
	pipeline.SAdd(ctx, list, instance)
	pipeline.Expire(ctx, list, listTTL)
	if _, err := pipeline.Exec(ctx); err != nil {
		return fmt.Errorf("publish the report: %w", unavailable(ctx, err))
	}
	return nil
}

// Reports is in usage.Exchange.
func (e *Exchange) Reports(ctx context.Context) (map[string][]byte, error) {
	list, key, err := e.keys()
	if err != nil {
		return nil, err
	}
	client := e.client()
	instances, err := client.SMembers(ctx, list).Result()
	if err != nil {
		return nil, fmt.Errorf("list the replicas: %w", unavailable(ctx, err))
	}
	reports := make(map[string][]byte, len(instances))
	pipeline := client.Pipeline()
	answers := make([]*redis.StringCmd, len(instances))
	for i, instance := range instances {
		answers[i] = pipeline.Get(ctx, key(instance))
	}
	if len(instances) > 0 {
		if _, err := pipeline.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return nil, fmt.Errorf("read the reports: %w", unavailable(ctx, err))
		}
	}
	var gone []any
	for i, answer := range answers {
		raw, err := answer.Bytes()
		if err != nil {
			gone = append(gone, instances[i])
			continue
		}
		reports[instances[i]] = raw
	}
	if len(gone) > 0 { // one that is only late lists itself again with its next report
		_ = client.SRem(ctx, list, gone...).Err()
	}
	return reports, nil
}

// Withdraw is in usage.Exchange.
func (e *Exchange) Withdraw(ctx context.Context, instance string) error {
	list, key, err := e.keys()
	if err != nil {
		return err
	}
	pipeline := e.client().Pipeline()
	pipeline.Del(ctx, key(instance))
	pipeline.SRem(ctx, list, instance)
	if _, err := pipeline.Exec(ctx); err != nil {
		return fmt.Errorf("withdraw the report: %w", unavailable(ctx, err))
	}
	return nil
}
