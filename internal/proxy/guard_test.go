package proxy_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pegel-dev/pegel/internal/proxy"
)

const (
	bothFramings = "more than once or together"
	bareLineFeed = "bare line feed"
	folded       = "folded"
)

// ambiguous are the shapes that another server might read differently, and what their refusal says.
var ambiguous = map[string]struct{ request, says string }{
	"length and chunks":         {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", bothFramings},
	"chunks and length":         {"POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: Chunked\r\nA: b\r\ncontent-length: 4\r\n\r\n3\r\nabc\r\n0\r\n\r\n", bothFramings},
	"the same length twice":     {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", bothFramings},
	"chunked twice":             {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", bothFramings},
	"a list of lengths":         {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc", "Content-Length is not"},
	"a length with a sign":      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", "Content-Length is not"},
	"a padded length":           {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + strings.Repeat("0", 64) + "3\r\n\r\nabc", "Content-Length is not"},
	"another coding":            {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "not just chunked"},
	"a hidden coding":           {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", "not just chunked"},
	"a padded coding":           {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + strings.Repeat(" ", 64) + "chunked\r\n\r\n0\r\n\r\n", "not just chunked"},
	"chunks in HTTP/1.0":        {"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "needs HTTP/1.1"},
	"a folded value":            {"POST / HTTP/1.1\r\nHost: x\r\nA: b\r\n c: d\r\nContent-Length: 3\r\n\r\nabc", folded},
	"a folded coding":           {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n", "not just chunked"},
	"a space before all":        {"POST / HTTP/1.1\r\n Host: x\r\nContent-Length: 3\r\n\r\nabc", folded},
	"only line feeds":           {"POST / HTTP/1.1\nHost: x\nContent-Length: 3\n\nabc", bareLineFeed},
	"one line feed":             {"POST / HTTP/1.1\r\nHost: x\r\nA: b\nContent-Length: 3\r\n\r\nabc", bareLineFeed},
	"a line feed ends the head": {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\nabc", bareLineFeed},
	"a carriage return within":  {"POST / HTTP/1.1\r\nHost: x\r\nA: b\rContent-Length: 3\r\n\r\nabc", "carriage return"},
	"two carriage returns":      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\r\n\r\nabc", "carriage return"},
}

// B063: an ambiguous request gets 400 and a closed connection; the upstream never hears of it, and no handler either.
func TestAmbiguousFramingIsRefused(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{})
	for name, c := range ambiguous {
		reader := bufio.NewReader(g.raw(t, c.request+"GET /behind HTTP/1.1\r\nHost: x\r\n\r\n"))
		res, err := http.ReadResponse(reader, nil)
		require.NoError(t, err, name)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err, name)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusBadRequest, res.StatusCode, "%s: %s", name, body)
		require.True(t, res.Close, name)
		var problem struct {
			Detail    string
			RequestID string `json:"request_id"`
		}
		require.NoError(t, json.Unmarshal(body, &problem), "%s: %s", name, body)
		require.Contains(t, problem.Detail, c.says, name)
		require.NotEmpty(t, problem.RequestID, name)
		require.Equal(t, problem.RequestID, res.Header.Get("X-Request-Id"), name)
		_, err = reader.ReadByte()
		require.Error(t, err, "%s: closed", name)
	}
	require.Zero(t, g.calls.Load())
}

// Guarantee: a request that came before an ambiguous one, in one packet with it or not, is answered.
func TestRequestsBeforeAnAmbiguousOneAreAnswered(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{answer: func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%q", body)
	}})
	for before, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n":                                                               `""`,
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc":                                      `"abc"`,
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n":   `"abc"`,
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc":              `"abc"`,
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n": `"abc"`,
	} {
		for name, c := range ambiguous {
			reader := bufio.NewReader(g.raw(t, before+c.request))
			var statuses []int
			for {
				res, err := http.ReadResponse(reader, nil)
				if err != nil {
					break
				}
				body, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.NoError(t, res.Body.Close())
				if statuses == nil && res.StatusCode == http.StatusOK {
					require.Equal(t, want, string(body))
				}
				if res.StatusCode != http.StatusContinue {
					statuses = append(statuses, res.StatusCode)
				}
			}
			requests := strings.Count(before, "HTTP/1.1")
			require.Len(t, statuses, requests+1, "%q, then %s", before, name)
			for _, status := range statuses[:requests] {
				require.Equal(t, http.StatusOK, status, "%q, then %s: %v", before, name, statuses)
			}
			require.Equal(t, http.StatusBadRequest, statuses[requests], "%q, then %s", before, name)
		}
	}
}

// Guarantee: a body that cannot be read in one way is refused by the handler that reads it.
func TestAmbiguousChunksAreRefused(t *testing.T) {
	t.Parallel()
	g := newGate(t, gateOptions{answer: func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }})
	for _, body := range []string{
		"3\nabc\r\n0\r\n\r\n", "3\r\nabc\n0\r\n\r\n", "3;a\nb\r\nabc\r\n0\r\n\r\n", "3\r\nabcd\r\n0\r\n\r\n", "-3\r\nabc\r\n0\r\n\r\n", "0x3\r\nabc\r\n0\r\n\r\n",
		"3\r\nabc\r\n0\n\r\n", "3\r\nabc\r\n0\r\nA: b\n\r\n", "3\r\nabc\r\n0\r\nA: b\r\n c\r\n\r\n", "10000000000000000\r\nabc\r\n0\r\n\r\n",
	} {
		res, err := http.ReadResponse(bufio.NewReader(g.raw(t, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+body)), nil)
		require.NoError(t, err, "%q", body)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusBadRequest, res.StatusCode, "%q", body)
		require.True(t, res.Close, "%q", body)
	}
}

