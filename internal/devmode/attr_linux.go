package devmode

import "syscall"

// sysProcAttr puts the child in a process group of its own, under another user if cred says so, and has the kernel send
// it deathSignal when the parent dies.
func sysProcAttr(cred *syscall.Credential, deathSignal syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: cred, Setpgid: true, Pdeathsig: deathSignal}
}
