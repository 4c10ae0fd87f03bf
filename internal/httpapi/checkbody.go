package httpapi

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"github.com/pegel-dev/pegel/internal/ratelimit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Bounds of the facts of a check.
const (
	maxMethodLength  = 32
	maxPathLength    = 8192 // bytes
	maxAddressLength = 64
	maxBatch         = 1000
)

// checkRequest is the body of /v1/check (CheckRequest in api/openapi.yaml) or, without peek and wait, of /v1/refund
// (RefundRequest); an empty text was not given.
type checkRequest struct {
	tenant, user, key, address, method, path string
	cost                                     int64
	peek, wait                               bool
}

// What the messages of checks say.
const (
	msgText       = "must be a string"
	msgSlug       = "must be 1 to 63 lower-case letters, digits and hyphens, starting with a letter or digit"
	msgIdentifier = "must be 1 to 256 bytes"
	msgAddress    = "must be an IPv4 or IPv6 address"
	msgMethod     = "must be 1 to 32 letters, digits, hyphens and underscores"
	msgPath       = "must be 1 to 8192 bytes"
	msgCost       = "must be an integer from 0 to 1000000"
	msgBool       = "must be true or false"
	msgUnknown    = "is not a known field"
	msgObject     = "must be a JSON object"
)

// decodeCheck reads the body of /v1/check.
func decodeCheck(data []byte) (checkRequest, error) {
	s := scanner{data: data}
	var req checkRequest
	if err := req.read(&s); err != nil {
		return req, err
	}
	return req, s.end()
}

// decodeRefund reads the body of /v1/refund: that of a check without what only a question has.
func decodeRefund(data []byte) (checkRequest, error) {
	s := scanner{data: data}
	var req checkRequest
	if err := req.readOf(&s, aRefund); err != nil {
		return req, err
	}
	return req, s.end()
}

// batchElement is one check of a batch, or what is wrong with it.
type batchElement struct {
	check checkRequest
	err   error
}

// decodeBatch reads the body of /v1/check/batch. An element that is valid JSON but no valid check is an element with an
// error; only a body that is no batch is an error of its own.
func decodeBatch(data []byte) ([]batchElement, error) {
	s := scanner{data: data}
	if s.next() != '{' {
		return nil, notAn(&s, msgObject)
	}
	var elements []batchElement
	given := false
	err := s.object(func(key []byte) error {
		if string(key) != "checks" {
			return unknownField(&s)
		}
		given = true
		if s.next() != '[' {
			return notAn(&s, "must be an array")
		}
		elements = make([]batchElement, 0, min(bytes.Count(data, []byte{'{'}), maxBatch))
		return s.array(func(i int) error {
			if i >= maxBatch {
				return &bodyError{message: "is one too many: a batch has at most " + strconv.Itoa(maxBatch) + " checks"}
			}
			element, err := decodeElement(&s)
			elements = append(elements, element)
			return err
		})
	})
	if err == nil {
		err = s.end()
	}
	if err == nil && !given {
		err = &bodyError{pointer: "/checks", message: "is required"}
	}
	return elements, err
}

// decodeElement reads one check and stands behind it afterwards, whether it was valid or not.
func decodeElement(s *scanner) (batchElement, error) {
	s.next()
	start, depth, keys := s.pos, s.depth, len(s.keys)
	var e batchElement
	if e.err = e.check.read(s); e.err == nil {
		return e, nil
	}
	// Broken JSON is the whole body's fault: where the next element starts could be read in two ways.
	s.pos, s.depth, s.keys, s.lenient = start, depth, s.keys[:keys], true
	err := s.skip()
	s.lenient = false
	return e, err
}

// kind is which of two bodies that have most fields in common is read.
type kind uint8

const (
	aCheck  kind = iota // CheckRequest in api/openapi.yaml
	aRefund             // RefundRequest
)

// read reads one check.
func (r *checkRequest) read(s *scanner) error { return r.readOf(s, aCheck) }

// readOf reads one body. It accepts and refuses what api/openapi.yaml does.
func (r *checkRequest) readOf(s *scanner, k kind) error {
	if s.next() != '{' {
		return notAn(s, msgObject)
	}
	r.cost = 1
	return s.object(func(key []byte) error {
		switch string(key) {
		case "tenant":
			return text(s, &r.tenant, tenants.ValidSlug, msgSlug)
		case "user":
			return text(s, &r.user, tenants.ValidIdentifier, msgIdentifier)
		case "key":
			return text(s, &r.key, tenants.ValidIdentifier, msgIdentifier)
		case "address":
			return text(s, &r.address, validAddressText, msgAddress)
		case "method":
			return text(s, &r.method, validMethod, msgMethod)
		case "path":
			return text(s, &r.path, validPath, msgPath)
		case "cost":
			return cost(s, &r.cost)
		}
		switch {
		case k == aCheck && string(key) == "peek":
			return boolean(s, &r.peek)
		case k == aCheck && string(key) == "wait":
			return boolean(s, &r.wait)
		}
		return unknownField(s)
	})
}

func text(s *scanner, into *string, valid func(string) bool, message string) error {
	if s.next() != '"' {
		return notAn(s, msgText)
	}
	raw, err := s.text()
	if err != nil {
		return err
	}
	v := string(raw)
	if !valid(v) {
		return &bodyError{message: message}
	}
	*into = v
	return nil
}

// cost reads whole numbers only: 1.0 and 1e3 are refused like 1.5.
func cost(s *scanner, into *int64) error {
	if c := s.next(); c != '-' && !isDigit(c) {
		return notAn(s, msgCost)
	}
	raw, err := s.number()
	if err != nil {
		return err
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || v < 0 || v > ratelimit.MaxCost {
		return &bodyError{message: msgCost}
	}
	*into = v
	return nil
}

func boolean(s *scanner, into *bool) error {
	switch {
	case s.word("true"):
		*into = true
	case s.word("false"):
		*into = false
	default:
		return notAn(s, msgBool)
	}
	return nil
}

// notAn refuses a value of another type, or what is no value at all.
func notAn(s *scanner, message string) error {
	if err := s.skip(); err != nil {
		return err
	}
	return &bodyError{message: message}
}

func unknownField(s *scanner) error { return notAn(s, msgUnknown) }

// validAddressText is what the contract's schema says of a text that may be an address; its bounds are characters, and an
// address has no other than single bytes.
func validAddressText(v string) bool {
	return utf8.RuneCountInString(v) >= 2 && len(v) <= maxAddressLength
}

func validPath(v string) bool { return v != "" && len(v) <= maxPathLength }

func validMethod(v string) bool {
	if v == "" || len(v) > maxMethodLength {
		return false
	}
	for i := range len(v) {
		c := v[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !isDigit(c) && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
