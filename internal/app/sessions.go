package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pegel-dev/pegel/internal/decision"
	"github.com/pegel-dev/pegel/internal/jwt"
)

// firstKeys is how long a start waits for the keys of tokens: until then every session would be anybody.
const firstKeys = 2 * time.Second

// openSessions makes the verifier of the application's tokens; without a key set there is none. A key file must be fit to use now.
func (a *App) openSessions(ctx context.Context) error {
	a.observeSessions()
	setting := jwksURLSetting
	switch {
	case a.cfg.JWKSFile != "":
		setting = jwksFileSetting
	case a.cfg.JWKSURL == "":
		return nil
	}
	v, err := jwt.New(jwt.Config{
		File: a.cfg.JWKSFile, URL: a.cfg.JWKSURL, Issuer: a.cfg.JWTIssuer, Audience: a.cfg.JWTAudience,
		TenantClaim: a.cfg.JWTTenantClaim, UserClaim: a.cfg.JWTUserClaim, Log: a.log,
	})
	if err == nil && a.cfg.JWKSFile != "" {
		err = v.Load(ctx)
	}
	if err != nil {
		return &SettingError{Name: setting, Reason: err.Error()}
	}
	a.sessions = v
	return nil
}

// tokens is what the engine asks; nil when no token counts.
func (a *App) tokens() decision.TokenVerifier {
	if a.sessions == nil {
		return nil // and no interface that holds a nil
	}
	return a.sessions
}

// awaitSessions gives the keys a moment to arrive. A start never fails for them.
func (a *App) awaitSessions(ctx context.Context) {
	if a.sessions == nil {
		return
	}
	timer := time.NewTimer(firstKeys)
	defer timer.Stop()
	select {
	case <-a.sessions.Tried():
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (a *App) observeSessions() {
	a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pegel_jwt_keys", Help: "Keys that verify the application's tokens; 0: none was read yet.",
	}, func() float64 {
		if a.sessions == nil {
			return 0
		}
		return float64(a.sessions.Keys())
	}))
	for _, r := range jwt.Results() {
		a.metrics.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pegel_jwt_tokens_total", Help: "Tokens of the application, by what became of them.",
			ConstLabels: prometheus.Labels{"result": r.String()},
		}, func() float64 {
			if a.sessions == nil {
				return 0
			}
			return float64(a.sessions.Count(r))
		}))
	}
}

// webSockets is the cap on WebSockets, with its gauge.
func (a *App) webSockets() *decision.Holder {
	places := decision.NewHolder(a.cfg.WebSocketsPerTenant, a.cfg.WebSocketsTotal, nil)
	a.metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pegel_websockets", Help: "WebSockets open through the proxy now.",
	}, func() float64 { return float64(places.Held()) }))
	return places
}
