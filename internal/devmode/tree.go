package devmode

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// freezeWait bounds how long a process may take to stop once it was told to.
const freezeWait = 10 * time.Second

// freezeTree stops a process and everything below it, and returns when all of it stands still. (Postgres gives every backend
// a session of its own, so a signal to the process group would miss them.) A signal only asks: a parent that is in the
// middle of a fork still gets its child afterwards. So the listing that finds everything stopped is the one that counts.
func freezeTree(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze process %d: %w", pid, err)
	}
	stopped := poll(freezeWait, func() bool {
		all := true
		for _, p := range tree(pid) {
			if !p.still() {
				all = false
				_ = syscall.Kill(p.pid, syscall.SIGSTOP) // it may have ended meanwhile
			}
		}
		return all
	})
	if !stopped {
		return fmt.Errorf("process %d and its children do not stop", pid)
	}
	return nil
}

// thawTree lets a frozen process and everything below it go on.
func thawTree(pid int) error {
	below := descendants(pid)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		return fmt.Errorf("thaw process %d: %w", pid, err)
	}
	for _, p := range below {
		_ = syscall.Kill(p, syscall.SIGCONT) // it may have been killed meanwhile
	}
	return nil
}

// killTree kills a process and everything below it and waits until the latter is gone: a Postgres whose old backends
// still hold its shared memory does not start again. The parent is stopped first: once it is dead, its children are
// somebody else's and cannot be told any more.
func killTree(pid int) {
	_ = freezeTree(pid) // whoever cannot be stopped is gone
	below := descendants(pid)
	for _, p := range append(below, pid) {
		_ = syscall.Kill(p, syscall.SIGKILL)
	}
	poll(killWait, func() bool {
		for _, p := range below {
			if running(p) {
				return false
			}
		}
		return true
	})
}

// running reports whether a process exists and is more than a zombie.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	return commandLine(pid) != "" // a zombie has none
}

// descendants are the processes below pid.
func descendants(pid int) []int {
	var below []int
	for _, p := range tree(pid) {
		if p.pid != pid {
			below = append(below, p.pid)
		}
	}
	return below
}

// tree is a process and everything below it.
func tree(pid int) []process {
	children := map[int][]process{}
	var all []process
	for _, p := range processes() {
		children[p.parent] = append(children[p.parent], p)
		if p.pid == pid {
			all = append(all, p)
		}
	}
	for queue := children[pid]; len(queue) > 0; {
		p := queue[0]
		queue = append(queue[1:], children[p.pid]...)
		all = append(all, p)
	}
	return all
}

type process struct {
	pid, parent int
	state       string // as in /proc and ps: R, S, T, Z…
}

// still reports whether a process does nothing: it is stopped, or a zombie that its stopped parent cannot reap.
func (p process) still() bool {
	return strings.HasPrefix(p.state, "T") || strings.HasPrefix(p.state, "Z") || strings.HasPrefix(p.state, "X")
}

// processes lists what runs on the machine: from /proc, or where there is none from ps.
func processes() []process {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return processesFromPS()
	}
	list := make([]process, 0, len(stats))
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid …: the name may hold anything, so read behind its last bracket.
		end := bytes.LastIndexByte(raw, ')')
		if end < 0 {
			continue
		}
		fields := strings.Fields(string(raw[end+1:]))
		pid, errPID := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if errPID != nil || len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			list = append(list, process{pid: pid, parent: parent, state: fields[0]})
		}
	}
	return list
}

func processesFromPS() []process {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,state=").Output() //nolint:noctx // a listing that ends by itself
	if err != nil {
		return nil
	}
	var list []process
	for line := range strings.Lines(string(out)) {
		var p process
		if _, err := fmt.Sscan(line, &p.pid, &p.parent, &p.state); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// commandLine is how a process was started; empty when there is no such process.
func commandLine(pid int) string {
	if raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		return string(bytes.ReplaceAll(raw, []byte{0}, []byte{' '}))
	}
	out, err := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output() //nolint:gosec,noctx // pid is a number; ps ends by itself
	if err != nil {
		return ""
	}
	return string(out)
}
