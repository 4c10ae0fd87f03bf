package tenants

import (
	"slices"
	"strings"
)

// maxPathLength bounds the paths that are matched at all; no server we know of accepts a longer request line.
const maxPathLength = 8192

// Holds reports whether the limit holds for a request. path is canonical (CanonicalPath). A match that names methods or
// paths needs the fact to be given; an empty Match always holds.
func (m Match) Holds(method, path string) bool {
	if len(m.Methods) > 0 && (method == "" || !slices.Contains(m.Methods, strings.ToUpper(method))) {
		return false
	}
	if len(m.Paths) == 0 {
		return true
	}
	if path == "" {
		return false
	}
	for _, pattern := range m.Paths {
		if pathMatches(pattern, path) {
			return true
		}
	}
	return false
}

// PatternOf is the first pattern of m that a canonical path matches, empty when there is none.
func (m Match) PatternOf(path string) string {
	for _, pattern := range m.Paths {
		if path != "" && pathMatches(pattern, path) {
			return pattern
		}
	}
	return ""
}

// CanonicalPath is the one spelling of a path that limits are matched on, whatever spelling reaches the upstream: query and
// fragment dropped, percent-encodings decoded, ";parameters" of a segment, empty and "." segments and a trailing slash
// dropped, ".." resolved, ASCII letters in lower case (servers differ on case: one more hit counted is the safe side). An
// absolute-form target ("http://host/path") is reduced to its path.
//
// ok is false for what must be refused because two servers could read it as two paths: an encoded slash or backslash, a
// raw backslash, NUL or any other control byte (encoded or raw), a broken or double percent-encoding, ".." above the root, bytes that
// are not UTF-8, a path longer than 8 KiB, or a path that does not start with a slash.
func CanonicalPath(raw string) (canonical string, ok bool) {
	raw = dropAuthority(raw)
	if i := strings.IndexAny(raw, "?#"); i >= 0 {
		raw = raw[:i]
	}
	if raw == "" || raw[0] != '/' || len(raw) > maxPathLength {
		return "", false
	}
	if isCanonical(raw) {
		return raw, true
	}
	segments := make([]string, 0, strings.Count(raw, "/"))
	for segment := range strings.SplitSeq(raw[1:], "/") {
		// Parameters are cut before decoding: an encoded semicolon is data.
		segment, _, _ = strings.Cut(segment, ";")
		segment, ok = canonicalSegment(segment)
		switch {
		case !ok:
			return "", false
		case segment == "" || segment == ".":
		case segment == "..":
			if len(segments) == 0 {
				return "", false
			}
			segments = segments[:len(segments)-1]
		default:
			segments = append(segments, segment)
		}
	}
	return "/" + strings.Join(segments, "/"), true
}

// dropAuthority reduces an absolute-form request target to its path.
func dropAuthority(target string) string {
	scheme, rest, found := strings.Cut(target, "://")
	if !found || strings.ContainsAny(scheme, "/?#") {
		return target
	}
	if i := strings.IndexAny(rest, "/?#"); i >= 0 && rest[i] == '/' {
		return rest[i:]
	}
	return "/"
}

// isCanonical recognises, without allocating, the common path that needs no change: plain lower-case segments.
func isCanonical(path string) bool {
	for i := range len(path) {
		c := path[i]
		plain := 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '~' || c == ':' || c == '@' || c == '=' || c == ',' || c == '+'
		slash := c == '/' && (i == 0 || path[i-1] != '/')
		dot := c == '.' && i > 0 && path[i-1] != '/' && path[i-1] != '.'
		if !plain && !slash && !dot {
			return false
		}
	}
	return len(path) == 1 || path[len(path)-1] != '/'
}

// canonicalSegment decodes one segment and lowers its ASCII letters.
func canonicalSegment(s string) (string, bool) {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' {
			if i+2 >= len(s) {
				return "", false
			}
			hi, okHi := unhex(s[i+1])
			lo, okLo := unhex(s[i+2])
			if !okHi || !okLo {
				return "", false
			}
			c = hi<<4 | lo
			i += 2
			if c == '/' || c == '%' {
				return "", false
			}
		}
		if c < ' ' || c == 0x7f || c == '\\' {
			return "", false
		}
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	out := b.String()
	return out, validText(out)
}

func unhex(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// pathMatches walks pattern and path segment by segment: "*" takes one segment, a last "*" one or more.
func pathMatches(pattern, path string) bool {
	pattern, path = strings.TrimPrefix(pattern, "/"), strings.TrimPrefix(path, "/")
	for {
		p, patternRest, patternMore := strings.Cut(pattern, "/")
		s, pathRest, pathMore := strings.Cut(path, "/")
		if p == "*" && !patternMore {
			return s != ""
		}
		if p != s && (p != "*" || s == "") {
			return false
		}
		if !patternMore || !pathMore {
			return patternMore == pathMore
		}
		pattern, path = patternRest, pathRest
	}
}

// canonicalPattern is a pattern as it is stored and matched: like a path, with "*" kept.
func canonicalPattern(raw string) (string, bool) {
	if strings.ContainsAny(raw, "?#;%") {
		return "", false // what CanonicalPath drops or decodes can never match
	}
	return CanonicalPath(raw)
}
