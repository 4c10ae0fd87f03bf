package dashboard_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// Guarantee: with the keyboard alone: Enter in a field of a plan saves the plan with all its limits. A session that ends in the
// middle of a form costs a sign-in and one more press of a button, in a real browser.
func TestKeyboardAndSessionInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, token := w.administrator(tenants.Admin)
	_, second := w.administrator(tenants.Operator)
	b := chromium(t, w.admin.URL)
	b.size(390, 844)
	b.signIn(token)
	b.open("/dashboard/plans/light")
	empty := func() { eval[bool](b, `document.querySelector("#plan-title").value = ""; true`) }
	empty()
	b.run(chromedp.SendKeys(chromedp.CSS("#plan-title"), "Light\r"))
	b.sees("Plan saved.")
	plan, err := w.repository.Plan(t.Context(), "light")
	require.NoError(t, err)
	require.Equal(t, "Light", plan.Title)
	require.Len(t, plan.Limits, 1)

	b.open("/dashboard/plans/light")
	require.NoError(t, w.repository.RevokeAdminToken(t.Context(), testActor, id))
	w.refresh()
	empty()
	b.run(chromedp.SendKeys(chromedp.CSS("#plan-title"), "Light and <b>bright</b>\r"))
	b.sees("Your session has ended.")
	b.fits("the sign-in with a form that is kept")
	b.accessible("the sign-in with a form that is kept")
	b.run(chromedp.SendKeys(chromedp.CSS("#token"), second+"\r"))
	b.sees("Not saved yet")
	b.sees("Light and <b>bright</b>")
	b.fits("the form that was kept")
	b.accessible("the form that was kept")
	b.picture("again-390")
	b.run(chromedp.Click(chromedp.CSS("#content .main")))
	b.sees("Plan saved.")
	plan, err = w.repository.Plan(t.Context(), "light")
	require.NoError(t, err)
	require.Equal(t, "Light and <b>bright</b>", plan.Title)
	b.clean()
}

// Guarantee: the API's page comes up in both themes and fits a desk and a phone, loads nothing from elsewhere, and neither its
// scripts nor the content policy complain.
func TestAPIPageInABrowser(t *testing.T) {
	t.Parallel()
	s := startService(t)
	b := chromium(t, s.public)
	for _, theme := range []string{"light", "dark"} {
		b.colours(theme)
		for _, width := range []int64{1280, 390} {
			b.size(width, 844)
			b.run(chromedp.Navigate(s.public+"/docs"), chromedp.WaitVisible(chromedp.CSS(".opblock")))
			b.sees("/v1/check")
			ink := eval[int](b, `parseInt(getComputedStyle(document.querySelector(".info .title")).color.match(/\d+/)[0])`)
			require.Equal(t, theme == "dark", ink > 128, "%s: the ink is %d of 255 bright", theme, ink)
			b.fits(theme)
			b.picture("docs-" + theme + "-" + map[int64]string{1280: "1280", 390: "390"}[width])
			b.run(chromedp.Click(chromedp.CSS(".opblock-summary-control")))
			b.until(`document.querySelector(".opblock-body") !== null`, "an operation opens")
			b.fits(theme + ", opened")
			b.clean()
		}
	}
}
