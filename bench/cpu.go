package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// tick is the unit of /proc/<pid>/stat on Linux, whatever the kernel's own.
const tick = 10 * time.Millisecond

// meter reads the CPU time that somebody has used so far.
type meter func() time.Duration

// ofProcess is the CPU time of one process, user and system; 0 where there is no /proc.
func ofProcess(pid int) meter {
	return func() time.Duration {
		used, _ := stat(pid)
		return used
	}
}

// ofChildren is the CPU time of a process and of its living children: Postgres is one process per connection.
func ofChildren(parent int) meter {
	return func() time.Duration {
		all, _ := stat(parent)
		stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
		for _, path := range stats {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				continue
			}
			if used, ppid := stat(pid); ppid == parent {
				all += used
			}
		}
		return all
	}
}

// ofSelf is the CPU time of this process: the load and, for a library, the peer itself.
func ofSelf() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// stat is a process's CPU time and parent; zeros when it is gone or there is no /proc.
func stat(pid int) (used time.Duration, parent int) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0
	}
	// The second field is the name in parentheses and may hold anything; ppid is the second after it, utime and stime
	// the 12th and 13th.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 13 {
		return 0, 0
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(string(fields[i])) // the kernel writes numbers
		return n
	}
	return time.Duration(number(11)+number(12)) * tick, number(1)
}
