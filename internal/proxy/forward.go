package proxy

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	"github.com/pegel-dev/pegel/internal/decision"
)

// rewrite makes the request that the upstream gets. It runs after the hop-by-hop headers are gone, so that nothing a client
// lists in Connection can take away what is set here.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	x := exchangeOf(pr.In.Context())
	out := pr.Out
	out.URL.Scheme, out.URL.Host, out.URL.User = p.upstream.Scheme, p.upstream.Host, nil
	out.Host = ""
	setPath(out.URL, strings.TrimSuffix(p.upstream.EscapedPath(), "/")+x.path)

	p.dropLookalikes(out.Header)
	stripOurs(out.Header)
	for _, name := range overrideHeaders {
		delete(out.Header, name)
	}
	p.setForwarded(pr, x)
	out.Header.Set("X-Request-Id", x.requestID)
}

// overrideHeaders name another method or path than the one that limits were matched on, for upstreams that route by them.
var overrideHeaders = [...]string{
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Forwarded-Method",
	"X-Original-Url", "X-Original-Uri", "X-Rewrite-Url", "X-Forwarded-Uri",
}

// addressHeaders are what upstreams may take for the client's address. From strangers they go no further.
var addressHeaders = [...]string{"X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "Fastly-Client-Ip"}

// setForwarded writes the forwarding headers. What a trusted peer said is continued; what anybody else said is replaced.
func (p *Proxy) setForwarded(pr *httputil.ProxyRequest, x *exchange) {
	in, out := pr.In.Header, pr.Out.Header
	if x.trusted {
		out["X-Forwarded-For"] = in["X-Forwarded-For"]
	} else {
		for _, name := range addressHeaders {
			delete(out, name)
		}
		delete(out, p.addresses.Header())
	}
	pr.SetXForwarded()
	if x.trusted {
		for _, name := range [...]string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
			if lines := in[name]; len(lines) == 1 {
				out.Set(name, lines[0])
			}
		}
	}
	if x.client != "" {
		out.Set("X-Real-Ip", x.client)
	}
}

// hostOf is the host that the client asked for, the one that the upstream gets in X-Forwarded-Host: a trusted peer's word, else
// the request's own.
func hostOf(r *http.Request, trusted bool) string {
	if lines := r.Header["X-Forwarded-Host"]; trusted && len(lines) == 1 {
		return lines[0]
	}
	return r.Host
}

// stripOurs removes everything that is between the client and us: every X-Pegel header, and every value of any header that
// is a credential of ours. A header left without values is gone; anything else passes untouched.
func stripOurs(h http.Header) {
	for name, lines := range h {
		if strings.HasPrefix(name, "X-Pegel-") {
			delete(h, name)
			continue
		}
		ours := 0
		for _, line := range lines {
			if decision.IsOurs(line) {
				ours++
			}
		}
		switch {
		case ours == 0:
		case ours == len(lines):
			delete(h, name)
		default:
			kept := make([]string, 0, len(lines)-ours)
			for _, line := range lines {
				if !decision.IsOurs(line) {
					kept = append(kept, line)
				}
			}
			h[name] = kept
		}
	}
}

// dropLookalikes removes headers that differ from one that is stripped or set here only by underscores: many servers hand
// X_Real_IP and X-Real-IP to their application under one name.
func (p *Proxy) dropLookalikes(h http.Header) {
	for name := range h {
		if strings.IndexByte(name, '_') < 0 {
			continue
		}
		alike := http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		if strings.HasPrefix(alike, "X-Pegel-") || strings.HasPrefix(alike, "X-Forwarded-") || alike == "Forwarded" || alike == p.addresses.Header() ||
			slices.Contains(addressHeaders[:], alike) || slices.Contains(overrideHeaders[:], alike) {
			delete(h, name)
		}
	}
}

// rateHeaders are the ones in which ours take the place of the upstream's.
var rateHeaders = [...]string{
	decision.HeaderLimit, decision.HeaderRemaining, decision.HeaderReset, decision.HeaderSlowdown,
	decision.HeaderPolicy, decision.HeaderRateLimit,
}

