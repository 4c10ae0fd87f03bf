package app

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Describe writes every setting that has a value, where the value comes from, and the value unless it is secret.
func (c *Config) Describe(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, s := range Settings() {
		origin, set := c.Origins[s.Env]
		if !set {
			continue
		}
		value := c.values[s.Env]
		if s.Secret {
			value = redactedSecret
		}
		if _, err := fmt.Fprintf(tw, "%s\t%s\t(%s)\n", s.Env, value, origin); err != nil {
			return fmt.Errorf("write settings: %w", err)
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return nil
}
