package redisstore

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// target is what a Redis URL names.
type target struct {
	addrs              []string
	cluster, tls       bool
	master             string // of Sentinel; then addrs are the sentinels'
	username, password string
	sentinelUsername   string
	sentinelPassword   string
	db                 int
}

// errURL deliberately says nothing that the URL said: any part of a malformed one may be a password.
var errURL = errors.New(`not a Redis URL: want redis://[user:password@]host:port[/db] (percent-encode special characters in the password)`)

// errParameter does not name it either: after a question mark in a password stands the rest of the password.
var errParameter = errors.New("the Redis URL has an unknown parameter (percent-encode special characters in the password)")

// parseURL understands the forms that Config.URL documents.
func parseURL(raw string) (*target, error) {
	t := &target{}
	var query url.Values
	var path, scheme string
	for i, part := range strings.Split(strings.TrimSpace(raw), ",") {
		if i > 0 && !strings.Contains(part, "://") {
			part = scheme + "://" + part
		}
		u, err := url.Parse(part)
		if err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "" || u.Fragment != "" || (i > 0 && u.Scheme != scheme) {
			return nil, errURL
		}
		scheme = u.Scheme
		port := "6379"
		if strings.HasSuffix(scheme, "+sentinel") {
			port = "26379"
		}
		if u.Port() != "" {
			port = u.Port()
		}
		t.addrs = append(t.addrs, net.JoinHostPort(u.Hostname(), port))
		if u.User != nil {
			t.username = u.User.Username()
			t.password, _ = u.User.Password()
		}
		if p := strings.Trim(u.Path, "/"); p != "" {
			path = p
		}
		if u.RawQuery != "" {
			query = u.Query()
		}
	}
	if err := t.setScheme(scheme, &path); err != nil {
		return nil, err
	}
	if path != "" {
		db, err := strconv.Atoi(path)
		if err != nil || db < 0 {
			return nil, errURL
		}
		t.db = db
	}
	if err := t.setQuery(query); err != nil {
		return nil, err
	}
	if t.cluster && t.db != 0 {
		return nil, errors.New("a Redis Cluster has only database 0")
	}
	return t, nil
}

// setScheme takes what the scheme says, and Sentinel's master name off the path.
func (t *target) setScheme(scheme string, path *string) error {
	switch scheme {
	case "redis", "rediss":
		t.cluster = len(t.addrs) > 1
	case "redis+sentinel", "rediss+sentinel":
		t.master, *path, _ = strings.Cut(*path, "/")
		if strings.Contains(t.master, "@") { // what follows a slash in a password
			return errURL
		}
		if t.master == "" {
			return errors.New("a Sentinel URL names its master: redis+sentinel://host:26379/master")
		}
	default:
		return errURL
	}
	t.tls = strings.HasPrefix(scheme, "rediss")
	return nil
}

func (t *target) setQuery(query url.Values) error {
	for name, values := range query {
		value := values[len(values)-1]
		switch {
		case name == "cluster" && t.master == "":
			on, err := strconv.ParseBool(value)
			if err != nil {
				return errors.New("the Redis URL's parameter cluster is true or false")
			}
			t.cluster = t.cluster || on
		case name == "sentinel_username" && t.master != "":
			t.sentinelUsername = value
		case name == "sentinel_password" && t.master != "":
			t.sentinelPassword = value
		default:
			return errParameter
		}
	}
	return nil
}

// secrets are the strings that must never be seen in a log.
func (t *target) secrets() []string {
	var s []string
	for _, secret := range []string{t.password, t.sentinelPassword} {
		if secret != "" {
			s = append(s, secret)
		}
	}
	return s
}
