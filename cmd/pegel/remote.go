package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pegel-dev/pegel/internal/adminclient"
)

const (
	serverEnv     = "PEGEL_SERVER"
	publicEnv     = "PEGEL_PUBLIC_SERVER"
	tokenEnv      = "PEGEL_TOKEN"      //nolint:gosec // a name, no credential
	tokenFileEnv  = "PEGEL_TOKEN_FILE" //nolint:gosec // a name, no credential
	keyEnv        = "PEGEL_KEY"
	defaultServer = "http://127.0.0.1:8081"
	defaultPublic = "http://127.0.0.1:8080"
)

// callersChallenge is what the listeners for callers, the proxy among them, ask for a credential with.
const callersChallenge = `Bearer realm="pegel"`

// completeWithin bounds what completion may ask a server: a slow one must not hang a shell.
const completeWithin = 2 * time.Second

// remote is what the commands that talk to a running Pegel have in common.
type remote struct {
	server, tokenFile, output string
	forms                     []string // of output
	// public commands ask the public listener, with an API key or a service token.
	public bool
}

// remoteFlags gives a command, and those below it, the flags of remote.
func remoteFlags(cmd *cobra.Command, public bool) *remote {
	return remoteFlagsOf(cmd, public, "table", "json", "yaml")
}

// remoteFlagsOf is remoteFlags for a command whose answer has other forms, the default first.
func remoteFlagsOf(cmd *cobra.Command, public bool, forms ...string) *remote {
	r := &remote{public: public, forms: forms}
	flags := cmd.PersistentFlags()
	if public {
		flags.StringVar(&r.server, "server", "", "URL of the public listener ($"+publicEnv+", else "+defaultPublic+")")
		flags.StringVar(&r.tokenFile, "token-file", "", "file with an API key or a service token, - for standard input ($"+keyEnv+" holds it itself)")
	} else {
		flags.StringVar(&r.server, "server", "", "URL of the admin listener ($"+serverEnv+", else "+defaultServer+")")
		flags.StringVar(&r.tokenFile, "token-file", "", "file with an admin token, - for standard input ($"+tokenEnv+" holds it itself)")
	}
	flags.StringVarP(&r.output, "output", "o", forms[0], r.formWords())
	fixed(cmd, "output", forms...)
	return r
}

func (r *remote) formWords() string {
	last := len(r.forms) - 1
	return strings.Join(r.forms[:last], ", ") + " or " + r.forms[last]
}

// oneForm is for a command whose answer has one form: its help does not offer -o. Scripts that give it to every command may go on
// to, unless there is something to print (see stream).
func oneForm(cmd *cobra.Command) {
	cmd.Flags().StringP("output", "o", "table", "")
	_ = cmd.Flags().MarkHidden("output") // the flag exists
}

// client is ready to call. No flag holds a token: others see the command line of a process.
func (r *remote) client(cmd *cobra.Command) (*adminclient.Client, error) {
	if !slices.Contains(r.forms, r.output) {
		return nil, usagef("--output: %q is not %s", r.output, r.formWords())
	}
	token, err := r.token(cmd.InOrStdin())
	if err != nil {
		return nil, err
	}
	if token == "" && !r.public {
		return nil, usagef("no admin token: set %s, or name a file with --token-file (`pegel admin-token create --database-url …` makes the first one)", tokenEnv)
	}
	name, address := "--server", r.server
	if address == "" {
		name, address = serverEnv, os.Getenv(serverEnv)
		fallback := defaultServer
		if r.public {
			name, address, fallback = publicEnv, os.Getenv(publicEnv), defaultPublic
		}
		if address == "" {
			address = fallback
		}
	}
	c, err := adminclient.New(address, token, "pegel/"+version)
	if errors.Is(err, adminclient.ErrToken) {
		return nil, usageError(err) // not the address's fault
	}
	if err != nil {
		return nil, usagef("%s: %w", name, err)
	}
	return c, nil
}

// token is the credential to send; empty: there is none.
func (r *remote) token(stdin io.Reader) (string, error) {
	file := r.tokenFile
	if file == "" && r.public {
		if key := os.Getenv(keyEnv); key != "" {
			return key, nil
		}
		// An admin token has no business on the public listener.
		if token := os.Getenv(tokenEnv); strings.HasPrefix(token, "pgk_") || strings.HasPrefix(token, "pgs_") {
			return token, nil
		}
		return "", nil
	}
	if file == "" {
		if token := os.Getenv(tokenEnv); token != "" {
			return token, nil
		}
		if file = os.Getenv(tokenFileEnv); file == "" {
			return "", nil
		}
	}
	const most = 4096 // bytes; tokens have about 60
	in := stdin
	if file != "-" {
		f, err := os.Open(file) //nolint:gosec // the user names the file
		if err != nil {
			return "", usagef("token file: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || len(raw) > most {
		return "", usagef("token file %s: holds no token", file)
	}
	return token, nil
}

// do makes a call and says what to do when it fails.
func (r *remote) do(cmd *cobra.Command, call adminclient.Call) (*adminclient.Answer, error) {
	c, err := r.client(cmd)
	if err != nil {
		return nil, err
	}
	answer, err := c.Do(cmd.Context(), call)
	return answer, r.advise(err, call.Path)
}

// advise adds to a failure what its reader can do about it.
func (r *remote) advise(err error, path string) error {
	var away *adminclient.UnreachableError
	var refused *adminclient.RefusedError
	env := serverEnv
	if r.public {
		env = publicEnv
	}
	switch {
	case errors.As(err, &away) && !away.Began && !errors.Is(err, http.ErrSchemeMismatch) && !errors.Is(err, context.Canceled):
		return fmt.Errorf("%w (is it running? --server or %s names another)", err, env)
	case !errors.As(err, &refused):
		return err
	case refused.Listener != "":
		return fmt.Errorf("%s: %s; name that one with --server or %s", refused.Server, refused.Detail, env)
	case refused.Status == http.StatusUnauthorized && r.public:
		return fmt.Errorf("no valid credential (wrong, expired or revoked): set %s or --token-file", keyEnv)
	case refused.Status == http.StatusUnauthorized && refused.Challenge == callersChallenge:
		return fmt.Errorf("%s is not the admin listener (PEGEL_ADMIN_LISTEN): name that one with --server or %s", refused.Server, env)
	case refused.Status == http.StatusUnauthorized:
		return fmt.Errorf("no valid admin token (wrong, expired or revoked): set %s or --token-file", tokenEnv)
	case refused.Status == http.StatusNotFound:
		return fmt.Errorf("%s: %s (at %s)", strings.TrimPrefix(path, "/admin/"), refused.Detail, refused.Server)
	case refused.Status == http.StatusPreconditionFailed:
		return errors.New("somebody else changed it meanwhile: look at it again, then repeat the command")
	}
	return err
}

// complete offers the names of objects for the first argument, as far as a server tells them quickly.
func (r *remote) complete(path, field string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return r.names(cmd, path, field, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}
