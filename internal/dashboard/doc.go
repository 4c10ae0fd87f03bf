// Package dashboard is the pages under /dashboard on the admin listener: what an operator sees and changes without writing
// HTTP by hand.
//
// It is a client of the administration's API, in the same process: every page and every change is a call of a route under
// /admin with the signed-in administrator's own token. So the dashboard can do nothing the API cannot, roles, validation
// and preconditions are checked in one place, and the audit log names the administrator. Numbers of now and of the past it
// reads where the API reads them (usage.Live, usage.History); how full a tenant's limits are it asks the decision engine.
//
// Pages are rendered here and work without scripts, except live numbers and charts. No page needs anything from another
// host, and the content security policy allows no inline script or style.
//
// A session is a cookie that only the token and its stored hash together can make (session.go); nothing is kept on the
// server, so any replica answers any request. While Postgres is away live numbers go on and the rest says so.
package dashboard
