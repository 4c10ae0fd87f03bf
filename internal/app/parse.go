package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/net/http/httpguts"

	"github.com/pegel-dev/pegel/internal/ratelimit/redisstore"
)

// The parsers of single settings. Their errors finish the sentence "PEGEL_X …" and never repeat the value of a secret,
// nor the error of a library that might.

func listenAddress(dst *string, v string) error {
	host, port, err := net.SplitHostPort(v)
	if err != nil {
		return errors.New("is not host:port (for example 127.0.0.1:8080, or :8080 for all addresses)")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return errors.New("has no port between 0 and 65535")
	}
	if strings.ContainsAny(host, " /@") {
		return errors.New("has no usable host")
	}
	*dst = v
	return nil
}

func upstreamURL(dst **url.URL, v string) error {
	u, err := webURL(v)
	if err != nil {
		return err
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return errors.New("must not have a query or a fragment")
	}
	*dst = u
	return nil
}

func webURL(v string) (*url.URL, error) {
	u, err := url.Parse(v)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return nil, errors.New("is not an http:// or https:// URL with a host")
	}
	if u.User != nil {
		return nil, errors.New("must not have a user or password")
	}
	return u, nil
}

func databaseURL(dst *Secret, v string) error {
	if !strings.HasPrefix(v, "postgres://") && !strings.HasPrefix(v, "postgresql://") {
		return errors.New("is not a postgres://user:password@host:port/database URL")
	}
	if _, err := pgx.ParseConfig(v); err != nil {
		return errors.New("is not a Postgres URL that can be read (are the special characters of the password percent-encoded?)")
	}
	*dst = Secret(v)
	return nil
}

func redisURL(dst *Secret, v string) error {
	// The store knows which forms there are, and its errors hold nothing of the URL. It contacts nobody.
	probe, err := redisstore.New(redisstore.Config{URL: v, Now: time.Now}, slog.New(slog.DiscardHandler))
	if err != nil {
		return fmt.Errorf("cannot be used: %w", err)
	}
	if err := probe.Close(); err != nil {
		return fmt.Errorf("cannot be used: %w", err)
	}
	*dst = Secret(v)
	return nil
}

func mailAddresses(dst *[]string, v string, most int) error {
	list, err := mail.ParseAddressList(v)
	if err != nil {
		return errors.New("is not a mail address, or several separated by commas")
	}
	if len(list) > most {
		return fmt.Errorf("names %d addresses; at most %d", len(list), most)
	}
	*dst = nil
	for _, a := range list {
		*dst = append(*dst, a.Address)
	}
	return nil
}

func adminToken(dst *Secret, v string) error {
	if n := len([]rune(v)); n < minAdminToken {
		return fmt.Errorf("has %d characters; at least %d (openssl rand -hex 32 makes one)", n, minAdminToken)
	}
	if len(v) > 1024 || strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return errors.New("must be at most 1024 printable ASCII characters without spaces: it travels in a header")
	}
	*dst = Secret(v)
	return nil
}

func networks(dst *[]netip.Prefix, v string) error {
	var all []netip.Prefix
	for part := range strings.SplitSeq(v, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(part)
		if err != nil {
			addr, err := netip.ParseAddr(part)
			if err != nil || addr.Zone() != "" {
				return fmt.Errorf("%q is not a network such as 10.0.0.0/8 or an address", part)
			}
			addr = addr.Unmap()
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		if prefix.Addr().Is4In6() {
			return fmt.Errorf("%q: write an IPv4 network as IPv4", part)
		}
		if prefix != prefix.Masked() {
			return fmt.Errorf("%q has bits beyond its length; did you mean %s?", part, prefix.Masked())
		}
		all = append(all, prefix)
	}
	*dst = all
	return nil
}

func headerName(dst *string, v string) error {
	if !httpguts.ValidHeaderFieldName(v) {
		return errors.New("is not a header name")
	}
	*dst = v
	return nil
}

func boolean(dst *bool, v string) error {
	switch v {
	case "true", "1":
		*dst = true
	case "false", "0":
		*dst = false
	default:
		return fmt.Errorf("%q is neither true nor false", v)
	}
	return nil
}

func integer(dst *int, v string, least, most int) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is not a whole number from %d to %d", v, least, most)
	}
	*dst = n
	return nil
}

func storeTimeout(dst *time.Duration, v string) error {
	return duration(dst, v, minStoreTimeout, maxStoreTimeout)
}

func duration(dst *time.Duration, v string, least, most time.Duration) error {
	d, err := time.ParseDuration(v)
	if err != nil || d < least || d > most {
		return fmt.Errorf("%q is not a duration from %s to %s, such as 150ms or 2s", v, least, most)
	}
	*dst = d
	return nil
}

func oneOf(dst *string, v string, allowed ...string) error {
	for _, a := range allowed {
		if v == a {
			*dst = v
			return nil
		}
	}
	return fmt.Errorf("%q is not one of: %s", v, strings.Join(allowed, ", "))
}

func logLevel(dst *slog.Level, v string) error {
	var name string
	if err := oneOf(&name, strings.ToLower(v), "debug", "info", "warn", "error"); err != nil {
		return err
	}
	return dst.UnmarshalText([]byte(name))
}
