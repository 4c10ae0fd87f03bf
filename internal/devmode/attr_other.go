//go:build unix && !linux

package devmode

import "syscall"

// sysProcAttr puts the child in a process group of its own, under another user if cred says so. There is no signal at
// the parent's death here: the next start sweeps leftovers.
func sysProcAttr(cred *syscall.Credential, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: cred, Setpgid: true}
}
