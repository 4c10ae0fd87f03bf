// Package httpapi is Pegel's HTTP interface: the decisions and their status on the public listener, the administration on
// the admin listener, health and the documentation on both. It turns requests into calls of internal/decision and of the
// repository behind internal/tenants, and decides nothing itself. Only internal/app may call it; gin stays inside.
//
// routes.go shows every route and the order of the middleware, errors.go is the only mapping of errors to problems.
// api/openapi.yaml is the contract: the admin routes are validated against it, the bodies of the hot routes (/v1/check and
// its batch) by a hand-written decoder that a differential test holds to the same document.
//
// The handlers keep no state and are safe for concurrent use. When Redis is away, decisions come from wherever the store
// behind the engine gets them; when Postgres is away, public routes go on and admin routes answer 503 within 2 s.
package httpapi
