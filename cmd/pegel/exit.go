package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// The exit statuses of every command, as docs/cli.md promises them.
const (
	exitError  = 1
	exitUsage  = 2 // the command line says what cannot be done
	exitDenied = 3 // check: the request would be refused; apply --dry-run --exit-code: something would change
)

// statusError ends the process with a status of its own. Without an error inside nothing more is said: the answer has been.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

func usageError(err error) error { return &statusError{exitUsage, err} }

func usagef(format string, args ...any) error { return usageError(fmt.Errorf(format, args...)) }

// errInterrupted ends a command that waits for standard input at Ctrl-C.
var errInterrupted = errors.New("interrupted")

// exitStatus is the status of a command that ended with err, and whether there is something left to say.
func exitStatus(err error) (status int, speak bool) {
	var s *statusError
	switch {
	case err == nil:
		return 0, false
	case errors.As(err, &s):
		return s.status, s.err != nil
	}
	return exitError, true
}

// exactly asks for these arguments, by their names in the usage line.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef("%s is missing: `%s`", names[len(args)], cmd.UseLine())
		case len(args) > len(names):
			return usagef("%q is one argument too many: `%s`", args[len(names)], cmd.UseLine())
		}
		return nil
	}
}
