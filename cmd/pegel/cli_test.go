package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTheCommandLine is one installation for all that can share it.
func TestTheCommandLine(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.must("tenant create school-17 --name 'School 17' --plan light")
	s.must("tenant create school-18 --name 'School 18' --plan pro")
	s.must("override set school-17 requests-per-minute 5000 --reason exams")
	s.must("network deny 203.0.113.0/24 --reason scan")
	t.Run("an export changes nothing", s.exportChangesNothing)
	t.Run("a dry run prints what apply prints", s.dryRunIsApply)
	t.Run("prune asks", s.pruneAsks)
	t.Run("faults of a file have their lines", s.faultsHaveLines)
	t.Run("errors", s.errors)
	t.Run("output", s.output)
	t.Run("completion", s.completion)
	t.Run("credentials", s.credentials)
}

func (s *server) in(t *testing.T) *server {
	t.Helper()
	other := *s
	other.t = t
	return &other
}

func (s *server) write(name, text string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
}

// audited is how many entries the log has.
func (s *server) audited() int {
	s.t.Helper()
	return strings.Count(s.must("audit export --actor ops"), "\n")
}

// Guarantee: applying an exported file changes nothing, pruning included, and leaves no audit entry.
func (s *server) exportChangesNothing(t *testing.T) {
	s = s.in(t)
	file := s.must("export")
	s.write("pegel.yaml", file)
	before := s.audited()
	for _, flags := range []string{"", " --prune", " --dry-run --exit-code"} {
		stdout, stderr, status := s.pegel("apply -f pegel.yaml" + flags)
		require.Zero(t, status, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "nothing")
	}
	require.Equal(t, before, s.audited())
	require.Equal(t, file, s.must("export"), "an unchanged configuration gives the same file")
	require.NotContains(t, file, "pgk_")
	s.write("pegel.json", s.must("export -o json"))
	require.Empty(t, s.must("apply -f pegel.json"), "what the API answers is a file too")
}

// Guarantee: a dry run prints, to the byte, what applying then prints; afterwards there is nothing left to change.
func (s *server) dryRunIsApply(t *testing.T) {
	s = s.in(t)
	s.write("changed.yaml", `
plans:
  - {name: gold, limits: [{name: requests-per-minute, limit: 9, window: 1m}]}
  - {name: light, title: Lighter, limits: [{name: requests-per-minute, limit: 2500, window: 1m}, {name: exports, limit: 5, refill: {units: 1, every: 1s}, algorithm: token_bucket, scope: user}]}
tenants:
  - {slug: school-17, name: School 17, plan: gold}
  - {slug: school-19, name: School 19, plan: light, overrides: [{limit_name: exports, limit: 50, reason: "mo\e[31mve"}]}
networks:
  - {cidr: 2001:db8::/32, action: deny, expires_at: 2999-01-31}
mode: shadow
`)
	dry, said, status := s.pegel("apply -f changed.yaml --dry-run --exit-code")
	require.Equal(t, exitDenied, status)
	require.Contains(t, said, "dry run: nothing was changed (4 to create, 3 to update, 0 to delete)")
	applied, said, status := s.pegel("apply -f changed.yaml")
	require.Zero(t, status, said)
	require.Contains(t, said, "applied: 4 created, 3 updated, 0 deleted")
	require.Equal(t, dry, applied)
	require.NotContains(t, applied, "\x1b")
	for _, part := range []string{
		"+ plan gold\n", "~ plan light\n", "    limits.requests-per-minute.limit: 2000 -> 2500\n", "~ tenant school-17\n    plan: \"light\" -> \"gold\"\n",
		"+ override school-19/exports\n", "+ network deny 2001:db8::/32\n", "~ mode\n    mode: \"shadow\"\n",
	} {
		require.Contains(t, applied, part)
	}
	require.Empty(t, s.must("apply -f changed.yaml"))
}

