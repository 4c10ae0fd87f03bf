package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/app"
	"github.com/pegel-dev/pegel/internal/devmode"
)

// defaultStateDir is where `pegel dev` keeps its state, below the working directory.
const defaultStateDir = ".dev"

func devCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Try everything on this machine, with a private Postgres and Redis",
		Long: `Start a private Postgres and Redis from the servers found on this machine, install the default plans, the default
address policy and three example tenants, put a demo upstream behind the proxy, and print curl lines to try.

The state (database, counters, keys) survives a restart; --fresh starts over. Ctrl-C ends everything.
PEGEL_DEV_PG_BIN names the directory of initdb and postgres when they are not found. Without a Redis server an imitation
serves, which forgets its counters at the end.`,
		Example: `  pegel dev
  pegel dev --fresh
  pegel dev --listen 127.0.0.1:9080 --admin-listen 127.0.0.1:9081 --proxy-listen 127.0.0.1:9082`,
		Args: exactly(),
	}
	stateDir := cmd.Flags().String("state-dir", defaultStateDir, "where database, counters and keys are kept")
	fresh := cmd.Flags().Bool("fresh", false, "delete the state first")
	settings := addSettings(cmd, func(s app.Setting) bool {
		return !ownedByDev(s.Env)
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := &dev{cmd: cmd, settings: settings, stateDir: *stateDir}
		return d.run(cmd.Context(), *fresh)
	}
	return cmd
}

// ownedByDev are the settings that `pegel dev` makes itself: a database or Redis that the environment names is somebody
// else's, and must not be filled with examples.
func ownedByDev(env string) bool {
	return strings.HasPrefix(env, "PEGEL_DATABASE_URL") || strings.HasPrefix(env, "PEGEL_REDIS_URL")
}

// dev is one run of `pegel dev`.
type dev struct {
	cmd      *cobra.Command
	settings *settingFlags
	stateDir string
	log      *slog.Logger
	cleanup  []func() error // in reverse order
}

// run prepares everything, serves until ctx ends, and takes everything down again.
func (d *dev) run(ctx context.Context, fresh bool) (err error) {
	d.log = slog.New(slog.NewTextHandler(d.cmd.ErrOrStderr(), nil))
	defer func() {
		for _, f := range slices.Backward(d.cleanup) {
			err = errors.Join(err, f())
		}
	}()
	if err := os.MkdirAll(d.stateDir, 0o755); err != nil { // Postgres runs as another user below it; the keys are 0600
		return fmt.Errorf("create the state directory: %w", err)
	}
	serversDir, err := devmode.ServersDir(d.stateDir)
	if err != nil {
		return err
	}
	lock, err := devmode.Lock(serversDir)
	if err != nil {
		if errors.Is(err, devmode.ErrLocked) {
			return fmt.Errorf("%w; stop it, or give this one another --state-dir", err)
		}
		return err
	}
	d.cleanup = append(d.cleanup, lock.Unlock)
	if fresh {
		if err := d.forget(serversDir); err != nil {
			return err
		}
	}
	examples, err := d.examples()
	if err != nil {
		return err
	}
	overrides, notes, err := d.startServers(ctx, serversDir)
	if err != nil {
		return err
	}
	return d.serve(ctx, examples, overrides, notes)
}

// forget deletes the state.
func (d *dev) forget(serversDir string) error {
	for _, path := range []string{
		filepath.Join(serversDir, "postgres"), filepath.Join(serversDir, "redis"), d.examplesPath(),
	} {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("start over: %w", err)
		}
	}
	return nil
}

func (d *dev) examplesPath() string { return filepath.Join(d.stateDir, "keys.json") }

// examples reads the example credentials, or makes them on the first start.
func (d *dev) examples() (*app.Examples, error) {
	raw, err := os.ReadFile(d.examplesPath())
	if err == nil {
		ex := &app.Examples{}
		if err := json.Unmarshal(raw, ex); err != nil || len(ex.Tenants) == 0 {
			return nil, fmt.Errorf("%s is damaged; `pegel dev --fresh` starts over", d.examplesPath())
		}
		return ex, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the keys: %w", err)
	}
	ex, err := app.NewExamples(rand.Reader)
	if err != nil {
		return nil, err
	}
	if raw, err = json.MarshalIndent(ex, "", "  "); err != nil {
		return nil, fmt.Errorf("write the keys: %w", err)
	}
	if err := os.WriteFile(d.examplesPath(), append(raw, '\n'), 0o600); err != nil {
		return nil, fmt.Errorf("write the keys: %w", err)
	}
	return ex, nil
}

