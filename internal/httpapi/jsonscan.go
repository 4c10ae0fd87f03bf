package httpapi

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a body; no body of the contract needs more than six.
const maxDepth = 32

// bodyError is what is wrong with a body, by JSON pointer. The message never repeats submitted text.
type bodyError struct {
	pointer, message string
	// syntax: the text is no JSON at all, so that a pointer would mean nothing.
	syntax bool
}

func (e *bodyError) Error() string { return e.pointer + ": " + e.message }

// under puts an error one level further down as it travels up.
func under(segment string, err error) error {
	var e *bodyError
	if errors.As(err, &e) && !e.syntax {
		e.pointer = "/" + segment + e.pointer
	}
	return err
}

// pointerSegment escapes an object key for a JSON pointer (RFC 6901). A key that is not a plain name came from nobody
// who knows the contract: it is not repeated.
func pointerSegment(key string) string {
	if len(key) > 64 {
		return "…"
	}
	for _, r := range key {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' && r != '.' {
			return "…"
		}
	}
	return key
}

// scanner reads one JSON text (RFC 8259) more strictly than encoding/json: no invalid UTF-8, no lone surrogates, no NUL
// in a string, no duplicate keys, no nesting beyond maxDepth, nothing behind the value.
type scanner struct {
	data []byte
	pos  int
	// depth of the value being read.
	depth int
	// lenient steps over a value that was found wrong already: only what cannot be parsed at all is an error then.
	lenient bool
}

func (s *scanner) syntaxError() error {
	return &bodyError{message: "is not valid JSON at byte " + strconv.Itoa(s.pos), syntax: true}
}

// next skips white space and is the byte there, 0 at the end.
func (s *scanner) next() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// end checks that nothing but white space is left.
func (s *scanner) end() error {
	if s.next() != 0 || s.pos < len(s.data) {
		return s.syntaxError()
	}
	return nil
}

// object reads an object and hands every key to field, which reads the value. Keys come once each.
func (s *scanner) object(field func(key string) error) error {
	return s.container('{', '}', func(seen *keySet) error {
		key, err := s.str()
		if err != nil {
			return err
		}
		if !seen.add(key) && !s.lenient {
			return under(pointerSegment(key), &bodyError{message: "must not come twice"})
		}
		if s.next() != ':' {
			return s.syntaxError()
		}
		s.pos++
		return under(pointerSegment(key), field(key))
	})
}

// array reads an array; element reads the i-th value.
func (s *scanner) array(element func(i int) error) error {
	i := 0
	return s.container('[', ']', func(*keySet) error {
		err := under(strconv.Itoa(i), element(i))
		i++
		return err
	})
}

// container reads what objects and arrays have in common: the brackets, the commas and the depth.
func (s *scanner) container(open, closing byte, item func(seen *keySet) error) error {
	if s.next() != open {
		return s.syntaxError()
	}
	s.pos++
	if s.depth++; s.depth > maxDepth {
		return &bodyError{message: "is nested deeper than " + strconv.Itoa(maxDepth) + " levels"}
	}
	var seen keySet
	for first := true; ; first = false {
		c := s.next()
		switch {
		case c == closing && first:
			s.pos++
			s.depth--
			return nil
		case open == '{' && c != '"':
			return s.syntaxError()
		}
		if err := item(&seen); err != nil {
			return err
		}
		switch s.next() {
		case ',':
			s.pos++
		case closing:
			s.pos++
			s.depth--
			return nil
		default:
			return s.syntaxError()
		}
	}
}

// keySet finds duplicate keys: a short list first, a map for objects of many keys.
type keySet struct {
	few  [16]string
	n    int
	many map[string]struct{}
}

func (k *keySet) add(key string) bool {
	if k.many != nil {
		before := len(k.many)
		k.many[key] = struct{}{}
		return len(k.many) > before
	}
	for _, other := range k.few[:k.n] {
		if other == key {
			return false
		}
	}
	if k.n < len(k.few) {
		k.few[k.n] = key
		k.n++
		return true
	}
	k.many = make(map[string]struct{}, 2*len(k.few))
	for _, other := range k.few {
		k.many[other] = struct{}{}
	}
	k.many[key] = struct{}{}
	return true
}

// skip reads any value and keeps the rules.
func (s *scanner) skip() error {
	switch c := s.next(); {
	case c == '{':
		return s.object(func(string) error { return s.skip() })
	case c == '[':
		return s.array(func(int) error { return s.skip() })
	case c == '"':
		_, err := s.str()
		return err
	case c == '-' || isDigit(c):
		_, err := s.number()
		return err
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if s.word(word) {
			return nil
		}
	}
	return s.syntaxError()
}