// modifyResponse puts the decision's headers on the upstream's answer.
func modifyResponse(res *http.Response) error {
	x := exchangeOf(res.Request.Context())
	for name := range res.Header {
		if strings.HasPrefix(name, "X-Pegel-") {
			delete(res.Header, name)
		}
	}
	if _, ok := x.decision.TightestLimit(); ok {
		for _, name := range rateHeaders {
			res.Header.Del(name)
		}
	}
	decision.WriteHeaders(res.Header, x.decision)
	res.Header.Set("X-Request-Id", x.requestID)
	return nil
}

// spelled answers with the headers of a decision as the wire contract spells them: httputil copies an upstream's headers,
// and these with them, in Go's canonical form.
type spelled struct{ http.ResponseWriter }

func (w spelled) WriteHeader(status int) {
	decision.SpellHeaders(w.Header())
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController flush and hijack.
func (w spelled) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// forwardedPath is the spelling of a path that the upstream gets: what tenants.CanonicalPath matched, with its own letter
// case, parameters and trailing slash. Dot segments are resolved and empty ones dropped here, so that the upstream has nothing
// left to resolve differently. It is only asked for paths that have a canonical form; ok is false where parameters hide
// what such a path may not hold.
func forwardedPath(raw string) (path string, ok bool) {
	if !strings.Contains(raw, "//") && !strings.Contains(raw, "/.") && !strings.ContainsAny(raw, "%;\\") {
		return raw, true
	}
	var kept []string
	slash := false
	for segment := range strings.SplitSeq(raw[1:], "/") {
		name, parameters, _ := strings.Cut(segment, ";")
		if !harmless(parameters) {
			return "", false
		}
		name = decodeUnreserved(name)
		slash = name == "" || name == "." || name == ".."
		switch {
		case name == "" || name == ".":
		case name == "..":
			if len(kept) == 0 {
				return "", false
			}
			kept = kept[:len(kept)-1]
		case parameters != "":
			kept = append(kept, name+";"+parameters)
		default:
			kept = append(kept, name)
		}
	}
	path = "/" + strings.Join(kept, "/")
	if slash && path != "/" {
		path += "/"
	}
	return path, true
}

// harmless reports whether a segment's parameters hold nothing that a server could take for a part of the path.
func harmless(parameters string) bool {
	if strings.IndexByte(parameters, '\\') >= 0 {
		return false
	}
	for i := 0; i < len(parameters); i++ {
		if parameters[i] == '%' {
			c, ok := unhex(parameters, i+1)
			if !ok || c < ' ' || c == '/' || c == '\\' || c == '%' || c == 0x7f {
				return false
			}
		}
	}
	return true
}

// decodeUnreserved decodes the encodings that need none (RFC 3986, 6.2.2.2), the dots of hidden dot segments above all.
func decodeUnreserved(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' {
			if c, ok := unhex(s, i+1); ok && unreserved(c) {
				b = append(b, c)
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~'
}

// unhex reads two hexadecimal digits.
func unhex(s string, at int) (c byte, ok bool) {
	if at+2 > len(s) {
		return 0, false
	}
	var out [1]byte
	if _, err := hex.Decode(out[:], []byte(s[at:at+2])); err != nil {
		return 0, false
	}
	return out[0], true
}

// setPath sets an escaped path.
func setPath(u *url.URL, escaped string) {
	path, err := url.PathUnescape(escaped)
	if err != nil { // paths with a canonical form always unescape
		path, escaped = escaped, ""
	}
	u.Path, u.RawPath, u.Opaque = path, escaped, ""
}

// maxRequestID bounds the ids that are taken over from clients.
const maxRequestID = 128

// requestID is the client's X-Request-Id when it is fit for logs and headers, else a new one.
func requestID(r *http.Request) string {
	if lines := r.Header["X-Request-Id"]; len(lines) == 1 && saneID(lines[0]) {
		return lines[0]
	}
	return newRequestID()
}

func newRequestID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the process rather than return an error
	return hex.EncodeToString(id[:])
}

func saneID(s string) bool {
	if s == "" || len(s) > maxRequestID || decision.IsOurs(s) {
		return false
	}
	for i := range len(s) {
		if !unreserved(s[i]) {
			return false
		}
	}
	return true
}