// Guarantee: what is deleted is shown, and nobody is asked only where --yes was said.
func (s *server) pruneAsks(t *testing.T) {
	s = s.in(t)
	s.write("few.yaml", "networks: []\n")
	before := s.must("export")
	stdout, stderr, status := s.pegel("apply -f few.yaml --prune")
	require.Equal(t, exitUsage, status)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "- network deny 203.0.113.0/24\n")
	require.Contains(t, stderr, "say --yes")
	require.Equal(t, before, s.must("export"))
	require.Equal(t, "- network deny 203.0.113.0/24\n- network deny 2001:db8::/32\n", s.must("apply -f few.yaml --prune --yes"))

	s.write("plans.yaml", "plans: []\n")
	_, stderr, status = s.pegel("apply -f plans.yaml --prune --dry-run")
	require.Equal(t, exitError, status)
	require.Contains(t, stderr, "pegel: plan gold cannot be pruned: it is used by tenant school-17, which the file does not describe")
	_, stderr, status = s.pegel("tenant delete school-18")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "say --yes")
	s.must("tenant delete school-18 --yes")
}

// Guarantee: a fault has the file's name and the line.
func (s *server) faultsHaveLines(t *testing.T) {
	s = s.in(t)
	s.write("bad.yaml", "plans:\n  - name: light\n    limts: []\n    limits:\n      - name: a\n        limit: -1\n        window: 1m\n")
	_, stderr, status := s.pegel("apply -f bad.yaml")
	require.Equal(t, exitError, status)
	require.Equal(t, `bad.yaml:3: plans/0/limts is not a known field
bad.yaml:6: plans/0/limits/0/limit must be 0 to 1000000000000
pegel: bad.yaml is not valid in 2 place(s); nothing was changed
`, stderr)
	s.write("bad.yaml", "tenants:\n  - slug: a\n    name: A\n    plan: nowhere\n  - slug: b\n    name: B\n    plan: light\n    contact_email: not one\n")
	_, stderr, _ = s.pegel("apply -f bad.yaml")
	require.Contains(t, stderr, "bad.yaml:8: tenants/1/contact_email must be one plain e-mail address")
	s.write("bad.yaml", "tenants: [\n")
	_, stderr, status = s.pegel("apply -f bad.yaml")
	require.Equal(t, exitError, status)
	require.Contains(t, stderr, "pegel: bad.yaml: line ")
	s.write("light.yaml", "name: light\nlimits:\n  - {name: a, limit: 5, window: 1h, scope: nobody}\n")
	_, stderr, _ = s.pegel("plan set light --file light.yaml")
	require.Contains(t, stderr, "light.yaml:3: limits/0/scope must be one of")
}

