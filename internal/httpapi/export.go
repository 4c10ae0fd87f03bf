package httpapi

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/tenants"
)

const (
	// exportPage is how many rows an export reads at a time: no transaction stays open while a client reads slowly.
	exportPage = 2_000
	// exportPatience is how long a client may take to read a page before it is given up.
	exportPatience = time.Minute
)

// The forms of an export.
const (
	formatCSV   = "csv"
	mediaNDJSON = "application/x-ndjson"
	mediaCSV    = "text/csv; charset=utf-8"
)

// export is a list as a stream.
type export[T any] struct {
	// name of the file.
	name string
	// page reads a page of the list.
	page func(ctx context.Context, p tenants.Page) (tenants.List[T], error)
	// show is an item as a line of NDJSON.
	show func(*T) any
	// columns and cells are an item as a line of CSV.
	columns []string
	cells   func(*T) []string
}

// send streams the list as NDJSON, or as CSV when format says so. What fails before the first line is a problem. What fails later
// cuts the connection without the stream's end, so that nobody takes a part for the whole.
func (e *export[T]) send(a *admin, c *gin.Context, format string) {
	ctx := c.Request.Context()
	list, err := e.page(ctx, tenants.Page{Limit: exportPage})
	if err != nil {
		a.fail(c, err)
		return
	}
	write, flush := e.ndjson(c.Writer)
	media, ending := mediaNDJSON, "ndjson"
	if format == formatCSV {
		write, flush = e.csv(c.Writer)
		media, ending = mediaCSV, formatCSV
	}
	c.Header("Content-Type", media)
	c.Header("Content-Disposition", `attachment; filename="`+e.name+"."+ending+`"`)
	c.Writer.WriteHeader(http.StatusOK)
	connection := http.NewResponseController(c.Writer)
	defer func() { _ = connection.SetWriteDeadline(time.Time{}) }() // the connection may carry other requests
	for {
		_ = connection.SetWriteDeadline(a.now().Add(exportPatience)) // a writer without deadlines belongs to a test
		for i := range list.Items {
			if err = write(&list.Items[i]); err != nil {
				break
			}
		}
		if err == nil {
			err = flush()
		}
		if err == nil && (list.Next == "" || asksHead(c.Request)) {
			return
		}
		if err == nil {
			list, err = e.page(ctx, tenants.Page{Cursor: list.Next, Limit: exportPage})
		}
		if err != nil {
			level := slog.LevelWarn
			if ctx.Err() != nil {
				level = slog.LevelDebug // the client left
			}
			a.log.LogAttrs(ctx, level, "an export was cut", slog.String("request_id", requestID(c)), slog.String("export", e.name), slog.Any("error", err))
			panic(http.ErrAbortHandler)
		}
	}
}

func (e *export[T]) ndjson(w io.Writer) (write func(*T) error, flush func() error) {
	encoder := json.NewEncoder(w)
	return func(item *T) error { return encoder.Encode(e.show(item)) }, func() error { return nil }
}

func (e *export[T]) csv(w io.Writer) (write func(*T) error, flush func() error) {
	writer := csv.NewWriter(w)
	_ = writer.Write(e.columns) // its error stays with the writer
	write = func(item *T) error {
		cells := e.cells(item)
		for i := range cells {
			cells[i] = csvCell(cells[i])
		}
		return writer.Write(cells)
	}
	return write, func() error { writer.Flush(); return writer.Error() }
}

// csvCell keeps a text from being a formula in the spreadsheet that opens it: a client chooses many of these texts. What cannot be seen
// in front does not hide a formula from a spreadsheet.
func csvCell(s string) string {
	bare := strings.TrimLeftFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.In(r, unicode.Cc, unicode.Cf) })
	if s != "" && strings.IndexByte("\t\r\n", s[0]) >= 0 || strings.IndexAny(bare, "=+-@＝＋－＠−") == 0 {
		return "'" + s
	}
	return s
}
