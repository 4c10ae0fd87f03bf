package usage

import (
	"context"
	"time"
)

// Live is the picture of now over all replicas: for the admin API, the dashboard and alerts. It is at most a few seconds old,
// cheap to ask often (answers are shared for half a second), and never fails: what could not be reached is in Missing.
type Live interface {
	// Overview is the picture with the top biggest consumers, most refused addresses and most refused service tokens.
	Overview(ctx context.Context, top int) Overview
	// Tenant is one tenant's numbers; ok is false when no replica has counted anything of it lately.
	Tenant(ctx context.Context, id int64) (u TenantUsage, ok bool)
	// Levels is how high every tenant stands that made a request in the last minute, with each of its limits.
	Levels(ctx context.Context) []TenantUsage
}

// Overview is who uses what, now.
type Overview struct {
	At time.Time
	// Tenants are those with hits in the last 60 s: highest utilisation first, then most hits, then by name.
	Tenants []TenantUsage
	// High are the tenants at or above 80 % of a limit, longest first; at most MaxHigh of them.
	High []TenantUsage
	// Active is how many tenants there were with hits in the last 60 s.
	Active int
	// Total is everything that was decided in the last 60 s, Anonymous the part that no tenant pays for.
	Total, Anonymous Counts
	// Addresses and Services were refused most: addresses by the address limits, service tokens by those on their own address
	// (a bug report about the limits: a service's calls for a tenant are that tenant's).
	Addresses, Services []Refusals
	// WrongCredentials is how many requests presented a credential of ours that is not valid, in the last 60 s.
	WrongCredentials int64
	// Series is the last hour in steps of SeriesStep, oldest first, without gaps; the last point is the last full step.
	Series []Point
	// Replicas are those that reported within ReplicaTTL, by name and instance, this one among them.
	Replicas []Replica
	// Missing says what could not be asked for the other replicas' part: "redis", "postgres". Empty: all is in.
	Missing []string
	// Dropped events were not counted, Omitted tenants not reported: more tenants than a replica holds or tells of.
	Dropped, Omitted int64
}

const (
	// SeriesStep is the distance of Overview.Series' points.
	SeriesStep = 10 * time.Second
	// SeriesLength is how far back they go.
	SeriesLength = time.Hour
	// MaxHigh bounds Overview.High.
	MaxHigh = 200
	// ReplicaTTL is how long after its last report a replica is still shown.
	ReplicaTTL = 15 * time.Second
)

// Point is what happened per second in one step of Overview.Series.
type Point struct {
	At                       time.Time // where the step starts
	Allowed, Slowed, Refused float64   // hits per second
}

// TenantUsage is one tenant's numbers.
type TenantUsage struct {
	TenantID int64
	Tenant   string
	Plan     string
	// LimitName, Used, Limit and Utilization are those of the limit that stands highest.
	LimitName   string
	Used        int64
	Limit       int64
	Utilization float64
	// LastAt is when it made its last request, to the second.
	LastAt time.Time
	// HighSince is since when a limit of it has been at or above 80 %; zero when none is.
	HighSince time.Time
	// Last60s rolls by the second.
	Last60s Counts
	// Limits are its own limits that decided on it lately, by name.
	Limits []LimitUsage
}

// LimitUsage is how high a tenant stands against one of its limits.
type LimitUsage struct {
	Name string
	// Used and Limit are those of the last request that met the limit (of a limit per user or key: of that user's or key's).
	Used, Limit int64
	// Utilization is Used ÷ Limit then, Peak the highest of the last minute or so, each 0…1.
	Utilization, Peak float64
	// At is when that request was, to the second.
	At time.Time
	// HighSince is since when the limit has been at or above 80 %; zero when it is not. A stretch ends when five seconds of
	// requests stay below, or with a minute of silence.
	HighSince time.Time
	// Watches: the limit is in shadow mode and never refuses.
	Watches bool
}

// Refusals is how often a name was refused in this minute and the one before. Error bounds how much too high Count may be
// (more names than the table holds).
type Refusals struct {
	Name  string `json:"n"`
	Count int64  `json:"c"`
	Error int64  `json:"e,omitempty"`
}

// Replica is a replica and its stores, as it says itself.
type Replica struct {
	Name string `json:"name"`
	// Instance is one run of the process: a restart makes another.
	Instance string `json:"instance"`
	Version  string `json:"version"`
	// Status is that of /readyz: "ok", "degraded", "starting" or "draining".
	Status string `json:"status"`
	// Source is the store that decides now.
	Source string `json:"source"`
	// Redis and Postgres are "up", "down" or "unconfigured"; their breakers "closed", "half_open", "open" or empty.
	Redis           string `json:"redis"`
	Postgres        string `json:"postgres"`
	RedisBreaker    string `json:"redis_breaker,omitempty"`
	PostgresBreaker string `json:"postgres_breaker,omitempty"`
	// Since when Source decides; zero: not known.
	Since time.Time `json:"since"`
	// StartedAt and ReportedAt are by the replica's own clock.
	StartedAt  time.Time `json:"started_at"`
	ReportedAt time.Time `json:"reported_at"`
	// RequestLogDropped is how many rows of the request log it has lost since it started.
	RequestLogDropped int64 `json:"request_log_dropped,omitempty"`
}

// Kind is what a row of history is about.
type Kind uint8

// The kinds. Their numbers are in the database.
const (
	KindTenant Kind = iota // all of a tenant; of tenant 0: what no tenant pays for
	KindLimit              // one limit of a tenant
	KindUser               // one user of a tenant: the busiest of each minute
	KindKey                // one API key, or client key, of a tenant: the busiest of each minute
	KindTotal              // everything a replica decided, of tenant 0
)

// History is what was, from Postgres.
type History interface {
	// Usage is a tenant's history. It needs Postgres.
	Usage(ctx context.Context, q HistoryQuery) (HistorySeries, error)
}

// The steps of a history. Minutes, hours and days are each kept for a time of their own (Retention).
const (
	StepMinute      = time.Minute     //nolint:revive // a step's name, not its unit
	StepFiveMinutes = 5 * time.Minute //nolint:revive // as above
	StepHour        = time.Hour       //nolint:revive // as above
	StepDay         = 24 * time.Hour
)

// MaxHistoryPoints bounds the steps of one answer, MaxHistoryNames how many limits, users or keys it splits them by.
const (
	MaxHistoryPoints = 1500
	MaxHistoryNames  = 20
)

// HistoryQuery asks for [From, To), which are aligned to Step (UTC).
type HistoryQuery struct {
	TenantID int64
	From, To time.Time
	Step     time.Duration
	// By splits the numbers: KindLimit, KindUser, KindKey, or KindTenant for no split.
	By Kind
}

// HistorySeries is the answer. Steps without hits are left out.
type HistorySeries struct {
	// Names are in order of hits, most first, at most MaxHistoryNames; one empty name for KindTenant.
	Names []HistoryName
}

// HistoryName is one limit's, user's or key's part.
type HistoryName struct {
	Name   string
	Total  Counts
	Points []HistoryPoint
}

// HistoryPoint is one step.
type HistoryPoint struct {
	At time.Time
	Counts
}
