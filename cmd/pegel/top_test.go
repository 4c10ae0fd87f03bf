package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/adminclient"
)

// Guarantee: pegel top shows who uses most, in order and with the numbers that were driven, within seconds.
func TestTopShowsTheBiggestConsumers(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for i, cost := range []int{300, 700, 500} {
		s.must(fmt.Sprintf("tenant create school-%d --name S --plan light", i))
		s.must(fmt.Sprintf("override set school-%d requests-per-minute 1000 --reason test", i))
		_, message, status := s.shell(fmt.Sprintf("PEGEL_KEY=$(pegel key create school-%d --name k 2>/dev/null </dev/null) pegel check --cost %d </dev/null", i, cost))
		require.Zero(t, status, message)
	}
	var shown struct {
		Tenants []struct {
			Tenant string
			Used   int64
		}
	}
	require.Eventually(t, func() bool {
		require.NoError(t, json.Unmarshal([]byte(s.must("top --once -o json --top 2")), &shown))
		return len(shown.Tenants) == 2 && shown.Tenants[0].Tenant == "school-1" && shown.Tenants[0].Used == 700 &&
			shown.Tenants[1].Tenant == "school-2" && shown.Tenants[1].Used == 500
	}, 30*time.Second, 100*time.Millisecond)
	text := s.must("top")
	require.Contains(t, text, "3 tenants active")
	require.NotContains(t, text, "\x1b", "no terminal, no control characters")
	_, message, status := s.shell("pegel top --top 0")
	require.Equal(t, exitUsage, status, message)
}

// Guarantee: frames are drawn in place, a server that goes away leaves the last one standing, and the terminal is given back.
func TestTopIsRefreshedInPlace(t *testing.T) {
	t.Parallel()
	body := []byte(`{"generated_at":"2026-11-30T12:00:00Z","active_tenants":1,"total":{"allowed":5},"tenants":[
		{"tenant":"evil\u001b[2J","plan":"light","limit_name":"m","used":5,"limit":10,"utilization":0.5}],
		"series":[{"allowed":0},{"allowed":4},{"allowed":8,"refused":1}],"replicas":[{"replica":"a","source":"redis"}],"missing":["redis"],
		"refused_service_tokens":[{"name":"edge","refused":3}]}`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	asked := 0
	err := watchTop(ctx, &out, anyHeight, time.Millisecond, func(context.Context) (*adminclient.Answer, error) {
		switch asked++; asked {
		case 2:
			return nil, errors.New("nobody answers")
		case 4:
			cancel()
		}
		return &adminclient.Answer{Body: body}, nil
	})
	require.NoError(t, err)
	drawn := out.String()
	require.True(t, strings.HasPrefix(drawn, enterScreen))
	require.True(t, strings.HasSuffix(drawn, leaveScreen))
	require.NotContains(t, drawn, "\x1b[2J", "hostile names show as text")
	frames := strings.Split(drawn, toTop)
	require.Len(t, frames, 4, "three frames")
	require.Contains(t, frames[1], "▁▅█")
	require.Contains(t, frames[1], "8.0/s")
	require.Contains(t, frames[1], "edge")
	require.Contains(t, frames[1], "redis cannot be asked")
	require.NotContains(t, frames[1], "not refreshed")
	require.Contains(t, frames[2], "not refreshed: nobody answers")
	require.NotContains(t, frames[3], "not refreshed")

	err = watchTop(t.Context(), &out, anyHeight, time.Millisecond, func(context.Context) (*adminclient.Answer, error) { return nil, errors.New("refused") })
	require.EqualError(t, err, "refused")
}

func anyHeight() int { return 0 }

// Guarantee: no frame is higher than the terminal is at that moment; heading and notes stay, and what is left out is counted.
func TestTopFitsTheTerminal(t *testing.T) {
	t.Parallel()
	var tenants []string
	for i := range 30 {
		tenants = append(tenants, fmt.Sprintf(`{"tenant":"school-%02d","plan":"light","limit_name":"m","used":5,"limit":10,"utilization":0.5}`, i))
	}
	body := []byte(`{"generated_at":"2026-11-30T12:00:00Z","active_tenants":30,"total":{},"tenants":[` + strings.Join(tenants, ",") +
		`],"replicas":[{"replica":"a","source":"redis"},{"replica":"b","source":"redis"}],"missing":["redis"]}`)
	heights := []int{20, 12, 8, 3, 1, 0, 200}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	drawn := 0
	err := watchTop(ctx, &out, func() int {
		if drawn++; drawn == len(heights) {
			cancel()
		}
		return heights[drawn-1]
	}, time.Millisecond, func(context.Context) (*adminclient.Answer, error) { return &adminclient.Answer{Body: body}, nil })
	require.NoError(t, err)
	frames := strings.Split(strings.TrimSuffix(out.String(), leaveScreen), toTop)[1:]
	require.Len(t, frames, len(heights))
	const whole = 4 + 31 + 4 + 2 // heading, tenants, replicas, notes
	for i, frame := range frames {
		lines := strings.Split(frame, "\n")
		want := whole
		if heights[i] > 0 {
			want = min(whole, heights[i])
		}
		require.Len(t, lines, want, "a terminal of %d lines", heights[i])
		require.Contains(t, lines[0], "30 tenants active")
		if want >= 8 {
			require.Contains(t, lines[len(lines)-1], "redis cannot be asked", "a terminal of %d lines", heights[i])
		}
	}
	require.Contains(t, frames[0], "school-07")
	require.NotContains(t, frames[0], "school-08")
	require.Contains(t, frames[0], "… 22 more tenants")
	require.Contains(t, frames[0], "REPLICA")
	require.NotContains(t, frames[5], "…")
}
