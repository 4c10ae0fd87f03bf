package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// MaxBatch is how many checks one request may carry. CheckBatch splits what is more.
const MaxBatch = 1000

const (
	// maxBody is a little less than the 1 MiB that Pegel reads of a request.
	maxBody = 1<<20 - 1024
	// defaultTimeout bounds a call whose context has no earlier deadline.
	defaultTimeout = 2 * time.Second
	// longestDelay is what a plan may have a request wait.
	longestDelay = time.Minute
	// maxAnswer is more than 1,000 refusals with their limits take.
	maxAnswer = 32 << 20
	// idleConnections are kept to Pegel: what a busy service has in flight.
	idleConnections = 64
)

// Client asks one Pegel service. Make one with New and share it: it is safe for concurrent use and keeps its connections.
type Client struct {
	base    string
	token   string
	http    *http.Client
	timeout time.Duration
	own     *http.Transport // ours to close; nil when the caller gave an http.Client
	batcher *batcher        // nil without WithBatching
}

// Option changes how a Client works.
type Option func(*Client)

// WithHTTPClient sends requests with c instead of an http.Client of its own. Its Timeout holds besides WithTimeout's.
func WithHTTPClient(c *http.Client) Option { return func(k *Client) { k.http = c } }

// WithTimeout bounds every call whose context has no earlier deadline. The default is 2 s; 0 or less leaves it. A check with
// Wait may take a minute longer, the longest delay that a plan can have: its context says when that is too long.
func WithTimeout(d time.Duration) Option {
	return func(k *Client) {
		if d > 0 {
			k.timeout = d
		}
	}
}

// WithBatching merges checks: while a request is under way, checks queue, and the next request takes all of them, up to
// MaxBatch. A lone check is sent at once; nothing waits for a timer. It pays where many goroutines check at the same time.
// Checks with Wait are never merged.
func WithBatching() Option { return func(k *Client) { k.batcher = &batcher{} } }

// New makes a Client for the service at baseURL ("https://pegel.example.org", or "http://pegel:8080/behind/a/prefix") with
// a service token or an API key. It does not connect. An error never contains the token.
func New(baseURL, token string, options ...Option) (*Client, error) {
	u, err := url.Parse(baseURL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, errors.New("pegel: the base URL must be http:// or https:// with a host")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("pegel: the base URL must not have credentials, a query or a fragment")
	case token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return nil, errors.New("pegel: the token must be a service token (pgs_…) or an API key (pgk_…)")
	}
	c := &Client{base: strings.TrimRight(u.String(), "/"), token: token, timeout: defaultTimeout}
	for _, option := range options {
		option(c)
	}
	if c.http == nil {
		c.own = newTransport()
		c.http = &http.Client{Transport: c.own, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if c.batcher != nil {
		c.batcher.init(c)
	}
	return c, nil
}

// newTransport keeps more connections to one host than http.DefaultTransport does, and gives up on dialling early.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:   true,
		MaxIdleConns:        idleConnections,
		MaxIdleConnsPerHost: idleConnections,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: time.Second,
	}
}