// startServers starts Postgres, Redis (or its imitation) and the demo upstream. It returns the settings that point at
// them and what the banner should warn of.
func (d *dev) startServers(ctx context.Context, dir string) (settings map[string]string, notes []string, err error) {
	pg, err := devmode.StartPostgres(ctx, devmode.PostgresOptions{Dir: filepath.Join(dir, "postgres")})
	if err != nil {
		return nil, nil, err
	}
	d.cleanup = append(d.cleanup, pg.Stop)
	settings = map[string]string{"PEGEL_DATABASE_URL": pg.URL()}

	redis, err := devmode.StartRedis(ctx, devmode.RedisOptions{
		Dir: filepath.Join(dir, "redis"), Args: []string{"--appendonly", "yes", "--appendfsync", "everysec"},
	})
	switch {
	case err == nil:
		d.cleanup = append(d.cleanup, redis.Stop)
		settings["PEGEL_REDIS_URL"] = redis.URL()
	case errors.Is(err, devmode.ErrNoRedis):
		imitation, err := devmode.StartMiniRedis()
		if err != nil {
			return nil, nil, err
		}
		d.cleanup = append(d.cleanup, imitation.Stop)
		settings["PEGEL_REDIS_URL"] = imitation.URL()
		notes = append(notes, devmode.ErrNoRedis.Error()+".",
			"An imitation of Redis inside this process counts instead: its counters are lost at the end,",
			"and its speed says nothing about Pegel's.")
	default:
		return nil, nil, err
	}

	upstream, stop, err := startDemoUpstream(ctx)
	if err != nil {
		return nil, nil, err
	}
	d.cleanup = append(d.cleanup, stop)
	settings["PEGEL_PROXY_UPSTREAM"] = upstream
	return settings, notes, nil
}

// serve runs the service and prints what to try once it is ready.
func (d *dev) serve(ctx context.Context, ex *app.Examples, servers map[string]string, notes []string) error {
	src := d.settings.sources()
	src.Env = slices.DeleteFunc(src.Env, func(kv string) bool { return ownedByDev(kv) })
	src.Defaults = map[string]string{
		"PEGEL_PROXY_LISTEN": "127.0.0.1:8082", "PEGEL_PROXY_UPSTREAM": servers["PEGEL_PROXY_UPSTREAM"],
		"PEGEL_DRAIN_PAUSE": "0s", "PEGEL_LOG_FORMAT": "text",
	}
	for _, name := range []string{"PEGEL_DATABASE_URL", "PEGEL_REDIS_URL"} {
		if v, ok := servers[name]; ok {
			src.Flags[name] = v
		}
	}
	cfg, err := app.Load(src)
	if err != nil {
		return err
	}
	log := app.NewLogger(cfg, d.cmd.ErrOrStderr())
	a, err := app.New(ctx, cfg, app.Options{Log: log, Now: time.Now, Version: version})
	if err != nil {
		return err
	}
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- a.Run(serving) }()

	select {
	case err := <-done: // it failed, or was told to end before it was ready
		return err
	case <-a.Ready():
	}
	if err := d.welcome(ctx, a, ex, notes); err != nil {
		cancel()
		return errors.Join(err, <-done)
	}
	return <-done
}

// welcome installs the examples and prints what to try.
func (d *dev) welcome(ctx context.Context, a *app.App, ex *app.Examples, notes []string) error {
	if err := a.InstallExamples(ctx, ex); err != nil {
		return err
	}
	b := banner{
		public: localURL(a.Addr("public"), a.Secure()), admin: localURL(a.Addr("admin"), a.Secure()), secure: a.Secure(),
		examples: ex, notes: notes, keysFile: d.examplesPath(),
	}
	if addr := a.Addr("proxy"); addr != "" {
		b.proxy = localURL(addr, a.Secure())
	}
	return b.print(d.cmd.OutOrStdout())
}
