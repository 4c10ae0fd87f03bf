package httpapi

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/tenants"
)

const (
	// exportPage is how many rows an export reads and holds at a time.
	exportPage = 500
	// exportStall is how long a client may take over one page before it is given up.
	exportStall = 30 * time.Second
)

// export is a list as a stream, in NDJSON or CSV.
type export[T any] struct {
	name, format string
	// next reads a page.
	next func(ctx context.Context, p tenants.Page) (tenants.List[T], error)
	// object is a row of NDJSON; columns and cells are the header and a row of CSV.
	object  func(*T) any
	columns []string
	cells   func(*T) []string
}

// stream answers an export page by page: no connection to the store is held while the client reads, and no more than a page is in
// memory. An error before the first byte is a problem as always; one after it cuts the connection, so that nobody takes a part for
// the whole.
func stream[T any](a *admin, c *gin.Context, e *export[T]) {
	ctx := c.Request.Context()
	page, err := e.next(ctx, tenants.Page{Limit: exportPage})
	if err != nil {
		a.fail(c, err)
		return
	}
	c.Header("Content-Type", map[string]string{"csv": "text/csv; charset=utf-8; header=present"}[e.format])
	if e.format != "csv" {
		c.Header("Content-Type", "application/x-ndjson")
	}
	c.Header("Content-Disposition", `attachment; filename="`+e.name+"."+e.format+`"`)
	c.Writer.WriteHeader(http.StatusOK)
	control := http.NewResponseController(c.Writer)
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }() // the connection may carry other requests
	var chunk bytes.Buffer
	for first := true; ; first = false {
		if err := e.encode(&chunk, page.Items, first); err != nil {
			a.cut(c, err)
		}
		_ = control.SetWriteDeadline(a.now().Add(exportStall)) // without deadlines the server's own bounds hold
		if _, err := c.Writer.Write(chunk.Bytes()); err != nil {
			a.cut(c, err)
		}
		c.Writer.Flush()
		if page.Next == "" || asksHead(c.Request) {
			return
		}
		chunk.Reset()
		if page, err = e.next(ctx, tenants.Page{Limit: exportPage, Cursor: page.Next}); err != nil {
			a.cut(c, err)
		}
	}
}

// cut ends an answer that has begun and cannot be finished.
func (a *admin) cut(c *gin.Context, err error) {
	level := slog.LevelWarn
	if c.Request.Context().Err() != nil {
		level = slog.LevelDebug // the client left
	}
	a.log.LogAttrs(c.Request.Context(), level, "export was cut off",
		slog.String("request_id", requestID(c)), slog.String("route", c.FullPath()), slog.Any("error", err))
	panic(http.ErrAbortHandler)
}

// encode writes rows; first is true for the page that CSV's header goes before.
func (e *export[T]) encode(chunk *bytes.Buffer, rows []T, first bool) error {
	if e.format != "csv" {
		encoder := json.NewEncoder(chunk)
		for i := range rows {
			if err := encoder.Encode(e.object(&rows[i])); err != nil {
				return fmt.Errorf("encode a row: %w", err)
			}
		}
		return nil
	}
	w := csv.NewWriter(chunk)
	if first {
		_ = w.Write(e.columns) // a buffer takes everything
	}
	for i := range rows {
		cells := e.cells(&rows[i])
		for j := range cells {
			cells[j] = inertCell(cells[j])
		}
		_ = w.Write(cells)
	}
	w.Flush()
	return nil
}

// inertCell keeps spreadsheets from running a cell as a formula: one that begins like a formula gets an apostrophe in front, which
// they take for the mark of a text. Leading white space does not hide a formula from them.
func inertCell(cell string) string {
	bare := strings.TrimLeft(cell, " \t\r\n\v\f\u00a0\ufeff")
	if len(bare) != len(cell) && bare == "" {
		return cell
	}
	for _, sign := range []string{"=", "+", "-", "@", "＝", "＋", "－", "＠"} {
		if strings.HasPrefix(bare, sign) {
			return "'" + cell
		}
	}
	if strings.HasPrefix(cell, "\t") || strings.HasPrefix(cell, "\r") || strings.HasPrefix(cell, "\n") {
		return "'" + cell
	}
	return cell
}