// Close waits for batches under way and closes idle connections. Checks made after it fail when the Client batches.
func (c *Client) Close() {
	if c.batcher != nil {
		c.batcher.close()
	}
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// Check decides on one hit and charges it. The error is a *RateLimitError when the hit is refused (the Decision comes with
// it), an *Error when Pegel will not decide, and anything else when Pegel did not answer. A Decision that slows is not an error:
// wait for Decision.Delay before the work is done, unless Check.Wait had Pegel do that.
func (c *Client) Check(ctx context.Context, check Check) (*Decision, error) {
	if c.batcher != nil && !check.Wait {
		return c.batcher.check(ctx, check)
	}
	raw, err := check.encode()
	if err != nil {
		return nil, err
	}
	timeout := c.timeout
	if check.Wait {
		timeout += longestDelay
	}
	return c.decide(ctx, timeout, http.MethodPost, "/v1/check", raw)
}

// CheckBatch decides on many hits in the order given and charges each that is let through. Results are in the order of the
// checks, each with a Decision, an error, or, for a refusal, both. The error of CheckBatch itself means that nothing is known:
// hits may or may not have been charged. Check.Wait is refused in a batch.
func (c *Client) CheckBatch(ctx context.Context, checks []Check) ([]Result, error) {
	results := make([]Result, len(checks))
	elements := make([]json.RawMessage, 0, len(checks))
	places := make([]int, 0, len(checks)) // of the elements in results
	for i := range checks {
		element, err := checks[i].encode()
		if err != nil {
			results[i].Err = err
			continue
		}
		elements, places = append(elements, element), append(places, i)
	}
	for len(elements) > 0 {
		n, size := 0, 0
		for n < len(elements) && fits(n, size, elements[n]) {
			size += len(elements[n]) + 1
			n++
		}
		part, err := c.batch(ctx, elements[:n])
		if err != nil {
			return nil, err
		}
		for i := range part {
			results[places[i]] = part[i]
		}
		elements, places = elements[n:], places[n:]
	}
	return results, nil
}

// fits reports whether one more check goes into a request that has n of so many bytes. One alone always does (maxCheck).
func fits(n, size int, element json.RawMessage) bool {
	return n < MaxBatch && size+len(element)+1 <= maxBody
}

// Result is one check's part of a batch.
type Result struct {
	// Decision is nil when Err says why there is none.
	Decision *Decision
	// Err is what Check would have returned.
	Err error
}

// batch sends one request.
func (c *Client) batch(ctx context.Context, checks []json.RawMessage) ([]Result, error) {
	body := append([]byte(`{"checks":[`), bytes.Join(asBytes(checks), []byte{','})...)
	a, err := c.send(ctx, c.timeout, http.MethodPost, "/v1/check/batch", append(body, `]}`...))
	if err != nil {
		return nil, err
	}
	if a.status != http.StatusOK {
		return nil, a.problem()
	}
	var read struct {
		Results []json.RawMessage `json:"results"`
	}
	if err := json.Unmarshal(a.body, &read); err != nil || len(read.Results) != len(checks) {
		return nil, errGarbage(a.status)
	}
	results := make([]Result, len(checks))
	for i, element := range read.Results {
		results[i].Decision, results[i].Err = readElement(element)
	}
	return results, nil
}

// Status is what a hit of cost 1 would meet now; it consumes nothing. Being over is not an error: Decision.Allowed says it.
// With an API key the zero Query asks for the key's own tenant. The answer may be up to 1 s old.
func (c *Client) Status(ctx context.Context, q Query) (*Decision, error) {
	values := url.Values{}
	for name, value := range map[string]string{"tenant": q.Tenant, "user": q.User, "key": q.Key, "address": q.Address} {
		if value != "" {
			values.Set(name, value)
		}
	}
	path := "/v1/status"
	if len(values) > 0 {
		path += "?" + values.Encode()
	}
	return c.decide(ctx, c.timeout, http.MethodGet, path, nil)
}

// Refund gives the units of a check back, the oldest first and never below zero used, to every limit that the check was
// charged to: name what it named. It takes a service token that may refund. The Decision is the status afterwards. Do not
// repeat one whose answer was lost, unless giving back twice is better than not at all.
func (c *Client) Refund(ctx context.Context, check Check) (*Decision, error) {
	check.Peek, check.Wait = false, false
	raw, err := check.encode()
	if err != nil {
		return nil, err
	}
	return c.decide(ctx, c.timeout, http.MethodPost, "/v1/refund", raw)
}

// decide sends a request whose answer is one decision.
func (c *Client) decide(ctx context.Context, timeout time.Duration, method, path string, body []byte) (*Decision, error) {
	a, err := c.send(ctx, timeout, method, path, body)
	if err != nil {
		return nil, err
	}
	switch a.status {
	case http.StatusOK:
		return readDecision(a.body, a.status)
	case http.StatusTooManyRequests:
		return refused(a.body, a.status)
	}
	return nil, a.problem()
}

// answer is an HTTP answer with its body read.
type answer struct {
	status int
	// starting: Pegel says that it has not loaded its configuration yet.
	starting bool
	body     []byte
}

func (a *answer) problem() error {
	err := problemOf(a.status, a.body)
	var known *Error
	if errors.As(err, &known) {
		known.starting = a.starting
	}
	return err
}

// send sends one request and reads its answer to the end, so that the connection is used again.
func (c *Client) send(ctx context.Context, timeout time.Duration, method, path string, body []byte) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var sent io.Reader
	if body != nil {
		sent = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, sent)
	if err != nil {
		return nil, fmt.Errorf("pegel: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Accept", "application/json, application/problem+json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("pegel: %w", withoutQuery(err))
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("pegel: read the answer: %w", err)
	case len(raw) > maxAnswer:
		return nil, errGarbage(res.StatusCode)
	}
	return &answer{res.StatusCode, res.Header.Get("X-Pegel-Starting") != "", raw}, nil
}

// withoutQuery drops the URL that net/http puts into its errors: a query names tenants and users.
func withoutQuery(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return fmt.Errorf("%s: %w", wrapped.Op, wrapped.Err)
	}
	return err
}

func asBytes(elements []json.RawMessage) [][]byte {
	all := make([][]byte, len(elements))
	for i := range elements {
		all[i] = elements[i]
	}
	return all
}
