package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/pegel-dev/pegel/internal/problem"
)

// call is one request to the API.
type call struct {
	method, path string
	query        url.Values
	// body is marshalled; json.RawMessage goes as it is.
	body any
	// etag of what the administrator saw, for If-Match.
	etag string
	// once is the Idempotency-Key of the form: sent twice, it acts once.
	once string
}

// apiError is a refusal of the API.
type apiError struct {
	problem.Problem

	header http.Header
}

func (e *apiError) Error() string {
	return fmt.Sprintf("%d %s: %s", e.Status, e.Problem.Error, e.Detail)
}

// answer holds what came back besides the body.
type answer struct {
	status int
	header http.Header
}

// etag of what was read.
func (a *answer) etag() string { return a.header.Get("ETag") }

// get reads from the API.
func (x *exchange) get(path string, query url.Values, into any) error {
	_, err := x.call(call{method: http.MethodGet, path: path, query: query}, into)
	return err
}

// call asks the API in this process, as the administrator and from their address. into may be nil.
func (x *exchange) call(c call, into any) (*answer, error) {
	if x.away != nil {
		return nil, x.away
	}
	req, err := x.request(&c)
	if err != nil {
		return nil, err
	}
	w := &recorder{header: http.Header{}, status: http.StatusOK}
	x.d.API.ServeHTTP(w, req)
	if w.status >= http.StatusBadRequest {
		e := &apiError{header: w.header}
		if err := json.Unmarshal(w.body.Bytes(), &e.Problem); err != nil {
			e.Problem = problem.New(problem.Internal, "the answer could not be read", x.id)
		}
		if e.Status == http.StatusServiceUnavailable {
			x.away = e
		}
		return nil, e
	}
	if into != nil && w.body.Len() > 0 {
		if err := json.Unmarshal(w.body.Bytes(), into); err != nil {
			return nil, fmt.Errorf("read the answer of %s %s: %w", c.method, c.path, err)
		}
	}
	return &answer{status: w.status, header: w.header}, nil
}

func (x *exchange) request(c *call) (*http.Request, error) {
	var body io.Reader = http.NoBody
	if c.body != nil {
		raw, err := json.Marshal(c.body)
		if text, ok := c.body.(json.RawMessage); ok {
			raw, err = text, nil // the API says what is wrong with it
		}
		if err != nil {
			return nil, fmt.Errorf("write the body of %s %s: %w", c.method, c.path, err)
		}
		body = bytes.NewReader(raw)
	}
	target := c.path
	if len(c.query) > 0 {
		target += "?" + c.query.Encode()
	}
	req, err := http.NewRequestWithContext(x.r.Context(), c.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("ask %s %s: %w", c.method, c.path, err)
	}
	// Who asks is found out from the peer and the headers of proxies, as for any request.
	req.RemoteAddr, req.Host, req.TLS, req.RequestURI = x.r.RemoteAddr, x.r.Host, x.r.TLS, target
	for name, values := range x.r.Header {
		if !ownHeaders[name] && !strings.HasPrefix(name, "Content-") && !strings.HasPrefix(name, "If-") {
			req.Header[name] = values
		}
	}
	req.Header.Set("Authorization", "Bearer "+x.session.token)
	req.Header.Set("X-Request-Id", x.id)
	if c.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.etag != "" {
		req.Header.Set("If-Match", c.etag)
	}
	if c.once != "" {
		req.Header.Set("Idempotency-Key", c.once)
	}
	return req, nil
}

// ownHeaders are of the page's request and not of the one to the API.
var ownHeaders = map[string]bool{"Cookie": true, "Authorization": true, "Accept-Encoding": true, "Accept": true, "Range": true, "Expect": true, "Idempotency-Key": true, "Last-Event-Id": true}

// recorder keeps an answer of the API.
type recorder struct {
	header http.Header
	status int
	wrote  bool
	body   bytes.Buffer
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if !w.wrote {
		w.status, w.wrote = status, true
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	w.wrote = true
	return w.body.Write(p)
}

// segment is a name as one segment of a path.
func segment(name string) string { return url.PathEscape(name) }
