package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	adminToken = "bench-administrator-0123456789abcdef"
	// tenantCount is how many tenants the checks of a many-tenants peer go through.
	tenantCount = 1000
	hotTenant   = "hot"
	fullTenant  = "full" // at its limit, for longer than the run
	perBatch    = 100
)

// service is a running Pegel with tenants and a token that may check them.
type service struct {
	child  *child
	admin  string // base URL
	rls    string // address of Envoy's door
	token  string
	source string // where its decisions must come from
}

func startService(ctx context.Context, binary, databaseURL, redisURL string) (*service, error) {
	public, err := freeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress()
	if err != nil {
		return nil, err
	}
	rls, err := freeAddress()
	if err != nil {
		return nil, err
	}
	c, err := start(binary, []string{"serve"}, []string{
		"PEGEL_LISTEN=" + public, "PEGEL_ADMIN_LISTEN=" + admin, "PEGEL_RLS_LISTEN=" + rls, "PEGEL_DATABASE_URL=" + databaseURL, "PEGEL_REDIS_URL=" + redisURL,
		"PEGEL_ADMIN_TOKEN=" + adminToken, "PEGEL_LOG_LEVEL=error",
		// A slow turn must show as a slow turn, not as a decision without a store.
		"PEGEL_REDIS_TIMEOUT=5s", "PEGEL_DATABASE_DECISION_TIMEOUT=5s",
	})
	if err != nil {
		return nil, err
	}
	c.address = public
	s := &service{child: c, admin: "http://" + admin, rls: rls, source: "redis"}
	if redisURL == "" {
		s.source = "postgres"
	}
	if err := s.setUp(ctx); err != nil {
		c.stop()
		return nil, fmt.Errorf("set Pegel up: %w", err)
	}
	return s, nil
}

// setUp waits until Pegel is ready and creates plans, tenants and a token.
func (s *service) setUp(ctx context.Context) error {
	if err := s.await(ctx, "http://"+s.child.address+"/readyz"); err != nil {
		return err
	}
	limit := func(quota int, window string) any {
		return map[string]any{"name": "requests-per-minute", "limit": quota, "window": window}
	}
	for _, plan := range []map[string]any{
		{"name": "bench-wide", "limits": []any{limit(1_000_000_000, "1m")}},
		{"name": "bench-full", "limits": []any{limit(1000, "1h")}},
	} {
		if err := s.post(ctx, "/admin/plans", plan, nil); err != nil {
			return err
		}
	}
	names := map[string]string{hotTenant: "bench-wide", fullTenant: "bench-full"}
	for i := range tenantCount {
		names[tenant(i)] = "bench-wide"
	}
	if err := s.createTenants(ctx, names); err != nil {
		return err
	}
	var token struct{ Secret string }
	if err := s.post(ctx, "/admin/service-tokens", map[string]any{"name": "bench", "exempt": []string{"address"}, "may": []string{"check"}}, &token); err != nil {
		return err
	}
	s.token = token.Secret
	return s.fill(ctx)
}

func (s *service) createTenants(ctx context.Context, plans map[string]string) error {
	work := make(chan string)
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			for name := range work {
				body := map[string]any{"slug": name, "name": name, "plan": plans[name]}
				if err := s.post(ctx, "/admin/tenants", body, nil); err != nil {
					errs[i] = err
				}
			}
		})
	}
	for name := range plans {
		work <- name
	}
	close(work)
	all.Wait()
	return errors.Join(errs...)
}

// fill waits until the token and the tenants are known, and takes all that the full tenant has.
func (s *service) fill(ctx context.Context) error {
	deadline := time.Now().Add(20 * time.Second)
	for _, body := range []string{check(hotTenant, 1), check(tenant(tenantCount-1), 1), check(fullTenant, 1000)} {
		for {
			err := s.checkSource(ctx, body)
			if err == nil {
				break
			}
			if time.Now().After(deadline) || ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

func (s *service) await(ctx context.Context, url string) error {
	deadline := time.Now().Add(60 * time.Second)
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("%s answers %s", url, resp.Status)
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		select {
		case <-s.child.ended:
			return errors.New("pegel has ended")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// checkSource makes one check and wants it allowed by the store that the figures will be said to be of.
func (s *service) checkSource(ctx context.Context, body string) error {
	var answer struct{ Source string }
	if err := send(ctx, "http://"+s.child.address+"/v1/check", s.token, strings.NewReader(body), &answer); err != nil {
		return err
	}
	if answer.Source != s.source {
		return fmt.Errorf("decisions come from %q, not %q", answer.Source, s.source)
	}
	return nil
}

// post makes one administrative change.
func (s *service) post(ctx context.Context, path string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return send(ctx, s.admin+path, adminToken, bytes.NewReader(data), answer)
}

func send(ctx context.Context, url, token string, body io.Reader, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("POST %s: %s: %s", url, resp.Status, text)
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

func tenant(i int) string { return fmt.Sprintf("bench-%d", i) }

func check(tenant string, cost int) string {
	return fmt.Sprintf(`{"tenant":%q,"cost":%d}`, tenant, cost)
}

// batch is perBatch checks of different tenants, from the nth on.
func batch(n int) string {
	checks := make([]string, perBatch)
	for i := range checks {
		checks[i] = check(tenant((n+i)%tenantCount), 1)
	}
	return `{"checks":[` + strings.Join(checks, ",") + `]}`
}

// dial opens a connection that posts its bodies in turn and wants one and the same status. It is a plain HTTP/1.1 client
// without pool or goroutines, since it shares the cores with what it measures.
func (s *service) dial(path string, want int, bodies ...string) (call func() error, end func(), err error) {
	return dialHTTP(s.child.address, s.token, path, want, bodies...)
}

func dialHTTP(address, token, path string, want int, bodies ...string) (call func() error, end func(), err error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, nil, err
	}
	requests := make([][]byte, len(bodies))
	for i, body := range bodies {
		requests[i] = fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			path, address, token, len(body), body)
	}
	reader := bufio.NewReaderSize(conn, 64<<10)
	turn := 0
	call = func() error {
		turn++
		if _, err := conn.Write(requests[turn%len(requests)]); err != nil {
			return err
		}
		resp, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode == want {
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}
		text, _ := io.ReadAll(resp.Body) // for the message only
		return fmt.Errorf("%s answered %s: %s", path, resp.Status, text)
	}
	return call, func() { _ = conn.Close() }, nil
}