// pieces is a connection that hands its bytes over in given pieces, and a listener that accepts it once.
type pieces struct {
	net.Conn
	net.Listener

	left     [][]byte
	answered bytes.Buffer
}

func (p *pieces) Accept() (net.Conn, error) { return p, nil }
func (p *pieces) Close() error              { return nil }

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left[0])
	if p.left[0] = p.left[0][n:]; len(p.left[0]) == 0 {
		p.left = p.left[1:]
	}
	return n, nil
}

func (p *pieces) Write(b []byte) (int, error) { return p.answered.Write(b) }

// guarded reads text through a guard in pieces that are cut at random, with buffers of any size. answer is what the guard sent.
func guarded(t *rapid.T, text []byte) (passed []byte, answer string) {
	source := &pieces{}
	for rest := text; len(rest) > 0; {
		n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
		source.left = append(source.left, rest[:n])
		rest = rest[n:]
	}
	conn, err := proxy.Guard(source, &http.Server{}).Accept()
	require.NoError(t, err)
	buffer := make([]byte, rapid.SampledFrom([]int{1, 2, 7, 4096}).Draw(t, "buffer"))
	for {
		n, err := conn.Read(buffer)
		passed = append(passed, buffer[:n]...)
		if errors.Is(err, io.EOF) {
			return passed, source.answered.String()
		}
		require.NoError(t, err)
	}
}

// request writes one with one framing, as Go's client does.
func request(t *rapid.T) []byte {
	body := rapid.SliceOfN(rapid.SampledFrom([]byte("a\r\n :0")), 0, 100).Draw(t, "body")
	r, err := http.NewRequest(rapid.SampledFrom([]string{"GET", "POST", "OPTIONS"}).Draw(t, "method"), "http://x/a?b=c", bytes.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("X-Long", strings.Repeat("Content-Length: 9 ", rapid.IntRange(0, 20).Draw(t, "long")))
	if rapid.Bool().Draw(t, "chunked") {
		r.ContentLength = -1
		if rapid.Bool().Draw(t, "trailer") {
			r.Trailer = http.Header{"Content-Md5": {"Transfer-Encoding: chunked"}}
		}
	}
	var text bytes.Buffer
	require.NoError(t, r.Write(&text))
	return text.Bytes()
}

// Property: what is framed in one way passes as it is, however it is cut into packets and whatever its bodies hold; a first ambiguous
// request is found behind any number of such, and never passes as a whole head.
func TestGuardFindsTheFirstAmbiguousRequest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var good []byte
		for range rapid.IntRange(0, 4).Draw(t, "requests") {
			good = append(good, request(t)...)
		}
		passed, answer := guarded(t, good)
		require.Empty(t, answer, "%q", good)
		require.Equal(t, string(good), string(passed))

		name := rapid.SampledFrom(names()).Draw(t, "ambiguous")
		passed, answer = guarded(t, append(append([]byte{}, good...), ambiguous[name].request...))
		require.Contains(t, answer, ambiguous[name].says)
		require.GreaterOrEqual(t, len(passed), len(good))
		_, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(passed[len(good):])))
		require.Error(t, err, "%s: %q", name, passed[len(good):])
	})
}

func names() []string {
	var all []string
	for name := range ambiguous {
		all = append(all, name)
	}
	return all
}

// FuzzGuard: whatever arrives, what passes is a prefix of it, and every request that net/http reads from it has one framing.
func FuzzGuard(f *testing.F) {
	for _, c := range ambiguous {
		f.Add([]byte(c.request))
		f.Add([]byte("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;a\r\nabc\r\n0\r\nA: b\r\n\r\n" + c.request))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		conn, err := proxy.Guard(&pieces{left: [][]byte{text}}, &http.Server{}).Accept()
		require.NoError(t, err)
		passed, _ := io.ReadAll(conn)
		require.True(t, bytes.HasPrefix(text, passed))
		for len(passed) > 0 {
			unread := bytes.NewReader(passed)
			reader := bufio.NewReader(unread)
			r, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			_, err = io.Copy(io.Discard, r.Body)
			if err != nil {
				return
			}
			head, _, whole := bytes.Cut(passed, []byte("\r\n\r\n"))
			require.True(t, whole)
			require.Equal(t, bytes.Count(head, []byte("\r\n")), bytes.Count(head, []byte("\n")))
			require.NotRegexp(t, `\r\n[ \t]`, string(head))
			require.LessOrEqual(t, len(framingHeaders.FindAll(head, -1)), 1, "%q", head)
			passed = passed[len(passed)-unread.Len()-reader.Buffered():]
		}
	})
}

var framingHeaders = regexp.MustCompile(`(?i)\n(content-length|transfer-encoding):`)

// BenchmarkGuard is what reading along costs a request of a browser's size.
func BenchmarkGuard(b *testing.B) {
	head := "GET /api/courses/17/lessons?page=2 HTTP/1.1\r\nHost: api.example.org\r\n" + strings.Repeat("X-Header-Of-A-Browser: some value of forty bytes, as usual\r\n", 12) + "\r\n"
	source := &pieces{}
	conn, err := proxy.Guard(source, &http.Server{}).Accept()
	require.NoError(b, err)
	buffer := make([]byte, 4096)
	pieces := [][]byte{[]byte(head)}
	b.ReportAllocs()
	for b.Loop() {
		source.left = append(source.left[:0], pieces...)
		if n, err := conn.Read(buffer); err != nil || n != len(head) {
			b.Fatal(n, err)
		}
	}
}
