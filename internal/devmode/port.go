package devmode

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken below the range that Linux gives to outgoing connections, so that a stopped server finds its port
// free when it is started again.
const (
	firstPort = 20_000
	lastPort  = 32_000
	portTries = 200
)

// startTries is how many ports a server is tried on: between the look and the server's own bind somebody else may come.
const startTries = 5

// errEnded: the server ended before it answered.
var errEnded = errors.New("ended before it was ready")

// freePort is a loopback TCP port nobody listened on a moment ago.
func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // which port is no secret
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free loopback port in %d…%d after %d tries", firstPort, lastPort, portTries)
}
