package devmode

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// What is missing on a machine without the servers; each is one line that names the package to install.
var (
	ErrNoPostgres = errors.New("no Postgres server found: install the Debian package postgresql (or set PEGEL_DEV_PG_BIN to the directory that holds initdb and postgres)")
	ErrNoRedis    = errors.New("no Redis server found: install the Debian package redis-server (or put redis-server or valkey-server on PATH)")
)

// PostgresBinDirEnv names the directory that holds initdb and postgres, before every other place.
const PostgresBinDirEnv = "PEGEL_DEV_PG_BIN"

// FindPostgres is the directory with initdb and postgres: PEGEL_DEV_PG_BIN, PATH, the newest /usr/lib/postgresql, then
// Homebrew. A PEGEL_DEV_PG_BIN that does not hold them is an error, not a reason to look on.
func FindPostgres() (string, error) {
	if dir := os.Getenv(PostgresBinDirEnv); dir != "" {
		if !holdsPostgres(dir) {
			return "", fmt.Errorf("%s does not name a directory with initdb and postgres", PostgresBinDirEnv)
		}
		return dir, nil
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			path = resolved
		}
		if dir := filepath.Dir(path); holdsPostgres(dir) {
			return dir, nil
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
	} {
		if dir, ok := newestPostgres(pattern); ok {
			return dir, nil
		}
	}
	return "", ErrNoPostgres
}

// newestPostgres is the directory of the highest version among those a pattern finds.
func newestPostgres(pattern string) (string, bool) {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return "", false
	}
	dirs = slices.DeleteFunc(dirs, func(d string) bool { return !holdsPostgres(d) })
	if len(dirs) == 0 {
		return "", false
	}
	return slices.MaxFunc(dirs, func(a, b string) int { return versionIn(a) - versionIn(b) }), true
}

// versionIn is the major version in a path such as /usr/lib/postgresql/15/bin or …/opt/postgresql@15/bin; 0 without one.
func versionIn(dir string) int {
	name := filepath.Base(filepath.Dir(dir))
	if i := strings.LastIndexAny(name, "@-"); i >= 0 {
		name = name[i+1:]
	}
	major, _, _ := strings.Cut(name, ".")
	v, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}
	return v
}

func holdsPostgres(dir string) bool {
	return executable(filepath.Join(dir, "initdb")) && executable(filepath.Join(dir, "postgres"))
}

func executable(path string) bool {
	st, err := os.Stat(path) //nolint:gosec // where to look for servers is the operator's word
	return err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0
}

// FindRedis is the path of redis-server or valkey-server on PATH.
func FindRedis() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoRedis
}
