package alert_test

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/alert"
	"github.com/pegel-dev/pegel/internal/testenv"
)

func TestWebhookAddresses(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"https://example.org/x?token=1", "http://localhost:9/x", "http://127.0.0.1", "http://[::1]:80/", "http://127.9.9.9"} {
		require.NoError(t, alert.CheckHookURL(url, false), url)
	}
	for _, url := range []string{"http://example.org", "http://10.0.0.1", "http://localhost.example.org", "http://127.0.0.1.nip.io"} {
		require.Error(t, alert.CheckHookURL(url, false), url)
		require.NoError(t, alert.CheckHookURL(url, true), url)
	}
	for _, url := range []string{"", "ftp://x", "https://", "https://u:p@x", "file:///etc/passwd", "//x"} {
		require.Error(t, alert.CheckHookURL(url, true), url)
	}
}

func TestWebhookSecrets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		hookSecret: "01234567890123456789012345678901", strings.TrimPrefix(hookSecret, "whsec_"): "01234567890123456789012345678901",
		"a text that is no base64, long enough": "a text that is no base64, long enough",
	} {
		got, err := alert.ParseHookSecret(text)
		require.NoError(t, err, text)
		require.Equal(t, want, string(got))
	}
	for _, text := range []string{"", "short", "whsec_", "whsec_!!!", "whsec_" + strings.Repeat("A", 200), strings.Repeat("x y", 100)} {
		_, err := alert.ParseHookSecret(text)
		require.Error(t, err, text)
	}
}

// poster posts to a handler, once.
func postTo(t *testing.T, handler http.HandlerFunc) alert.Fate {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return postURL(t.Context(), t, server.URL+"/canary")
}

func postURL(ctx context.Context, t *testing.T, url string) alert.Fate {
	t.Helper()
	key, err := alert.ParseHookSecret(hookSecret)
	require.NoError(t, err)
	p, err := alert.NewPoster(url, key, "", nil)
	require.NoError(t, err)
	m := alert.Message{MessageID: "0192-1", Notice: alert.Notice{
		Kind: alert.TenantHigh, Occasion: alert.OnOpen, Facts: alert.Facts{Tenant: "school-17", TenantName: "\u202e\r\n</script>", Limit: "m"}, Made: noon(),
	}}
	return p.Send(ctx, &m, time.Now())
}

// A receiver that verifies as the public library does, freshness included.
func TestWebhooksVerify(t *testing.T) {
	t.Parallel()
	verifier, err := standardwebhooks.NewWebhook(hookSecret)
	require.NoError(t, err)
	fate := postTo(t, func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil || verifier.Verify(raw, r.Header) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		raw[0]++
		if verifier.Verify(raw, r.Header) == nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	require.Equal(t, alert.Fate{Done: true, Sent: true}, fate)
}

func TestWebhooksGoNowhereElse(t *testing.T) {
	t.Parallel()
	var reached atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer other.Close()
	for _, code := range []int{301, 302, 303, 307, 308} {
		fate := postTo(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, code) })
		require.False(t, fate.Sent)
		require.Contains(t, fate.Error, "redirects are not followed")
	}
	require.False(t, reached.Load())
}

func TestWebhooksThatFailSayWhetherTheyMayHaveArrived(t *testing.T) {
	t.Parallel()
	fate := postTo(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	require.Equal(t, alert.Fate{Known: true, Error: "the receiver answered 503"}, fate)
	fate = postTo(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) })
	require.True(t, fate.Done, "it asks for no more")

	fate = postURL(t.Context(), t, "http://127.0.0.1:1/canary")
	require.True(t, fate.Known)
	require.Contains(t, fate.Error, "refused")
	require.NotContains(t, fate.Error, "canary", "the address may be the secret")

	// A receiver whose certificate has run out got nothing, however often: it must not be given up after two attempts.
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer secure.Close()
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	plain := httptest.NewServer(secure.Config.Handler)
	defer plain.Close()
	for _, url := range []string{secure.URL, strings.Replace(plain.URL, "http:", "https:", 1)} {
		fate = postURL(t.Context(), t, url+"/canary")
		require.True(t, fate.Known, fate.Error)
		require.False(t, fate.Done)
		require.NotContains(t, fate.Error, "canary")
	}

	addr := testenv.SilentServer(t).Addr
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	fate = postURL(ctx, t, "http://"+addr+"/canary")
	require.False(t, fate.Known, "it may have arrived")
	require.NotContains(t, fate.Error, "canary")
}

// An answer without end is not read.
func TestWebhookAnswersAreBounded(t *testing.T) {
	t.Parallel()
	var written atomic.Int64
	fate := postTo(t, func(w http.ResponseWriter, r *http.Request) {
		block := make([]byte, 64<<10)
		for r.Context().Err() == nil && written.Load() < 1<<30 {
			n, err := w.Write(block)
			written.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	require.True(t, fate.Sent)
	require.Less(t, written.Load(), int64(100<<20))
}
