// Package deploy_test checks the files Pegel is deployed with: what they promise is a guarantee like any other.
package deploy_test

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/pegel-dev/pegel/internal/app"
)

const root = ".."

func loadCompose(t *testing.T, env ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")}, cli.WithEnv(env))
	require.NoError(t, err)
	project, err := options.LoadProject(context.Background())
	require.NoError(t, err, "docker-compose.yml does not load: unknown key or wrong form")
	return project
}

func TestComposeStartsInOrder(t *testing.T) {
	t.Parallel()
	project := loadCompose(t)
	require.ElementsMatch(t, []string{"postgres", "redis", "migrate", "pegel"}, project.ServiceNames())

	migrate := project.Services["migrate"]
	require.Equal(t, types.ShellCommand{"migrate", "up"}, migrate.Command)
	require.Equal(t, types.ServiceConditionHealthy, migrate.DependsOn["postgres"].Condition)
	require.True(t, strings.HasPrefix(migrate.Restart, "on-failure"), "one-shot: it must not be restarted after success")

	pegel := project.Services["pegel"]
	require.Equal(t, types.ServiceConditionCompletedSuccessfully, pegel.DependsOn["migrate"].Condition)
	require.Equal(t, types.ServiceConditionHealthy, pegel.DependsOn["postgres"].Condition)
	require.Equal(t, types.ServiceConditionHealthy, pegel.DependsOn["redis"].Condition)
	for _, store := range []string{"postgres", "redis"} {
		require.NotNil(t, project.Services[store].HealthCheck, "%s is waited for", store)
		require.NotEmpty(t, project.Services[store].HealthCheck.Test)
	}
}

// A restarted Redis goes on counting where it was, and a full one refuses instead of forgetting what tenants used.
func TestComposeKeepsWhatTenantsUsed(t *testing.T) {
	t.Parallel()
	project := loadCompose(t)
	redis := project.Services["redis"]
	settings := map[string]string{}
	for i := 1; i+1 < len(redis.Command); i += 2 {
		settings[strings.TrimPrefix(redis.Command[i], "--")] = redis.Command[i+1]
	}
	require.Equal(t, "yes", settings["appendonly"])
	require.Equal(t, "everysec", settings["appendfsync"])
	require.Equal(t, "noeviction", settings["maxmemory-policy"])
	require.NotEmpty(t, settings["maxmemory"], "noeviction says nothing without a bound")
	require.True(t, strings.HasPrefix(redis.Image, "redis:7.0"), "the tested version")
	require.True(t, strings.HasPrefix(project.Services["postgres"].Image, "postgres:15"), "the tested version")

	for service, target := range map[string]string{"redis": "/data", "postgres": "/var/lib/postgresql/data"} {
		mounted := slices.ContainsFunc(project.Services[service].Volumes, func(v types.ServiceVolumeConfig) bool {
			return v.Target == target && v.Type == types.VolumeTypeVolume && v.Source != ""
		})
		require.True(t, mounted, "%s keeps its data in a named volume", service)
	}
}

func TestComposeGivesNothingAway(t *testing.T) {
	t.Parallel()
	project := loadCompose(t)
	for name, service := range project.Services {
		require.True(t, service.ReadOnly, "%s: read_only", name)
		require.Equal(t, []string{"ALL"}, service.CapDrop, "%s: cap_drop", name)
		require.Empty(t, service.CapAdd, "%s: cap_add", name)
		require.Contains(t, service.SecurityOpt, "no-new-privileges:true", "%s: security_opt", name)
		require.False(t, service.Privileged, "%s: privileged", name)
		require.Empty(t, service.NetworkMode, "%s: network_mode", name)
		if name != "pegel" {
			require.Empty(t, service.Ports, "%s is not published", name)
			require.NotContains(t, service.Networks, "front", "%s is on the internal network only", name)
		}
		if name == "postgres" || name == "redis" {
			require.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, service.User, "%s does not run as root", name)
		}
		for key, value := range service.Environment {
			require.NotNil(t, value, "%s: %s comes from whoever runs compose", name, key)
			u, err := url.Parse(*value)
			if err == nil && u.User != nil {
				_, secret := u.User.Password()
				require.False(t, secret, "%s: %s holds a password", name, key)
			}
			if strings.Contains(key, "PASSWORD") || strings.Contains(key, "TOKEN") || strings.Contains(key, "SECRET") || key == "PEGEL_DATABASE_URL" {
				require.True(t, strings.HasSuffix(key, "_FILE"), "%s: %s must be read from a file", name, key)
			}
			if strings.HasSuffix(key, "_FILE") {
				secret := strings.TrimPrefix(*value, "/run/secrets/")
				require.Contains(t, project.Secrets, secret, "%s: %s", name, key)
				require.True(t, slices.ContainsFunc(service.Secrets, func(s types.ServiceSecretConfig) bool { return s.Source == secret }),
					"%s is not given the secret %s", name, secret)
			}
		}
	}
	require.True(t, project.Networks["stores"].Internal)
}

