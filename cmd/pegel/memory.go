package main

import (
	"os"
	"runtime/debug"
)

// gcPercent lets the heap grow to five times what is alive before it is collected. Little is alive here (tens of MB), and
// every decision leaves some short-lived kilobytes behind: at Go's default of 100 a tenth of the CPU time went into collecting.
const gcPercent = 400

// relaxGC sets it, unless the operator has said something about memory (GOGC, GOMEMLIMIT).
func relaxGC() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
