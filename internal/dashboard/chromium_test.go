package dashboard_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// patience bounds one step in the browser, on a busy machine.
const patience = 60 * time.Second

// tab is a page in a real Chromium.
type tab struct {
	t   *testing.T
	ctx context.Context
	url string // of the server
	// faults are errors the page's scripts and the content policy reported.
	faults chan string
}

type step = chromedp.Action[chromedp.Void]

// chromium starts a browser of the test's own, with one tab. Debian's package is `chromium` (scripts/setup installs it).
func chromium(t *testing.T, url string) *tab {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	require.NotEmpty(t, path, "no Chromium on this machine: apt-get install chromium")
	b := &tab{t: t, url: url, faults: make(chan string, 100)}
	ctx, stop := chromedp.NewContext(context.WithoutCancel(t.Context()), chromedp.WithAllocatorOptions(
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(2*patience),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("hide-scrollbars", true),
	), chromedp.WithListener(b.note))
	b.ctx = ctx
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Logf("end Chromium: %v", err)
		}
		stop()
	})
	require.NoError(t, chromedp.Do(ctx)) // the first run owns the browser, so it has no deadline
	return b
}

// note keeps what a page's scripts and the browser complain about.
func (b *tab) note(event any) {
	line := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		line = (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error()
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError && !strings.Contains(e.Entry.Text, "the server responded with a status") {
			line = e.Entry.Text
		}
	}
	if line == "" {
		return
	}
	select {
	case b.faults <- line:
	default:
	}
}

// run does steps in order, each of which must come to its end.
func (b *tab) run(steps ...step) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, steps...))
}

// open goes to a page and waits until it is there.
func (b *tab) open(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.url+path), chromedp.WaitReady(chromedp.CSS("main")))
}

// size is a window: 1280×900 of a desk, 390×844 of a phone.
func (b *tab) size(width, height int64) {
	b.t.Helper()
	b.run(chromedp.EmulateViewport(width, height))
}

// colours has the page believe in a system of this theme.
func (b *tab) colours(theme string) {
	b.t.Helper()
	b.run(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}})
		return err
	}))
}

// signIn goes through the sign-in page.
func (b *tab) signIn(token string) {
	b.t.Helper()
	b.open("/dashboard/sign-in")
	b.run(chromedp.SendKeys(chromedp.CSS("#token"), token), chromedp.Submit(chromedp.CSS("#token")), chromedp.WaitVisible(chromedp.CSS(".side nav")))
}

// eval runs a script in the page.
func eval[T any](b *tab, script string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	require.NoError(b.t, err)
	return v
}

// until waits until a script says true, also over a page that is just being left.
func (b *tab) until(script, what string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](script)); err == nil && ok {
			return
		}
		select {
		case <-ctx.Done():
			require.Fail(b.t, "it does not come: "+what, "%s", eval[string](b, `document.body.innerText`))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// sees waits until the page says something.
func (b *tab) sees(words string) {
	b.t.Helper()
	b.until(fmt.Sprintf(`document.body.innerText.includes(%q)`, words), words)
}

// accessible requires that axe-core finds nothing on the page.
func (b *tab) accessible(what string) {
	b.t.Helper()
	axe, err := os.ReadFile("testdata/axe.min.js")
	require.NoError(b.t, err)
	if !eval[bool](b, `typeof axe !== "undefined"`) {
		eval[bool](b, string(axe)+";true")
	}
	found := eval[[]string](b, `axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.map((v) => v.id + ": " + v.nodes.map((n) => n.target + " " + (n.any[0]?.message || n.failureSummary)).slice(0, 4).join(" | ")))`)
	if len(found) > 0 {
		b.t.Errorf("%s is not accessible: %q", what, found) // the other pages are worth looking at all the same
	}
}

// fits requires that nothing is wider than the window.
func (b *tab) fits(what string) {
	b.t.Helper()
	over := eval[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`)
	if over > 0 {
		b.t.Errorf("%s is %d pixels wider than its window", what, over)
	}
}

// picture keeps a screenshot of the whole page in the repository's ignored folder screenshots, when PEGEL_PICTURES is set.
func (b *tab) picture(name string) {
	b.t.Helper()
	if os.Getenv("PEGEL_PICTURES") == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	require.NoError(b.t, err)
	dir := filepath.Join("..", "..", "screenshots")
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600))
}

// clean requires that no script failed and that the content policy blocked nothing.
func (b *tab) clean() {
	b.t.Helper()
	select {
	case line := <-b.faults:
		require.Fail(b.t, "the page reported an error", line)
	default:
	}
}
