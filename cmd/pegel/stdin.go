package main

import (
	"context"
	"os"
)

// stdin is a file whose reading ends with ctx: a command that waits for an answer or a token ends at the first Ctrl-C.
type stdin struct {
	*os.File

	ctx context.Context //nolint:containedctx // an io.Reader takes none
}

// Read leaves a read of the file behind when ctx ends: nothing can call it back, and it ends with the process.
func (s *stdin) Read(p []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	own := make([]byte, len(p)) // p is the caller's again once Read returns
	done := make(chan result, 1)
	go func() {
		n, err := s.File.Read(own)
		done <- result{n, err}
	}()
	select {
	case r := <-done:
		return copy(p, own[:r.n]), r.err
	case <-s.ctx.Done():
		return 0, errInterrupted
	}
}
