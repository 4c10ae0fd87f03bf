package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pegel-dev/pegel/internal/app"
)

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "pegel",
		Short: "Rate limits for the tenants of one API",
		Long: `Pegel measures how high each tenant stands against its plan, slows a tenant down before it stops one, lets your
own services through by who they are, and keeps deciding when Redis is gone.`,
		Example: `  pegel dev                      try it: brings its own Postgres and Redis, prints curl lines
  pegel serve                    run a replica (PEGEL_DATABASE_URL, PEGEL_REDIS_URL, …)
  pegel admin-token create --name ops
  pegel tenant list              ask a running replica (PEGEL_SERVER, PEGEL_TOKEN)
  pegel export > pegel.yaml      and back: pegel apply -f pegel.yaml --dry-run`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.SetVersionTemplate("pegel {{.Version}}\n")
	group(root)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError(err) })
	root.AddGroup(&cobra.Group{ID: runGroup, Title: "Running Pegel:"}, &cobra.Group{ID: changeGroup, Title: "Administration, over HTTP:"},
		&cobra.Group{ID: askGroup, Title: "As a client sees it:"})
	grouped(root, runGroup, serveCommand(), devCommand(), migrateCommand(), configCommand(), healthcheckCommand())
	grouped(root, changeGroup, planCommand(), tenantCommand(), overrideCommand(), keyCommand(), serviceTokenCommand(), adminTokenCommand(),
		addressPolicyCommand(), networkCommand(), modeCommand(), topCommand(), usageCommand(), decisionCommand(), requestCommand(), alertCommand(), auditCommand(),
		exportCommand(), applyCommand(), schemaCommand())
	grouped(root, askGroup, statusCommand(), checkCommand())
	root.AddCommand(versionCommand())
	ownCommands(root)
	return root
}

// The groups of commands in the help of the root.
const (
	runGroup    = "run"
	changeGroup = "change"
	askGroup    = "ask"
)

func grouped(root *cobra.Command, id string, commands ...*cobra.Command) {
	for _, cmd := range commands {
		cmd.GroupID = id
		root.AddCommand(cmd)
	}
}

// ownCommands adds cobra's own commands now, so that they have examples, and errors, like all others.
func ownCommands(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Example = "  pegel help tenant set"
			cmd.RunE = func(_ *cobra.Command, args []string) error { return helpOf(root, args) }
		case "completion":
			cmd.Example = "  source <(pegel completion bash)"
			group(cmd)
			for _, shell := range cmd.Commands() {
				shell.Args = exactly()
				shell.Example = "  pegel completion " + shell.Name()
			}
		}
	}
}

// helpOf is `pegel help COMMAND`; of a command that there is not it is an error.
func helpOf(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	switch {
	case err != nil:
		return usageError(err)
	case len(rest) > 0 && cmd.HasSubCommands():
		return cmd.Args(cmd, rest)
	case len(rest) > 0:
		return usagef("there is no `%s %s`; `%s --help` lists what there is", cmd.CommandPath(), rest[0], cmd.Parent().CommandPath())
	}
	cmd.InitDefaultHelpFlag() // cobra adds it only to a command that runs
	return cmd.Help()
}

// group is for a command that only holds others: alone it shows its help, and a name it does not know is an error (cobra
// shows the help then too, with exit status 0).
func group(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		if like := cmd.SuggestionsFor(args[0]); len(like) > 0 && len(args[0]) > 2 { // two letters are like anything
			return usagef("there is no `%s %s`; did you mean %s?", cmd.CommandPath(), args[0], strings.Join(like, " or "))
		}
		return usagef("there is no `%s %s`; `%s --help` lists what there is", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// settingFlags gives a command the flags of some settings, --config, and a function that reads all sources.
type settingFlags struct {
	file  string
	flags *pflag.FlagSet
	table []app.Setting
}

// addSettings adds a flag for every setting that keep accepts, and the *_FILE variants of secrets.
func addSettings(cmd *cobra.Command, keep func(app.Setting) bool) *settingFlags {
	s := &settingFlags{flags: cmd.Flags()}
	cmd.Flags().StringVar(&s.file, "config", os.Getenv(app.ConfigFileEnv), "YAML file with settings, weaker than the environment and flags")
	for _, setting := range app.Settings() {
		if !keep(setting) {
			continue
		}
		s.table = append(s.table, setting)
		help := strings.ReplaceAll(setting.Help, "`", "") + " (" + setting.Kind + ")" // pflag reads `x` as the name of the value
		if setting.Default != "" {
			help += " (default " + setting.Default + ")"
		}
		cmd.Flags().String(setting.Flag(), "", help)
		if setting.Secret {
			cmd.Flags().String(setting.Flag()+"-file", "", "read --"+setting.Flag()+" from this file")
		}
	}
	return s
}

// sources are the flags that were given, the environment and the file.
func (s *settingFlags) sources() app.Sources {
	given := map[string]string{}
	for _, setting := range s.table {
		for suffix, env := range map[string]string{"": setting.Env, "-file": setting.Env + "_FILE"} {
			if f := s.flags.Lookup(setting.Flag() + suffix); f != nil && f.Changed {
				given[env] = f.Value.String()
			}
		}
	}
	return app.Sources{File: s.file, Env: os.Environ(), Flags: given}
}

func everySetting(app.Setting) bool { return true }

// named accepts the settings of these names.
func named(names ...string) func(app.Setting) bool {
	return func(s app.Setting) bool {
		for _, n := range names {
			if s.Env == n {
				return true
			}
		}
		return false
	}
}

// settingsHelp is the table of settings for the long help of serve.
func settingsHelp() string {
	var b strings.Builder
	b.WriteString("\nSettings: the environment variable of each flag is PEGEL_ and its name in capitals (--listen is PEGEL_LISTEN).\n")
	b.WriteString("A file given by --config holds the same names. Flags beat the environment, the environment beats the file.\n")
	b.WriteString("Secrets can be read from files: PEGEL_DATABASE_URL_FILE=/run/secrets/database_url.\n")
	b.WriteString("A variable that is set to nothing counts as not set; an unknown PEGEL_ name stops the start.\n")
	return b.String()
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version", Example: "  pegel version",
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "pegel", version)
			return err
		},
	}
}
