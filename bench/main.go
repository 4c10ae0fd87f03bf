// Command bench measures Pegel beside its peers on this machine, in one run, and prints tables: decisions per second, median
// and 99th percentile of one call, and CPU time per decision of every process that takes part.
//
// Everything runs on loopback from private child processes: a Redis, a Postgres, two Pegels and a server with a fixed
// answer. Peers take turns in short rounds, so that what else the machine does hits all of them alike; read the ratios
// and the CPU times before the rates. Nothing here can fail for being slow.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// settings are the command's flags.
type settings struct {
	rounds  int           // how often every peer has its turn
	turn    time.Duration // how long a turn is
	callers []int         // how many call at the same time
	only    *regexp.Regexp
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := realMain(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func realMain(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == floorCommand {
		return serveFloor(ctx, args[1])
	}
	set, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}

	progress("starting Redis, Postgres and Pegel")
	w, err := openWorld(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	return w.run(ctx, set)
}

func parse(args []string) (settings, error) {
	set := settings{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&set.rounds, "rounds", 3, "how often every peer has its turn")
	flags.DurationVar(&set.turn, "turn", 450*time.Millisecond, "how long one turn is")
	callers := flags.String("callers", "1,16,64,256", "how many call at the same time, comma-separated")
	only := flags.String("only", "", "measure only peers whose table or name matches this regular expression")
	if err := flags.Parse(args); err != nil {
		return set, err
	}
	for field := range strings.SplitSeq(*callers, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < 1 || n > 10_000 {
			return set, fmt.Errorf("-callers: %q is not a number from 1 to 10000", field)
		}
		set.callers = append(set.callers, n)
	}
	if set.rounds < 1 || set.turn <= 0 {
		return set, errors.New("-rounds and -turn must be positive")
	}
	var err error
	if set.only, err = regexp.Compile(*only); err != nil {
		return set, fmt.Errorf("-only: %w", err)
	}
	return set, nil
}

// progress tells whoever waits what happens; tables go to standard output alone.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "· "+format+"\n", args...)
}
