package app

import (
	"net/http"

	"github.com/pegel-dev/pegel/internal/dashboard"
	"github.com/pegel-dev/pegel/internal/httpapi"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/signin"
)

// pages makes the dashboard over the admin API.
func (a *App) pages(common httpapi.Common, admins *signin.Verifier) func(api http.Handler) (http.Handler, error) {
	return func(api http.Handler) (http.Handler, error) {
		return dashboard.New(dashboard.Config{
			API: api, SignIn: admins, Engine: common.Engine, Live: a.reporter, History: postgres.NewUsageHistory(a.repository),
			Directory: a.directory, Addresses: common.Addresses, Now: a.now, Log: a.log, Done: a.draining,
		})
	}
}