// The admin listener has a route without a credential (/metrics), so it is published on loopback whatever the port.
func TestComposePublishesAdminOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for _, project := range []*types.Project{loadCompose(t), loadCompose(t, "PEGEL_PUBLISH=80", "PEGEL_ADMIN_PUBLISH=9000")} {
		pegel := project.Services["pegel"]
		require.Len(t, pegel.Ports, 2)
		for _, port := range pegel.Ports {
			switch port.Target {
			case 8080:
				require.Empty(t, port.HostIP)
			case 8081:
				require.Equal(t, "127.0.0.1", port.HostIP)
			default:
				require.Failf(t, "unexpected port", "%d", port.Target)
			}
		}
		listen := pegel.Environment["PEGEL_ADMIN_LISTEN"]
		require.NotNil(t, listen)
		require.Equal(t, ":8081", *listen)
	}
}

// Every secret that compose mounts is one that scripts/compose-secrets writes, in a folder nobody else can enter, and a
// second run changes nothing.
func TestComposeSecretsScript(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "scripts"), 0o755))
	raw, err := os.ReadFile(filepath.Join(root, "scripts", "compose-secrets"))
	require.NoError(t, err)
	script := filepath.Join(dir, "scripts", "compose-secrets")
	require.NoError(t, os.WriteFile(script, raw, 0o755))

	read := func() map[string]string {
		out, err := exec.Command("bash", script).CombinedOutput()
		require.NoError(t, err, "%s", out)
		found := map[string]string{}
		for name := range loadCompose(t).Secrets {
			content, err := os.ReadFile(filepath.Join(dir, "secrets", name))
			require.NoError(t, err)
			found[name] = string(content)
		}
		return found
	}
	first := read()
	require.GreaterOrEqual(t, len(first["admin_token"]), 32, "Pegel refuses a shorter one")
	u, err := url.Parse(first["database_url"])
	require.NoError(t, err)
	password, _ := u.User.Password()
	require.Equal(t, first["postgres_password"], password)
	require.Equal(t, "postgres:5432", u.Host, "the service's name in compose")

	info, err := os.Stat(filepath.Join(dir, "secrets"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.Equal(t, first, read())
}

// What compose gives Pegel is what Pegel accepts: no unknown name, no bad value.
func TestComposeSettingsAreValid(t *testing.T) {
	t.Parallel()
	project := loadCompose(t)
	secrets := t.TempDir()
	for name, content := range map[string]string{
		"database_url": "postgres://pegel:secret@postgres:5432/pegel?sslmode=disable",
		"admin_token":  strings.Repeat("x", 32),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(secrets, name), []byte(content), 0o600))
	}
	var env []string
	for name, value := range project.Services["pegel"].Environment {
		env = append(env, name+"="+strings.Replace(*value, "/run/secrets", secrets, 1))
	}
	config, err := app.Load(app.Sources{Env: env})
	require.NoError(t, err)
	require.Equal(t, ":8081", config.AdminListen)

	grace := time.Duration(*project.Services["pegel"].StopGracePeriod)
	require.Greater(t, grace, config.DrainPause+config.DrainTimeout, "killed before it has drained")
}
