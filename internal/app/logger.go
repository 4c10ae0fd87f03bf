package app

import (
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
)

// NewLogger is the process's logger, by the settings: text on a terminal and json elsewhere unless they say otherwise.
func NewLogger(c *Config, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: c.LogLevel, ReplaceAttr: readable}
	format := c.LogFormat
	if format == "" {
		format = "json"
		if IsTerminal(w) {
			format = "text"
		}
	}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// readable keeps two kinds of value readable in JSON too: slog writes a duration as a number of nanoseconds there, and
// pgx tells of a failed connection in several lines.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	if err, ok := a.Value.Any().(error); ok {
		return slog.String(a.Key, OneLine(err))
	}
	return a
}

// OneLine is the message of err without line breaks: the lines of a longer one are joined, each said once.
func OneLine(err error) string {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		if line != "" && (len(lines) == 0 || lines[len(lines)-1] != line) {
			lines = append(lines, line)
		}
	}
	if len(lines) < 2 {
		return strings.Join(lines, "")
	}
	return strings.TrimSuffix(lines[0], ":") + ": " + strings.Join(lines[1:], "; ")
}

// IsTerminal reports whether w, a reader or writer, is a character device other than the null device.
func IsTerminal(w any) bool {
	f, ok := w.(interface{ Stat() (fs.FileInfo, error) })
	if !ok {
		return false
	}
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(st, null)
}
