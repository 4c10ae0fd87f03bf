package adminclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// callWithin bounds one call, and the silence within a stream: applying the largest file takes the server up to 30 s.
	callWithin = 60 * time.Second
	// maxAnswer bounds an answer that is read into memory, in bytes.
	maxAnswer = 256 << 20
	// pageSize is how many objects a page of a list asks for; the most there is.
	pageSize = 500
)

// ErrToken is New's answer to a credential that no header can carry.
var ErrToken = errors.New("the token must be printable ASCII without spaces: it travels in a header")

// Client calls one server with one credential.
type Client struct {
	base  string
	token string
	agent string
	// within is callWithin, outside tests.
	within time.Duration
	http   *http.Client
}

// New takes the URL of a listener, such as http://127.0.0.1:8081, a credential (empty: none) and the User-Agent.
func New(base, token, agent string) (*Client, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, errors.New("is not an http:// or https:// URL with a host")
	case u.User != nil:
		return nil, errors.New("must not have a user or password")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("must not have a query or a fragment")
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return nil, ErrToken
	}
	return &Client{
		base: strings.TrimSuffix(u.String(), "/"), token: token, agent: agent, within: callWithin,
		// A redirect would carry the credential to where nobody meant it to go.
		http: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// Call is one request. Body, when it is not nil, is sent as JSON.
type Call struct {
	Method string // empty: GET
	Path   string // see Path
	Query  url.Values
	Body   any
	// IfMatch is the ETag that must still hold; empty: none.
	IfMatch string
	// Denied accepts a 429 as an answer: it is one, where a decision is asked for.
	Denied bool
}

// Answer is a server's answer of success.
type Answer struct {
	Status int
	Body   json.RawMessage // empty for 204
	ETag   string
}

// Path joins segments, each escaped: names may hold slashes.
func Path(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}

// Do makes one call and reads its answer.
func (c *Client) Do(ctx context.Context, call Call) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.within)
	defer cancel()
	response, err := c.send(ctx, &call)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, &UnreachableError{Server: c.base, Within: c.within, Began: true, Err: orCause(ctx, err)}
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("the answer of %s has more than %d MiB", c.base, maxAnswer>>20)
	case response.StatusCode == http.StatusTooManyRequests && call.Denied && json.Valid(body):
	case response.StatusCode >= 300:
		return nil, c.problem(response, body)
	case len(body) > 0 && !json.Valid(body):
		return nil, fmt.Errorf("%s does not answer as Pegel does (no JSON): is it the right address?", c.base)
	}
	return &Answer{Status: response.StatusCode, Body: body, ETag: response.Header.Get("ETag")}, nil
}

// Stream copies an answer as it comes, however long it is. It ends when the server is silent for too long, not when w is slow.
func (c *Client) Stream(ctx context.Context, call Call, w io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(c.within, func() { cancel(context.DeadlineExceeded) })
	defer silence.Stop()
	response, err := c.send(ctx, &call)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= 300 {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
		return c.problem(response, body)
	}
	in := &heard{in: response.Body, silence: silence, within: c.within}
	if _, err := io.Copy(w, in); err != nil && in.err == nil {
		return fmt.Errorf("write the answer of %s: %w", c.base, err)
	}
	if in.err != nil {
		return &UnreachableError{Server: c.base, Within: c.within, Began: true, Err: orCause(ctx, in.err)}
	}
	return nil
}

// heard lets the timer of the silence run only while the server is being waited for, and keeps what reading failed with.
type heard struct {
	in      io.Reader
	silence *time.Timer
	within  time.Duration
	err     error
}

func (h *heard) Read(p []byte) (int, error) {
	h.silence.Reset(h.within)
	n, err := h.in.Read(p)
	h.silence.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		h.err = err
	}
	return n, err
}

// orCause is why a call was given up, when it was; else what it failed with.
func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// List reads a list over its pages, at most so many objects (0: all).
func (c *Client) List(ctx context.Context, path string, query url.Values, most int) ([]json.RawMessage, error) {
	items := []json.RawMessage{}
	next := url.Values{}
	for name, values := range query {
		next[name] = values
	}
	for {
		size := pageSize
		if most > 0 {
			size = min(size, most-len(items))
		}
		next.Set("limit", strconv.Itoa(size))
		answer, err := c.Do(ctx, Call{Path: path, Query: next})
		if err != nil {
			return nil, err
		}
		var page struct {
			Items      []json.RawMessage `json:"items"`
			NextCursor string            `json:"next_cursor"`
		}
		if err := json.Unmarshal(answer.Body, &page); err != nil {
			return nil, fmt.Errorf("read a page of %s: %w", path, err)
		}
		items = append(items, page.Items...)
		if page.NextCursor == "" || most > 0 && len(items) >= most {
			return items, nil
		}
		next.Set("cursor", page.NextCursor)
	}
}

func (c *Client) send(ctx context.Context, call *Call) (*http.Response, error) {
	var body io.Reader
	if call.Body != nil {
		raw, err := json.Marshal(call.Body)
		if err != nil {
			return nil, fmt.Errorf("write the request: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	target := c.base + call.Path
	if len(call.Query) > 0 {
		target += "?" + call.Query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, call.Method, target, body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	request.Header.Set("User-Agent", c.agent)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	if call.IfMatch != "" {
		request.Header.Set("If-Match", call.IfMatch)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, &UnreachableError{Server: c.base, Within: c.within, Err: orCause(ctx, err)}
	}
	return response, nil
}
