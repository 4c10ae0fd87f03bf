package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Examples are the tenants and credentials that `pegel dev` shows itself with. They are stored as JSON in its state
// directory, secrets included, so that keys survive a restart.
type Examples struct {
	Tenants []ExampleTenant `json:"tenants"`
	// ServiceToken may check, status, refund and identify, and is exempt from address limits.
	ServiceToken string `json:"service_token"`
	// AdminToken is the bootstrap administrator's.
	AdminToken string `json:"admin_token"`
}

// ExampleTenant is a tenant with one API key.
type ExampleTenant struct {
	Slug string `json:"slug"`
	Name string `json:"name"`
	Plan string `json:"plan"`
	Key  string `json:"key"`
}

// NewExamples makes one tenant for each default plan, with fresh credentials.
func NewExamples(random io.Reader) (*Examples, error) {
	ex := &Examples{Tenants: []ExampleTenant{
		{Slug: "school-17", Name: "School 17", Plan: "light"},
		{Slug: "academy", Name: "Academy of Music", Plan: "pro"},
		{Slug: "campus", Name: "Campus North", Plan: "dedicated"},
	}}
	secrets := map[*string]tenants.Kind{&ex.ServiceToken: tenants.KindServiceToken, &ex.AdminToken: tenants.KindAdminToken}
	for i := range ex.Tenants {
		secrets[&ex.Tenants[i].Key] = tenants.KindAPIKey
	}
	for dst, kind := range secrets {
		_, text, err := tenants.NewCredential(kind, random)
		if err != nil {
			return nil, fmt.Errorf("make a credential: %w", err)
		}
		*dst = text
	}
	return ex, nil
}

// devActor stands behind what `pegel dev` installs.
var devActor = audit.Actor{Kind: "system", Name: "pegel dev"}

// InstallExamples creates what is not there yet and has this replica load it. What an operator changed or revoked
// meanwhile stays as it is.
func (a *App) InstallExamples(ctx context.Context, ex *Examples) error {
	for i := range ex.Tenants {
		if err := installTenant(ctx, a.repository, &ex.Tenants[i]); err != nil {
			return fmt.Errorf("install the example tenant %s: %w", ex.Tenants[i].Slug, err)
		}
	}
	if err := installServiceToken(ctx, a.repository, ex.ServiceToken); err != nil {
		return fmt.Errorf("install the example service token: %w", err)
	}
	if err := installAdminToken(ctx, a.repository, ex.AdminToken); err != nil {
		return fmt.Errorf("install the example admin token: %w", err)
	}
	return a.poller.Refresh(ctx)
}

func installTenant(ctx context.Context, repo tenants.Repository, ex *ExampleTenant) error {
	t := tenants.Tenant{Slug: ex.Slug, Name: ex.Name, Plan: ex.Plan}
	t.SetDefaults()
	if _, err := repo.CreateTenant(ctx, devActor, t); err != nil && !errors.Is(err, tenants.ErrConflict) {
		return fmt.Errorf("create it: %w", err)
	}
	cred, err := tenants.ParseCredential(ex.Key)
	if err != nil {
		return fmt.Errorf("read its key: %w", err)
	}
	keys, err := everything(func(p tenants.Page) (tenants.List[tenants.APIKey], error) {
		return repo.ListKeys(ctx, ex.Slug, tenants.CredentialFilter{}, p)
	})
	if err != nil {
		return fmt.Errorf("list its keys: %w", err)
	}
	if slices.ContainsFunc(keys, func(k tenants.APIKey) bool { return k.ID == cred.ID }) {
		return nil
	}
	if _, err := repo.CreateKey(ctx, devActor, ex.Slug, tenants.APIKey{ID: cred.ID, Hash: cred.Hash, Name: "example"}); err != nil {
		return fmt.Errorf("create its key: %w", err)
	}
	return nil
}

func installServiceToken(ctx context.Context, repo tenants.Repository, text string) error {
	cred, err := tenants.ParseCredential(text)
	if err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	list, err := everything(func(p tenants.Page) (tenants.List[tenants.ServiceToken], error) {
		return repo.ListServiceTokens(ctx, tenants.CredentialFilter{}, p)
	})
	if err != nil {
		return fmt.Errorf("list those that exist: %w", err)
	}
	if slices.ContainsFunc(list, func(t tenants.ServiceToken) bool { return t.ID == cred.ID }) {
		return nil
	}
	_, err = repo.CreateServiceToken(ctx, devActor, tenants.ServiceToken{
		ID: cred.ID, Hash: cred.Hash, Name: "example-service", Exempt: []ratelimit.Scope{ratelimit.ScopeAddress},
		May: []tenants.Permission{tenants.MayCheck, tenants.MayStatus, tenants.MayRefund, tenants.MayIdentify},
	})
	if err != nil {
		return fmt.Errorf("create it: %w", err)
	}
	return nil
}

func installAdminToken(ctx context.Context, repo tenants.Repository, text string) error {
	cred, err := tenants.ParseCredential(text)
	if err != nil {
		return fmt.Errorf("read it: %w", err)
	}
	list, err := everything(func(p tenants.Page) (tenants.List[tenants.AdminToken], error) {
		return repo.ListAdminTokens(ctx, tenants.CredentialFilter{}, p)
	})
	if err != nil {
		return fmt.Errorf("list those that exist: %w", err)
	}
	if slices.ContainsFunc(list, func(t tenants.AdminToken) bool { return t.ID == cred.ID }) {
		return nil
	}
	if _, err := repo.CreateAdminToken(ctx, devActor, tenants.AdminToken{
		ID: cred.ID, Hash: cred.Hash, Name: "example-admin", Role: tenants.Admin,
	}); err != nil {
		return fmt.Errorf("create it: %w", err)
	}
	return nil
}

// everything reads all pages of a list.
func everything[T any](page func(tenants.Page) (tenants.List[T], error)) ([]T, error) {
	var all []T
	p := tenants.Page{Limit: 500}
	for {
		list, err := page(p)
		if err != nil {
			return nil, err
		}
		all = append(all, list.Items...)
		if list.Next == "" {
			return all, nil
		}
		p.Cursor = list.Next
	}
}