// Guarantee: a failure is one line that says what to do, with the exit status that docs/cli.md promises.
func (s *server) errors(t *testing.T) {
	s = s.in(t)
	s.write("odd", "two words\n")
	tls := strings.Replace(s.admin, "http://", "https://", 1)
	for args, want := range map[string]struct {
		status int
		says   string
	}{
		"tenant get nobody":                                               {exitError, "tenants/nobody: there is no such object"},
		"tenant get":                                                      {exitUsage, "TENANT is missing: `pegel tenant get TENANT"},
		"tenant get a b":                                                  {exitUsage, `"b" is one argument too many`},
		"tenant list --nonsense":                                          {exitUsage, "unknown flag: --nonsense"},
		"tenant list -o xml":                                              {exitUsage, `--output: "xml" is not table, json or yaml`},
		"export -o table":                                                 {exitUsage, `--output: "table" is not yaml or json`},
		"audit export -o json":                                            {exitUsage, "--output: `pegel audit export` has --format instead"},
		"tenant create Bad --plan light":                                  {exitError, "not valid: slug must match"},
		"tenant create ok --plan nowhere":                                 {exitError, "not valid: plan must name a plan that exists"},
		"tenant create school-17 --plan light":                            {exitError, "a tenant of this slug exists"},
		"tenant list --server http://127.0.0.1:1":                         {exitError, "is it running? --server or PEGEL_SERVER names another"},
		"tenant list --server " + tls:                                     {exitError, tls + " is asked by https:// and speaks http://\n"},
		"tenant list --server ftp://x":                                    {exitUsage, "--server: is not an http:// or https:// URL"},
		"tenant list --server " + s.public:                                {exitError, s.public + ": this is the public listener: administration, dashboard and metrics are on the admin listener (PEGEL_ADMIN_LISTEN); name that one with --server or PEGEL_SERVER"},
		"export --server " + s.public:                                     {exitError, "this is the public listener"},
		"audit export --server " + s.public:                               {exitError, "this is the public listener"},
		"status --server " + s.admin:                                      {exitError, "this is the admin listener: decisions are on the public listener (PEGEL_LISTEN); name that one with --server or PEGEL_PUBLIC_SERVER"},
		"tenant list --server " + s.admin + "/nowhere":                    {exitError, "there is nothing at this path"},
		"tenant list --token-file odd":                                    {exitUsage, "pegel: the token must be printable ASCII"},
		"tenant list --token-file nowhere":                                {exitUsage, "nowhere: no such file"},
		"plan set light --limit x":                                        {exitUsage, `"x" is not NAME=QUOTA`},
		"plan set light --remove-limit x":                                 {exitError, `plan light has no limit "x"`},
		"plan delete light --yes":                                         {exitError, "the plan is used by"},
		"override set school-17 a b --reason x":                           {exitUsage, `"b" is not a whole number`},
		"key create school-17 --expires-in -1h":                           {exitUsage, "is in the past"},
		"key create school-17 --name x --expires-at 2001-01-01T00:00:00Z": {exitError, "expires_at must be in the future"},
		"check --tenant school-17":                                        {exitError, "set PEGEL_KEY or --token-file"},
		"apply":                                                           {exitUsage, "--file is missing"},
	} {
		stdout, stderr, status := s.pegel(args)
		require.Equal(t, want.status, status, "%s\n%s", args, stderr)
		require.Contains(t, stderr, want.says, args)
		require.Empty(t, stdout, args)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.NotContains(t, stderr, s.token)
	}
	_, stderr, status := s.shell("PEGEL_TOKEN=pga_wrong pegel tenant list\n")
	require.Equal(t, exitError, status)
	require.Equal(t, "pegel: no valid admin token (wrong, expired or revoked): set PEGEL_TOKEN or --token-file\n", stderr)
	_, stderr, status = s.shell("PEGEL_TOKEN= pegel tenant list\n")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "no admin token: set PEGEL_TOKEN")
	out, _, status := s.shell("echo $PEGEL_TOKEN | PEGEL_TOKEN= pegel mode get --token-file -\n")
	require.Zero(t, status)
	require.NotEmpty(t, out)
	viewer := strings.TrimSpace(s.must("admin-token create --name look --role viewer"))
	_, stderr, status = s.shell("PEGEL_TOKEN=" + viewer + " pegel tenant reset school-17\n")
	require.Equal(t, exitError, status)
	require.Equal(t, "pegel: this needs the role operator\n", stderr)
}

// Guarantee: json is what the API answers, over all pages; tables fit their width and never steer a terminal.
func (s *server) output(t *testing.T) {
	s = s.in(t)
	s.must("tenant create long --plan light --name '" + strings.Repeat("long ", 39) + "' --contact-email " + strings.Repeat("a", 60) + "@example.org")
	for _, noun := range []string{
		"plan list", "tenant list", "key list school-17", "service-token list", "admin-token list", "override list school-19", "network list",
		"audit list", "usage top", "alert list", "address-policy get", "mode get", "plan get light",
	} {
		table := s.must(noun)
		require.NotContains(t, table, "\x1b", noun)
		for line := range strings.Lines(table) {
			require.LessOrEqual(t, len([]rune(line)), tableWidth+1, noun)
		}
		require.True(t, json.Valid([]byte(s.must(noun+" -o json"))), noun)
		require.NotEmpty(t, s.must(noun+" -o yaml"), noun)
	}
	var list struct {
		Items []struct {
			Slug string `json:"slug"`
		} `json:"items"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.must("tenant list -o json")), &list))
	require.Len(t, list.Items, 3)
	require.NoError(t, json.Unmarshal([]byte(s.must("tenant list --limit 1 -o json")), &list))
	require.Len(t, list.Items, 1)
	s.must("key create school-17 --name told")
	var changes struct {
		Items []struct {
			Action string `json:"action"`
			Tenant string `json:"tenant"`
		} `json:"items"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.must("audit list --tenant school-17 --limit 0 -o json")), &changes))
	require.Equal(t, "api_key.create", changes.Items[0].Action)
	for _, entry := range changes.Items {
		require.Equal(t, "school-17", entry.Tenant)
	}
	require.NoError(t, json.Unmarshal([]byte(s.must("schema")), new(any)))
	require.Equal(t, "2001:db8::/32\n", s.must("network deny 2001:db8::/32 > /dev/null; pegel network export"))
}