// word reads a literal if it is the next thing.
func (s *scanner) word(word string) bool {
	s.next()
	if !bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
		return false
	}
	s.pos += len(word)
	return true
}

// number reads a number as its text.
func (s *scanner) number() ([]byte, error) {
	s.next()
	start := s.pos
	at := func() byte {
		if s.pos < len(s.data) {
			return s.data[s.pos]
		}
		return 0
	}
	digits := func() bool {
		from := s.pos
		for isDigit(at()) {
			s.pos++
		}
		return s.pos > from
	}
	if at() == '-' {
		s.pos++
	}
	if at() == '0' {
		s.pos++
	} else if !digits() {
		return nil, s.syntaxError()
	}
	if at() == '.' {
		s.pos++
		if !digits() {
			return nil, s.syntaxError()
		}
	}
	if c := at(); c == 'e' || c == 'E' {
		s.pos++
		if c := at(); c == '+' || c == '-' {
			s.pos++
		}
		if !digits() {
			return nil, s.syntaxError()
		}
	}
	return s.data[start:s.pos], nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// str reads a string. Almost all are plain: they are cut out in one piece.
func (s *scanner) str() (string, error) {
	if s.next() != '"' {
		return "", s.syntaxError()
	}
	s.pos++
	start := s.pos
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			text := s.data[start:s.pos]
			s.pos++
			if !s.lenient && !utf8.Valid(text) {
				return "", &bodyError{message: "is not valid UTF-8"}
			}
			return string(text), nil
		case c == '\\':
			return s.escaped(start)
		case c < ' ':
			return "", s.syntaxError()
		}
		s.pos++
	}
	return "", s.syntaxError()
}

// escaped goes on with a string from its first backslash.
func (s *scanner) escaped(start int) (string, error) {
	var b strings.Builder
	b.Write(s.data[start:s.pos])
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		s.pos++
		switch {
		case c == '"':
			text := b.String()
			if s.lenient {
				return text, nil
			}
			if !utf8.ValidString(text) {
				return "", &bodyError{message: "is not valid UTF-8"}
			}
			if strings.IndexByte(text, 0) >= 0 {
				return "", &bodyError{message: "must not hold a NUL character"}
			}
			return text, nil
		case c < ' ':
			return "", s.syntaxError()
		case c != '\\':
			b.WriteByte(c)
		default:
			if err := s.escape(&b); err != nil {
				return "", err
			}
		}
	}
	return "", s.syntaxError()
}

// escape reads what follows a backslash.
func (s *scanner) escape(b *strings.Builder) error {
	if s.pos >= len(s.data) {
		return s.syntaxError()
	}
	c := s.data[s.pos]
	s.pos++
	switch c {
	case '"', '\\', '/':
		b.WriteByte(c)
	case 'b':
		b.WriteByte('\b')
	case 'f':
		b.WriteByte('\f')
	case 'n':
		b.WriteByte('\n')
	case 'r':
		b.WriteByte('\r')
	case 't':
		b.WriteByte('\t')
	case 'u':
		return s.unicode(b)
	default:
		return s.syntaxError()
	}
	return nil
}

// unicode reads the four digits of a \u escape, and the second half of a surrogate pair.
func (s *scanner) unicode(b *strings.Builder) error {
	r, ok := s.hex4()
	if !ok {
		return s.syntaxError()
	}
	if !utf16.IsSurrogate(r) {
		b.WriteRune(r)
		return nil
	}
	if bytes.HasPrefix(s.data[s.pos:], []byte(`\u`)) {
		s.pos += 2
		low, ok := s.hex4()
		if !ok {
			return s.syntaxError()
		}
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			b.WriteRune(pair)
			return nil
		}
	}
	if s.lenient {
		return nil
	}
	return &bodyError{message: "holds half a surrogate pair"}
}

func (s *scanner) hex4() (rune, bool) {
	if len(s.data)-s.pos < 4 {
		return 0, false
	}
	v, err := strconv.ParseUint(string(s.data[s.pos:s.pos+4]), 16, 16)
	if err != nil || v > math.MaxUint16 {
		return 0, false
	}
	s.pos += 4
	return rune(v), true
}

// checkJSON holds a whole body to the scanner's rules.
func checkJSON(data []byte) error {
	s := scanner{data: data}
	if err := s.skip(); err != nil {
		return err
	}
	return s.end()
}
