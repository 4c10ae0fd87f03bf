package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/httpapi/gen"
	"github.com/pegel-dev/pegel/internal/journal"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/signin"
	"github.com/pegel-dev/pegel/internal/tenants"
	"github.com/pegel-dev/pegel/internal/usage"
)

// admin answers the routes under /admin. Its handlers run behind authenticate, require and validate (see routes.go), so
// what they decode has the form of the contract.
type admin struct {
	surface

	engine     Engine
	directory  *tenants.Directory
	repository tenants.Repository
	journal    journal.Reader
	incidents  alert.Incidents
	usage      usage.Live
	history    usage.History
	health     Health
	mode       ratelimit.Mode
	random     io.Reader
	changed    func(ctx context.Context)
	admins     *signin.Verifier
	large      chan struct{} // holds one token while a large body is being answered
	refused    func(audit.Refusal)
}

var _ gen.ServerInterface = (*admin)(nil)

// decodeBody reads the validated body. What still fails is a number of the wrong form (1e3 for an integer).
func decodeBody(c *gin.Context, into any) error {
	raw := of(c).body
	if len(raw) == 0 {
		return nil
	}
	err := json.Unmarshal(raw, into)
	if err == nil {
		return nil
	}
	return invalid(unmarshalPointer(raw, err), "must be a whole number, without exponent, of at most 64 bits")
}

// parseJSON reads a value for the schema; its numbers stay as they were written.
func parseJSON(raw []byte) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	err = d.Decode(&value)
	return value, err
}

// list answers a page.
func list[T, U any](a *admin, c *gin.Context, page tenants.List[T], err error, show func(*T) U) {
	if err != nil {
		a.fail(c, err)
		return
	}
	body := pageBody[U]{Items: make([]U, len(page.Items)), NextCursor: page.Next}
	for i := range page.Items {
		body.Items[i] = show(&page.Items[i])
	}
	a.writeJSON(c, http.StatusOK, body)
}

type pageBody[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"next_cursor,omitempty"`
}

// pageOf reads the parameters that all lists have; absent ones have the contract's defaults.
func pageOf(limit *int, cursor *string) tenants.Page {
	p := tenants.Page{Limit: 50}
	if limit != nil {
		p.Limit = *limit
	}
	if cursor != nil {
		p.Cursor = *cursor
	}
	return p
}

// tagged answers an object with its ETag.
func (a *admin) tagged(c *gin.Context, version int64, body any, err error) {
	if err != nil {
		a.fail(c, err)
		return
	}
	setETag(c, version)
	a.writeJSON(c, http.StatusOK, body)
}

// deleted answers a DELETE.
func (a *admin) deleted(c *gin.Context, err error) {
	if err != nil {
		a.fail(c, err)
		return
	}
	a.applied(c)
	c.Writer.WriteHeader(http.StatusNoContent)
	c.Writer.WriteHeaderNow()
}

// applied lets this replica see a change at once.
func (a *admin) applied(c *gin.Context) {
	if a.changed != nil {
		a.changed(c.Request.Context())
	}
}

// outcome is what a POST made.
type outcome struct {
	// status is 201, or 200 where nothing was created.
	status int
	// location of what was created; empty for nothing.
	location string
	// version for the ETag; 0: none.
	version int64
	// body is the answer; secret, when there is one, is what a replay leaves out.
	body any
	// replay is the body without its secret; nil: the same.
	replay any
}

// stored is an outcome as a replay finds it.
type stored struct {
	Location string          `json:"location,omitempty"`
	Version  int64           `json:"version,omitempty"`
	Body     json.RawMessage `json:"body"`
}

// post runs a change once per Idempotency-Key. A repeat answers what the first one did, without its secret; the same key on
// another request is a conflict. Keys are each administrator's own.
func (a *admin) post(c *gin.Context, key *string, change func(ctx context.Context) (outcome, error)) {
	ctx := c.Request.Context()
	if key == nil {
		done, err := change(ctx)
		a.finish(c, &done, err)
		return
	}
	var done outcome
	status, raw, replayed, err := a.repository.Idempotent(ctx, idempotencyScope(c, *key), requestHash(c),
		func(ctx context.Context) (int, []byte, error) {
			var err error
			if done, err = change(ctx); err != nil {
				return 0, nil, err
			}
			kept := done.body
			if done.replay != nil {
				kept = done.replay
			}
			body, err := json.Marshal(kept)
			if err != nil {
				return 0, nil, fmt.Errorf("keep the answer: %w", err)
			}
			raw, err := json.Marshal(stored{Location: done.location, Version: done.version, Body: body})
			return done.status, raw, err
		})
	if err != nil || !replayed {
		a.finish(c, &done, err)
		return
	}
	a.replay(c, status, raw)
}

func (a *admin) finish(c *gin.Context, done *outcome, err error) {
	if err != nil {
		a.fail(c, err)
		return
	}
	a.applied(c)
	a.send(c, done)
}

func (a *admin) send(c *gin.Context, o *outcome) {
	if o.location != "" {
		c.Header("Location", o.location)
	}
	if o.version > 0 {
		setETag(c, o.version)
	}
	a.writeJSON(c, o.status, o.body)
}

func (a *admin) replay(c *gin.Context, status int, raw []byte) {
	var kept stored
	if err := json.Unmarshal(raw, &kept); err != nil {
		a.fail(c, fmt.Errorf("read a kept answer: %w", err))
		return
	}
	c.Header("Idempotent-Replayed", "true")
	a.send(c, &outcome{status: status, location: kept.Location, version: kept.Version, body: kept.Body})
}

// idempotencyScope keeps administrators out of each other's keys.
func idempotencyScope(c *gin.Context, key string) string {
	who := actor(c)
	return who.Kind + " " + who.ID + " " + key
}

// requestHash tells a repeat from another request under the same key.
func requestHash(c *gin.Context) [sha256.Size]byte {
	raw := of(c).body
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s %s %d\n", c.Request.Method, c.Request.URL.RequestURI(), len(raw)) // a hash never fails
	_, _ = h.Write(raw)
	return [sha256.Size]byte(h.Sum(nil))
}
