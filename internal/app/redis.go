package app

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// redisOptions turns the settings into the client's: one URL is a single server, several are a cluster, or the Sentinels
// of the master. Nil without a URL. Errors never hold a URL.
func (c *Config) redisOptions() (*redis.UniversalOptions, error) {
	if len(c.RedisURLs) == 0 {
		return nil, nil //nolint:nilnil // no Redis is a configuration, not an error
	}
	sentinel := c.RedisSentinelMaster != ""
	cluster := len(c.RedisURLs) > 1 && !sentinel
	var first *redis.Options
	opts := &redis.UniversalOptions{MasterName: c.RedisSentinelMaster, IsClusterMode: cluster}
	for _, u := range c.RedisURLs {
		o, err := redis.ParseURL(string(u))
		if err != nil {
			return nil, errors.New("is not a Redis URL that can be read")
		}
		if first == nil {
			first = o
		}
		if o.Username != first.Username || o.Password != first.Password || o.DB != first.DB || (o.TLSConfig == nil) != (first.TLSConfig == nil) {
			return nil, errors.New("names several nodes: user, password, database and scheme must be the same for all")
		}
		opts.Addrs = append(opts.Addrs, o.Addr)
	}
	if cluster && first.DB != 0 {
		return nil, fmt.Errorf("names several nodes, which is a cluster, and a cluster has no database %d", first.DB)
	}
	opts.Username, opts.Password, opts.DB = first.Username, first.Password, first.DB
	if first.TLSConfig != nil {
		opts.TLSConfig = first.TLSConfig.Clone()
		if len(opts.Addrs) > 1 || sentinel {
			opts.TLSConfig.ServerName = "" // each node by its own name
		}
	}
	opts.SentinelPassword = string(c.RedisSentinelPassword)
	opts.PoolSize = c.RedisPoolSize
	return opts, nil
}
