package devmode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stopGrace is how long a server may take to end by itself before it is killed.
const stopGrace = 5 * time.Second

// killWait bounds the wait for a killed process to be gone.
const killWait = 5 * time.Second

// childSpec is how to start a server process.
type childSpec struct {
	name string // "postgres" or "redis"; names the log and the pid file
	dir  string // where log and pid file go
	path string
	args []string
	env  []string
	cred *syscall.Credential // nil: as ourselves
	stop syscall.Signal      // asks the server to end, also sent when the parent dies
	// marker is part of the process's command line, by which a leftover is told from an unrelated process that has
	// been given the same pid.
	marker string
}

// child is a running server process.
type child struct {
	spec childSpec
	cmd  *exec.Cmd
	done chan struct{} // closed once the process has been waited for
	err  error         // how it ended; read only after done
}

// startChild starts the process; it returns as soon as the process exists.
func startChild(spec childSpec) (*child, error) {
	log, err := os.OpenFile(logPath(spec.dir, spec.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", spec.name, err)
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor

	c := &child{spec: spec, done: make(chan struct{})}
	c.cmd = exec.Command(spec.path, spec.args...) //nolint:gosec,noctx // the path is a server found by us; its life is ended by stop, not by a context
	c.cmd.Dir = spec.dir
	c.cmd.Env = spec.env
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = sysProcAttr(spec.cred, spec.stop)

	started := make(chan error, 1)
	go c.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.path, err)
	}
	pid := strconv.Itoa(c.cmd.Process.Pid) + "\n" + spec.marker + "\n"
	if err := os.WriteFile(pidPath(spec.dir, spec.name), []byte(pid), 0o600); err != nil {
		_ = c.kill()
		return nil, fmt.Errorf("write the pid file of %s: %w", spec.name, err)
	}
	return c, nil
}

// run starts the process and waits for it on one OS thread: the signal a child gets at its parent's death follows the
// thread that started it, not the process.
func (c *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(c.done)
	err := c.cmd.Start()
	started <- err
	if err == nil {
		c.err = c.cmd.Wait()
	}
}

// exited reports whether the process is gone.
func (c *child) exited() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// freeze stops the process and all its descendants, and returns when none of them runs any more.
func (c *child) freeze() error {
	if c.exited() {
		return fmt.Errorf("%s is not running", c.spec.name)
	}
	return freezeTree(c.cmd.Process.Pid)
}

// thaw lets a frozen process and all its descendants go on.
func (c *child) thaw() error {
	if c.exited() {
		return fmt.Errorf("%s is not running", c.spec.name)
	}
	return thawTree(c.cmd.Process.Pid)
}

// stop asks the process to end, kills it when it does not within stopGrace, and returns when it is gone.
func (c *child) stop() error {
	if c.exited() {
		return nil
	}
	_ = thawTree(c.cmd.Process.Pid) // a frozen process cannot act on anything
	if err := c.cmd.Process.Signal(c.spec.stop); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", c.spec.name, err)
	}
	if c.wait(stopGrace) {
		return nil
	}
	return c.kill()
}

// kill ends the process and its descendants at once.
func (c *child) kill() error {
	if c.exited() {
		return nil
	}
	killTree(c.cmd.Process.Pid)
	if !c.wait(killWait) {
		return fmt.Errorf("%s (pid %d) cannot be killed", c.spec.name, c.cmd.Process.Pid)
	}
	return nil
}

func (c *child) wait(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		return false
	}
}

// logTail is the end of the server's log, for error messages.
func (c *child) logTail() string { return tail(logPath(c.spec.dir, c.spec.name)) }

func logPath(dir, name string) string { return filepath.Join(dir, name+".log") }
func pidPath(dir, name string) string { return filepath.Join(dir, name+".pid") }

// tail is the last 2 KiB of a file.
func tail(path string) string {
	const most = 2048
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err == nil && st.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return ""
		}
	}
	raw, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(bytes.ToValidUTF8(raw, nil)))
}

// endLeftover ends the server whose pid file is in dir, if it is still running.
func endLeftover(dir, name string) {
	raw, err := os.ReadFile(pidPath(dir, name))
	if err != nil {
		return
	}
	first, marker, _ := strings.Cut(string(raw), "\n")
	marker = strings.TrimSpace(marker)
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 || marker == "" {
		return
	}
	ours := func() bool { return strings.Contains(commandLine(pid), marker) }
	if !ours() {
		return
	}
	_ = thawTree(pid)
	_ = syscall.Kill(pid, syscall.SIGINT)
	if poll(stopGrace, func() bool { return !ours() }) {
		return
	}
	killTree(pid)
	poll(killWait, func() bool { return !ours() })
}

// poll asks every 10 ms until cond holds or limit has passed, and reports whether it held.
func poll(limit time.Duration, cond func() bool) bool {
	deadline := time.Now().Add(limit)
	for {
		if cond() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
}
