package postgres_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/postgres"
	"github.com/pegel-dev/pegel/internal/testenv"
)

// Guarantee: a replica starts on a Postgres that is far away: what it installs at first takes many questions, and nobody waits for
// the answer of all of them as a caller would.
func TestDefaultsAreInstalledFromAfar(t *testing.T) {
	t.Parallel()
	b := benchOn(t, testenv.Postgres(t), postgres.WithAnswerWithin(time.Nanosecond))
	require.NoError(t, b.InstallDefaults(t.Context()))
	require.EqualValues(t, 3, b.number(t, `SELECT count(*) FROM plans`))
}
