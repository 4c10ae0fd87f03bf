package devmode

import (
	"fmt"

	"github.com/alicebob/miniredis/v2"
)

// MiniRedis is an imitation of Redis inside this process, for a first look on a machine without a Redis server. Its
// data is gone when it stops, and it proves nothing about scripts: it formats numbers differently from Redis.
type MiniRedis struct{ server *miniredis.Miniredis }

// StartMiniRedis starts one on a free loopback port.
func StartMiniRedis() (*MiniRedis, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // keys expire by the clock, not by hand
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("start the Redis imitation: %w", err)
	}
	return &MiniRedis{server: m}, nil
}

// URL is where it is.
func (m *MiniRedis) URL() string { return "redis://" + m.server.Addr() }

// Stop ends it.
func (m *MiniRedis) Stop() error {
	m.server.Close()
	return nil
}
