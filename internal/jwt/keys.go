package jwt

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// readEvery is how often the key set is read again without a reason; pauseBetween the least time between two reads, which is
	// also how soon a failed one is repeated.
	readEvery    = 5 * time.Minute
	pauseBetween = 10 * time.Second
	readTimeout  = 5 * time.Second

	maxSet  = 256 << 10 // bytes
	maxKeys = 100

	minRSA = 2048 // bits; less is forged too cheaply
	maxRSA = 8192 // bits; more is too dear to verify
)

// keySet is the keys of one reading that can be used.
type keySet struct {
	generation uint64 // a new one whenever the text changes
	sum        [sha256.Size]byte
	byID       map[string]*jose.JSONWebKey
	only       *jose.JSONWebKey // the one key of a set that has one
}

// find is the key that a token names. One that names none means the only one there is.
func (s *keySet) find(id string) (*jose.JSONWebKey, bool) {
	if id == "" {
		return s.only, s.only != nil
	}
	key, ok := s.byID[id]
	return key, ok
}

// parseKeys reads a key set. Keys that cannot be used are left out: other kinds, secret ones, those for encryption. A set without
// a usable key is an error, and so is one that gives an id to two keys.
func parseKeys(raw []byte) (*keySet, error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, errors.New("it is not a JSON object with keys (RFC 7517)")
	}
	if len(document.Keys) > maxKeys {
		return nil, fmt.Errorf("it has %d keys; at most %d", len(document.Keys), maxKeys)
	}
	set := &keySet{sum: sha256.Sum256(raw), byID: make(map[string]*jose.JSONWebKey)}
	usable := 0
	for _, one := range document.Keys {
		key := new(jose.JSONWebKey)
		if key.UnmarshalJSON(one) != nil || !canVerify(key) {
			continue
		}
		usable++
		set.only = key
		if key.KeyID == "" {
			continue
		}
		if set.byID[key.KeyID] != nil {
			return nil, errors.New("it gives one kid to two keys")
		}
		set.byID[key.KeyID] = key
	}
	switch {
	case usable == 0:
		return nil, errors.New("it has no public key that verifies signatures (RSA of 2048 bits or more, EC, Ed25519)")
	case usable > 1:
		set.only = nil
	}
	return set, nil
}

func canVerify(key *jose.JSONWebKey) bool {
	if !key.Valid() || !key.IsPublic() || key.Use != "" && key.Use != "sig" {
		return false
	}
	if public, ok := key.Key.(*rsa.PublicKey); ok {
		bits := public.N.BitLen()
		return bits >= minRSA && bits <= maxRSA
	}
	return true
}

// Run reads the key set until ctx ends: now, every Config.Every, and soon after a token named a key that is not there.
func (v *Verifier) Run(ctx context.Context) {
	for failing, first := false, true; ; first = false {
		pause := v.cfg.Every
		err := v.Load(ctx)
		if first {
			close(v.tried)
		}
		if err != nil && ctx.Err() == nil {
			if !failing {
				v.log.LogAttrs(ctx, slog.LevelWarn, "the key set of tokens cannot be read; the last keys hold", slog.Any("error", err))
			}
			failing, pause = true, v.cfg.Pause
		} else if failing && ctx.Err() == nil {
			v.log.LogAttrs(ctx, slog.LevelInfo, "the key set of tokens can be read again")
			failing = false
		}
		if !v.wait(ctx, min(v.cfg.Pause, pause), nil) || !v.wait(ctx, max(0, pause-v.cfg.Pause), v.wake) {
			return
		}
	}
}

// Tried is closed when Run has read the set for the first time, or failed to.
func (v *Verifier) Tried() <-chan struct{} { return v.tried }

// wait is over after d, or when early delivers; it reports whether ctx is still good.
func (*Verifier) wait(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-early:
	}
	return ctx.Err() == nil
}

// readAgain asks Run for a reading. It never waits.
func (v *Verifier) readAgain() {
	select {
	case v.wake <- struct{}{}:
	default: // it knows
	}
}

// Load reads the key set once; Run does it, nobody else meanwhile. When it fails the keys that were there stay. Its errors never hold a key.
func (v *Verifier) Load(ctx context.Context) error {
	raw, err := v.read(ctx)
	if err != nil {
		return err
	}
	set, err := parseKeys(raw)
	if err != nil {
		return fmt.Errorf("the key set cannot be used: %w", err)
	}
	if before := v.keys.Load(); before != nil {
		if before.sum == set.sum {
			return nil
		}
		set.generation = before.generation + 1
	}
	v.keys.Store(set)
	return nil
}

func (v *Verifier) read(ctx context.Context) ([]byte, error) {
	if v.cfg.File != "" {
		file, err := os.Open(v.cfg.File)
		if err != nil {
			return nil, fmt.Errorf("open the key set: %w", err)
		}
		defer func() { _ = file.Close() }() // it was only read
		return readBounded(file)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.cfg.URL, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask for the key set: %w", err)
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	res, err := v.client.Do(req)
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // without the URL, whose query may be nobody's business
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the key set: %w", err)
	}
	defer func() { _ = res.Body.Close() }() // it was only read
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask for the key set: the answer is %d", res.StatusCode)
	}
	return readBounded(res.Body)
}

func readBounded(r io.Reader) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxSet+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the key set: %w", err)
	case len(raw) > maxSet:
		return nil, fmt.Errorf("the key set is larger than %d KiB", maxSet>>10)
	}
	return raw, nil
}

// Keys is how many named or single keys are known; 0 until a set was read.
func (v *Verifier) Keys() int {
	switch set := v.keys.Load(); {
	case set == nil:
		return 0
	case len(set.byID) == 0:
		return 1
	default:
		return len(set.byID)
	}
}

// CheckURL says why a URL may not be where keys come from: whoever can change them on the way can be anybody.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.Fragment != "" {
		return errors.New("is not an https:// URL without user and fragment")
	}
	if u.Scheme == "http" && u.Hostname() != "localhost" {
		if a, err := netip.ParseAddr(u.Hostname()); err != nil || !a.IsLoopback() {
			return errors.New("must be https: whoever changes the keys on their way can be any tenant (http only to a loopback address)")
		}
	}
	return nil
}
