package dashboard

import (
	"bytes"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const eventStream = "text/event-stream"

// slowestEvent is how long a browser may take to read one event before it is given up.
const slowestEvent = 15 * time.Second

// streamCount counts the live pages of one replica, at most maxStreams, by the token their administrator signed in with. The zero
// value is ready.
type streamCount struct {
	mu  sync.Mutex
	all int
	by  map[string]int
}

// take reports whether who may have one more; give brings it back.
func (c *streamCount) take(who string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= maxStreams || c.by[who] >= maxStreamsEach {
		return false
	}
	if c.by == nil {
		c.by = map[string]int{}
	}
	c.all++
	c.by[who]++
	return true
}

func (c *streamCount) give(who string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.by[who]--; c.by[who] == 0 {
		delete(c.by, who)
	}
}

// stream keeps the live parts of a page up to date (server-sent events) until the browser leaves, the session ends, what is
// shown is gone, or the replica drains. Each event is the page's part "live", whole.
func (x *exchange) stream(now func() (v *view, there bool)) {
	if x.r.Header.Get("Accept") != eventStream {
		http.Error(x.w, "This is an event stream.", http.StatusNotAcceptable)
		return
	}
	who := sessionName(&x.session.who)
	if !x.d.streams.take(who) {
		x.w.Header().Set("Retry-After", "30")
		http.Error(x.w, "Too many live pages are open on this replica.", http.StatusServiceUnavailable)
		return
	}
	defer x.d.streams.give(who)
	out := http.NewResponseController(x.w)
	if err := out.SetReadDeadline(time.Time{}); err != nil { // the bound on reading a request would cut the stream
		x.d.Log.LogAttrs(x.r.Context(), slog.LevelDebug, "live page keeps its read deadline", slog.String("request_id", x.id), slog.Any("error", err))
	}
	x.w.Header().Set("Content-Type", eventStream)
	x.w.Header().Set("X-Accel-Buffering", "no") // nginx would hold it back
	x.w.WriteHeader(http.StatusOK)

	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	for {
		if x.d.current(x.r) == nil {
			x.event(out, "over", nil)
			return
		}
		v, there := now()
		if !there {
			x.event(out, "over", nil)
			return
		}
		var part bytes.Buffer
		if err := x.d.pages.write(&part, v.Page, "live", v); err != nil {
			x.d.Log.LogAttrs(x.r.Context(), slog.LevelError, "live page could not be made", slog.String("request_id", x.id), slog.Any("error", err))
			return
		}
		if !x.event(out, "live", part.Bytes()) {
			return
		}
		select {
		case <-x.r.Context().Done():
			return
		case <-x.d.Done:
			return
		case <-tick.C:
		}
	}
}

// event sends one event; false: the browser has gone.
func (x *exchange) event(out *http.ResponseController, name string, data []byte) bool {
	var b bytes.Buffer
	b.WriteString("event: " + name + "\n")
	for line := range bytes.Lines(data) {
		b.WriteString("data: ")
		// A CR ends a line here as an LF does: one inside a name would begin a field of whoever chose the name.
		b.Write(bytes.ReplaceAll(bytes.TrimRight(line, "\r\n"), []byte("\r"), []byte(" ")))
		b.WriteByte('\n')
	}
	if len(data) == 0 {
		b.WriteString("data:\n")
	}
	b.WriteByte('\n')
	if err := out.SetWriteDeadline(x.d.Now().Add(slowestEvent)); err != nil {
		return false
	}
	if _, err := x.w.Write(b.Bytes()); err != nil {
		return false
	}
	return out.Flush() == nil
}
