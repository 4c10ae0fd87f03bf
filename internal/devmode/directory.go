package devmode

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// maxSocketPath is the longest path a Unix socket may have, in bytes.
const maxSocketPath = 107

// ErrLocked is a directory that a running process uses.
var ErrLocked = errors.New("directory is in use by another running pegel")

// DirLock is the right to use a directory, held until Unlock or the end of the process.
type DirLock struct{ f *os.File }

// Lock creates dir if needed, takes it for this process and ends servers that a killed predecessor left running in it
// or directly below it. It does not wait: a directory in use is ErrLocked.
func Lock(dir string) (*DirLock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // Postgres, under another user, must get through
		return nil, fmt.Errorf("create %s: %w", dir, err)
	}
	l, err := flock(filepath.Join(dir, "lock"), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		return nil, err
	}
	endLeftovers(dir)
	return l, nil
}

// Unlock gives the directory back. The lock file stays: removing it would let two processes lock two files of one name.
func (l *DirLock) Unlock() error { return l.f.Close() }

func flock(path string, how int) (*DirLock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // our own lock file
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", filepath.Dir(path), ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &DirLock{f: f}, nil
}

func endLeftovers(dir string) {
	for _, pattern := range []string{"*.pid", filepath.Join("*", "*.pid")} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			continue
		}
		for _, f := range files {
			endLeftover(filepath.Dir(f), strings.TrimSuffix(filepath.Base(f), ".pid"))
		}
	}
}

// RunDir is a temporary directory that belongs to this process.
type RunDir struct {
	Path string
	lock *DirLock
}

// NewRunDir makes a temporary directory for this process's servers. Directories that dead processes left behind are
// swept first: their servers ended, their files removed.
func NewRunDir(prefix string) (*RunDir, error) {
	base := filepath.Join(os.TempDir(), prefix+"-"+strconv.Itoa(os.Geteuid()))
	if err := ownDir(base, os.Geteuid()); err != nil {
		return nil, err
	}
	// Held while sweeping and creating, so that nobody sweeps a directory that is made but not locked yet.
	gate, err := flock(filepath.Join(base, "gate"), syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer func() { _ = gate.Unlock() }()

	old, err := filepath.Glob(filepath.Join(base, "run-*"))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", base, err)
	}
	for _, dir := range old {
		if lock, err := Lock(dir); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Unlock()
		}
	}
	dir, err := os.MkdirTemp(base, "run-")
	if err != nil {
		return nil, fmt.Errorf("create a run directory: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // Postgres, under another user, must get through
		return nil, fmt.Errorf("open the run directory to the servers: %w", err)
	}
	lock, err := Lock(dir)
	if err != nil {
		return nil, err
	}
	return &RunDir{Path: dir, lock: lock}, nil
}

// Close removes the directory. Its servers must have been stopped.
func (r *RunDir) Close() error {
	return errors.Join(os.RemoveAll(r.Path), r.lock.Unlock())
}

// ownDir makes dir, or makes sure that the one that is there is a directory of uid's: names below the temporary
// directory can be taken by anybody.
func ownDir(dir string, uid int) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) { // Postgres, under another user, must get through
		return fmt.Errorf("create %s: %w", dir, err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	owner, ok := st.Sys().(*syscall.Stat_t)
	if !st.IsDir() || !ok || int64(owner.Uid) != int64(uid) {
		return fmt.Errorf("%s exists and is not a directory of this user's", dir)
	}
	return nil
}

// ServersDir is where the servers of a state directory keep their data: a directory below it, or, when this process is
// root and Postgres's user cannot get there (it is below /root, say) or its socket path would be too long, one in
// /var/tmp that belongs to the state directory by name and outlives a reboot.
func ServersDir(stateDir string) (string, error) {
	abs, err := filepath.Abs(stateDir)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", stateDir, err)
	}
	cred, err := serverCredential()
	if err != nil {
		return "", err
	}
	if len(socketPath(filepath.Join(abs, "postgres"), lastPort)) <= maxSocketPath && (cred == nil || reachable(abs)) {
		return abs, nil
	}
	sum := sha256.Sum256([]byte(abs))
	dir := filepath.Join("/var/tmp", fmt.Sprintf("pegel-dev-%d-%s", os.Geteuid(), hex.EncodeToString(sum[:6])))
	return dir, ownDir(dir, os.Geteuid())
}

// reachable reports whether any user gets through to the directory: every existing one above it is open to all.
func reachable(dir string) bool {
	for d := dir; ; d = filepath.Dir(d) {
		if st, err := os.Stat(d); err == nil && st.Mode().Perm()&0o001 == 0 {
			return false
		}
		if d == filepath.Dir(d) {
			return true
		}
	}
}

// serverCredential is whom Postgres runs as: it refuses to run as root, so for root it is the user postgres, or nobody
// where there is none. Nil for everybody else.
func serverCredential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("Postgres does not run as root, and there is neither a user postgres nor nobody: %w", err)
		}
	}
	uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(errUID, errGID); err != nil {
		return nil, fmt.Errorf("read the ids of user %s: %w", u.Username, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
