package main

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

// mostNames bounds how many names completion offers.
const mostNames = 200

// names asks for the names of objects that start so; any failure is silence, as completion goes.
func (r *remote) names(cmd *cobra.Command, path, field, prefix string) []string {
	c, err := r.client(cmd)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	query := url.Values{}
	if prefix != "" {
		query.Set("search", prefix)
	}
	items, err := c.List(ctx, path, query, mostNames)
	if err != nil {
		return nil
	}
	var found []string
	for _, raw := range items {
		var item map[string]any
		if json.Unmarshal(raw, &item) != nil {
			continue
		}
		if name, ok := item[field].(string); ok && strings.HasPrefix(name, prefix) {
			found = append(found, name)
		}
	}
	return found
}

// completeFlag offers the names of objects for a flag.
func (r *remote) completeFlag(cmd *cobra.Command, flag, path, field string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return r.names(cmd, path, field, prefix), cobra.ShellCompDirectiveNoFileComp
	}) // the flag exists
}

// fixed offers words for a flag.
func fixed(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}
