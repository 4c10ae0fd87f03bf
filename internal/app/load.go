package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/v2"
	"go.yaml.in/yaml/v3"
)

// Sources are where settings come from, weakest first: the defaults of the table, File, Env, Flags.
type Sources struct {
	// File is the path of a YAML file with the names of the environment (PEGEL_LISTEN, or listen); empty: none.
	File string
	// Env is the whole environment, NAME=value.
	Env []string
	// Flags holds the flags that were given, by their setting's Env name, *_FILE variants included.
	Flags map[string]string
	// Defaults replace those of the table (by Env name).
	Defaults map[string]string
}

// Load reads and checks every setting. An error is one line: a *SettingError that names the setting, or what is wrong
// with the file.
func Load(src Sources) (*Config, error) {
	c, err := read(src, func(*Setting) bool { return true })
	if err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// LoadDatabaseURL reads the one setting that migrations and admin-token create need; names are checked all the same.
func LoadDatabaseURL(src Sources) (Secret, error) {
	c, err := read(src, func(s *Setting) bool { return s.Env == databaseSetting })
	if err != nil {
		return "", err
	}
	if c.DatabaseURL == "" {
		return "", ErrNoDatabaseURL
	}
	return c.DatabaseURL, nil
}

// ErrNoDatabaseURL is LoadDatabaseURL without a setting that names one.
var ErrNoDatabaseURL = &SettingError{Name: databaseSetting, Reason: "is required"}

// LoadListen reads where the public listener is and whether it speaks TLS.
func LoadListen(src Sources) (addr string, secure bool, err error) {
	c, err := read(src, func(s *Setting) bool { return s.Env == listenSetting || s.Env == certSetting })
	if err != nil {
		return "", false, err
	}
	return c.Listen, c.TLSCertFile != "", nil
}

// read merges the layers and parses the settings that want asks for.
func read(src Sources, want func(*Setting) bool) (*Config, error) {
	table := Settings()
	merged := koanf.New(".")
	c := &Config{Origins: map[string]string{}, values: map[string]string{}}
	for _, layer := range []struct {
		name string
		read func([]Setting) (map[string]string, error)
	}{
		{sourceDefault, src.readDefaults},
		{src.File, src.readFile},
		{sourceEnv, src.readEnv},
		{sourceFlag, src.readFlags},
	} {
		values, err := layer.read(table)
		if err != nil {
			return nil, err
		}
		if err := resolveFiles(table, values, want); err != nil {
			return nil, err
		}
		if err := merged.Load(layerProvider(values), nil); err != nil {
			return nil, fmt.Errorf("merge settings: %w", err)
		}
		for name := range values {
			c.Origins[name] = layer.name
		}
	}
	var err error
	if c.TracingProtocol, _, err = tracingOf(src.Env); err != nil {
		return nil, err
	}
	for i := range table {
		s := &table[i]
		value := merged.String(s.Env)
		if value == "" || !want(s) {
			continue
		}
		if err := c.set(s, value); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// set parses one setting.
func (c *Config) set(s *Setting, value string) error {
	if err := s.parse(c, value); err != nil {
		return &SettingError{Name: s.Env, Reason: err.Error()}
	}
	if !s.Secret {
		c.values[s.Env] = value
	}
	return nil
}

// layerProvider is a flat map as koanf wants it.
type layerProvider map[string]string

func (p layerProvider) ReadBytes() ([]byte, error) {
	return nil, errors.New("a layer of settings is not bytes")
}

func (p layerProvider) Read() (map[string]any, error) {
	m := make(map[string]any, len(p))
	for k, v := range p {
		m[k] = v
	}
	return m, nil
}

func (s Sources) readDefaults(table []Setting) (map[string]string, error) {
	values := map[string]string{}
	for i := range table {
		v := table[i].Default
		if other, ok := s.Defaults[table[i].Env]; ok {
			v = other
		}
		if v != "" {
			values[table[i].Env] = v
		}
	}
	return values, nil
}

func (s Sources) readFlags([]Setting) (map[string]string, error) {
	values := map[string]string{}
	for name, v := range s.Flags {
		values[name] = v
	}
	return values, nil
}

// readEnv takes every PEGEL_* variable; one that is set to nothing counts as not set.
func (s Sources) readEnv(table []Setting) (map[string]string, error) {
	values := map[string]string{}
	for _, kv := range s.Env {
		name, v, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, envPrefix) || otherName(name) {
			continue
		}
		if !known(table, name) {
			if injectedByKubernetes.MatchString(name) {
				continue
			}
			return nil, unknownSetting(table, name)
		}
		if v != "" {
			values[name] = v
		}
	}
	return values, nil
}

// injectedByKubernetes matches what a cluster puts into every container for a Service called pegel or pegel-something.
var injectedByKubernetes = regexp.MustCompile(`^PEGEL_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// otherName reports whether a variable is Pegel's without being a setting of the service: PEGEL_DEV_* steers `pegel
// dev`, PEGEL_TEST_* and PEGEL_SOAK the tests, PEGEL_CONFIG is --config, and the rest is for the commands that talk to a server.
func otherName(name string) bool {
	switch name {
	case ConfigFileEnv, "PEGEL_SOAK", "PEGEL_SERVER", "PEGEL_PUBLIC_SERVER", "PEGEL_TOKEN", "PEGEL_TOKEN_FILE", "PEGEL_KEY":
		return true
	}
	return strings.HasPrefix(name, "PEGEL_DEV_") || strings.HasPrefix(name, "PEGEL_TEST_")
}

// ConfigFileEnv names the settings file where no --config does.
const ConfigFileEnv = "PEGEL_CONFIG"

func known(table []Setting, name string) bool {
	return slices.ContainsFunc(table, func(s Setting) bool {
		return name == s.Env || s.Secret && name == s.Env+fileSuffix
	})
}

func unknownSetting(table []Setting, name string) error {
	best, distance := "", 4
	for i := range table {
		// A guess that would change half of the name is none.
		if d := editDistance(name, table[i].Env); d < distance && 2*d < len(name)-len(envPrefix) {
			best, distance = table[i].Env, d
		}
	}
	if best != "" {
		return settingErrorf(name, "there is no such setting; did you mean %s?", best)
	}
	return settingErrorf(name, "there is no such setting; `pegel serve --help` lists them")
}

// editDistance is Levenshtein's.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

func (s Sources) readFile(table []Setting) (map[string]string, error) {
	values := map[string]string{}
	if s.File == "" {
		return values, nil
	}
	raw, err := readBounded(s.File, maxConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	var doc map[string]any
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("--config: %s is not YAML of the form NAME: value", s.File) // the error may quote a secret
	}
	for key, v := range doc {
		name := strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
		if !strings.HasPrefix(name, envPrefix) {
			name = envPrefix + name
		}
		if !known(table, name) {
			return nil, fmt.Errorf("--config: %s: %w", s.File, unknownSetting(table, name))
		}
		if _, twice := values[name]; twice {
			return nil, fmt.Errorf("--config: %s: %w", s.File, settingErrorf(name, "is there twice"))
		}
		text, ok := scalarText(v)
		if !ok {
			return nil, fmt.Errorf("--config: %s: %w", s.File, settingErrorf(name, "is neither a plain value nor a list of them"))
		}
		if text != "" {
			values[name] = text
		}
	}
	return values, nil
}

// scalarText is a YAML value as it would stand in the environment; a list is joined by commas.
func scalarText(v any) (string, bool) {
	switch v := v.(type) {
	case nil:
		return "", true
	case string:
		return v, true
	case bool, int, int64, uint64, float64:
		return fmt.Sprint(v), true
	case []any:
		parts := make([]string, len(v))
		for i, e := range v {
			text, ok := scalarText(e)
			if _, nested := e.([]any); !ok || nested {
				return "", false
			}
			parts[i] = text
		}
		return strings.Join(parts, ","), true
	default:
		return "", false
	}
}

// resolveFiles replaces NAME_FILE by NAME with the file's content, less the line break at its end.
func resolveFiles(table []Setting, values map[string]string, want func(*Setting) bool) error {
	for i := range table {
		s := &table[i]
		name := s.Env + fileSuffix
		path, given := values[name]
		if !s.Secret || !given || !want(s) {
			continue
		}
		if _, both := values[s.Env]; both {
			return settingErrorf(name, "and %s are both set; keep one", s.Env)
		}
		raw, err := readBounded(path, maxSecretFile)
		if err != nil {
			return settingErrorf(name, "%v", err)
		}
		secret := strings.TrimRight(string(raw), "\r\n")
		if secret == "" {
			return settingErrorf(name, "%s is empty", path)
		}
		delete(values, name)
		values[s.Env] = secret
	}
	return nil
}

func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the file: %w", err)
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read the file: %w", err)
	}
	if int64(len(raw)) > most {
		return nil, fmt.Errorf("read the file: %s is larger than %d KiB", path, most>>10)
	}
	return raw, nil
}