// Guarantee: completion knows commands, flags and, when the server answers, names.
func (s *server) completion(t *testing.T) {
	s = s.in(t)
	for args, want := range map[string]string{
		"__complete ten":                       "tenant\t",
		"__complete tenant get sch":            "school-17\nschool-19\n",
		"__complete tenant set long --plan ''": "gold\nlight\n",
		"__complete mode set ''":               "enforce\nshadow\n",
		"__complete plan get --outp":           "--output\t",
		"__complete tenant list -o ''":         "table\njson\nyaml\n",
		"completion bash":                      "complete",
	} {
		require.Contains(t, s.must(args), want, args)
	}
	out, _, status := s.shell("PEGEL_SERVER=http://127.0.0.1:1 pegel __complete tenant get ''\n")
	require.Zero(t, status, "a server that is away is silence")
	require.Equal(t, ":4\n", out)
}

// Guarantee: a secret is printed once, alone, and works at once; rotation and revocation do what they say.
func (s *server) credentials(t *testing.T) {
	s = s.in(t)
	key, said, status := s.pegel("key create school-19 --name app --expires-in 1h")
	require.Zero(t, status, said)
	require.Regexp(t, `^pgk_\w+\n$`, key)
	require.NotContains(t, said, strings.TrimSpace(key))
	out, _, status := s.shell("PEGEL_KEY=" + key + " pegel status")
	require.Zero(t, status)
	require.Contains(t, out, "allow; decided from ")
	id := strings.Split(key, "_")[1]
	require.Regexp(t, `^pgk_\w+\n$`, s.must("key rotate school-19 "+id+" --overlap 0s"))
	require.Contains(t, s.must("key list school-19 --status expired"), id)
	second := strings.Split(s.must("key create school-19 --name two"), "_")[1]
	s.must("key revoke school-19 " + second + " --yes")
	require.Contains(t, s.must("key list school-19 --status revoked"), second)

	service := strings.TrimSpace(s.must("service-token create --name edge --may check,status --exempt-address"))
	s.write("service", service)
	s.must("mode set enforce")
	out, said, status = s.pegel("check --tenant school-19 --cost 9999999999 --token-file service")
	require.Equal(t, exitError, status, out+said)
	out, _, status = s.pegel("check --tenant school-19 --cost 2600 --token-file service")
	require.Equal(t, exitDenied, status)
	require.Contains(t, out, "deny; ")
	s.explained(t)
	s.must("check --tenant school-19 --cost 5 --peek --token-file service")
	s.must("service-token revoke " + strings.Split(service, "_")[1] + " --yes")
	_, said, status = s.pegel("check --tenant school-19 --token-file service")
	require.Equal(t, exitError, status)
	require.Contains(t, said, "no valid credential")
}

// explained follows a refusal through the request log to its explanation.
func (s *server) explained(t *testing.T) {
	t.Helper()
	var log struct {
		Items []struct {
			DecisionID string `json:"decision_id"`
		} `json:"items"`
	}
	require.Eventually(t, func() bool {
		return json.Unmarshal([]byte(s.must("request list --tenant school-19 --decision deny -o json")), &log) == nil && len(log.Items) > 0
	}, 30*time.Second, 100*time.Millisecond)
	require.Contains(t, s.must("request list --tenant school-19"), "school-19  deny")
	require.Contains(t, s.must("request export --format csv --tenant school-19"), log.Items[0].DecisionID)
	var out string
	require.Eventually(t, func() bool {
		var status int
		out, _, status = s.pegel("decision get " + log.Items[0].DecisionID)
		return status == 0
	}, 30*time.Second, 100*time.Millisecond)
	require.Contains(t, out, "\ndecision: deny\n")
	s.must("usage tenant school-19 --step 1m --by limit")
}

// Guarantee: the commands that need no server run without one.
func TestCommandsWithoutAServer(t *testing.T) {
	t.Parallel()
	out, err := run(t, "schema")
	require.NoError(t, err)
	require.Contains(t, out, `"title": "Pegel configuration"`)
}
