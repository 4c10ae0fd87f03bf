package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/user"
	"strings"
	"time"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// MigrateUp applies every pending step to the database, saying on w what it does.
func MigrateUp(ctx context.Context, databaseURL Secret, w io.Writer) error {
	return postgres.MigrateUp(ctx, string(databaseURL), slog.New(slog.NewTextHandler(w, nil)))
}

// MigrateDown undoes the last steps, newest first, with the data in them.
func MigrateDown(ctx context.Context, databaseURL Secret, steps int) error {
	return postgres.MigrateDown(ctx, string(databaseURL), steps)
}

// MigrationStatus says in a few lines where the database stands.
func MigrationStatus(ctx context.Context, databaseURL Secret) (string, error) {
	st, err := postgres.MigrateStatus(ctx, string(databaseURL))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "version %d of %d", st.Version, st.Latest)
	switch {
	case st.Dirty:
		b.WriteString(": a step was interrupted (dirty); `pegel migrate up` says what to do")
	case st.Newer():
		b.WriteString(": the database is newer than this binary")
	case len(st.Pending) == 0:
		b.WriteString(": up to date")
	}
	for _, name := range st.Pending {
		b.WriteString("\npending: " + name)
	}
	return b.String(), nil
}

// AdminTokenRequest describes the token that CreateAdminToken makes.
type AdminTokenRequest struct {
	Name      string
	Role      string
	ExpiresAt time.Time // zero: never
	Now       func() time.Time
}

// CreateAdminToken stores a new admin token and returns it, with the command line as the actor in the audit log. It needs
// a migrated database and no running replica.
func CreateAdminToken(ctx context.Context, databaseURL Secret, req AdminTokenRequest) (string, error) {
	cred, text, err := tenants.NewCredential(tenants.KindAdminToken, rand.Reader)
	if err != nil {
		return "", fmt.Errorf("make a credential: %w", err)
	}
	now := req.Now()
	t := tenants.AdminToken{ID: cred.ID, Name: tenants.TidyName(req.Name), Role: tenants.Role(req.Role), Hash: cred.Hash, ExpiresAt: req.ExpiresAt}
	if problems := tenants.ValidateAdminToken(&t, now); len(problems) > 0 {
		flag := strings.ReplaceAll(strings.TrimPrefix(problems[0].Pointer, "/"), "_", "-")
		return "", fmt.Errorf("--%s: %s", flag, problems[0].Message)
	}
	pool, err := postgres.NewPool(string(databaseURL), postgres.PoolOptions{MaxConns: 1, MinIdle: 1, Name: "pegel admin-token"}) //nolint:contextcheck // a pool lives until it is closed
	if err != nil {
		return "", fmt.Errorf("open the database: %w", err)
	}
	defer pool.Close()
	if _, err := postgres.NewRepository(pool).CreateAdminToken(ctx, commandLineActor(), t); err != nil {
		if errors.Is(err, tenants.ErrUnavailable) {
			return "", fmt.Errorf("%w (is it up, and has `pegel migrate up` run?)", err)
		}
		return "", fmt.Errorf("store the token: %w", err)
	}
	return text, nil
}

// commandLineActor is who stands behind a change made from this machine's shell.
func commandLineActor() audit.Actor {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return audit.Actor{Kind: "cli", Name: name}
}
