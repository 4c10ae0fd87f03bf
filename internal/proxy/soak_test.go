package proxy_test

import (
	"bufio"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/testenv"
)

// lateness reads an event stream to its end and is the longest that an event was under way, by the one clock of this machine.
func (g *gate) lateness(t *testing.T, want int) time.Duration {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.server.URL, http.NoBody)
	require.NoError(t, err)
	res, err := g.client.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, res.Body.Close()) }()
	worst, got := time.Duration(0), 0
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			sent, err := strconv.ParseInt(text, 10, 64)
			require.NoError(t, err)
			worst, got = max(worst, time.Since(time.Unix(0, sent))), got+1
		}
	}
	require.Equal(t, want, got)
	return worst
}

// B064: an event a second for half a minute; each arrives within 200 ms.
func TestSoakEventStream(t *testing.T) {
	testenv.Soak(t)
	g := newGate(t, gateOptions{answer: events(30, time.Second)})
	worst := g.lateness(t, 30)
	t.Logf("the latest of 30 events took %s", worst)
	require.LessOrEqual(t, worst, 200*time.Millisecond)
}

// zeros is a body of n bytes that nobody has in memory.
type zeros struct{ n int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), z.n))
	clear(p[:n])
	z.n -= int64(n)
	return n, nil
}

// upload sends n bytes and is the most memory that client, proxy and upstream, which share this process, took for it.
func (g *gate) upload(t *testing.T, n int64) (peak int64) {
	t.Helper()
	runtime.GC()
	before := usedNow()
	var most atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			most.Store(max(most.Load(), int64(usedNow())-int64(before)))
			select {
			case <-ticker.C:
			case <-stop:
				return
			}
		}
	}()
	res := g.do(t, "PUT", "/", &zeros{n})
	close(stop)
	<-done
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, strconv.FormatInt(n, 10), res.body)
	return most.Load()
}

func count(w http.ResponseWriter, r *http.Request) {
	n, _ := io.Copy(io.Discard, r.Body)
	_, _ = io.WriteString(w, strconv.FormatInt(n, 10))
}

// B064: 1 GiB passes with less than 64 MiB of memory.
func TestSoakUpload(t *testing.T) {
	testenv.Soak(t)
	g := newGate(t, gateOptions{answer: count})
	began := time.Now()
	peak := g.upload(t, 1<<30)
	t.Logf("1 GiB in %s; %d KiB of memory at most", time.Since(began).Round(time.Millisecond), peak>>10)
	require.Less(t, peak, int64(64<<20))
}
