package httpapi

import (
	"bytes"
	"errors"
	"math"
	"strconv"
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
	// keys of the objects being read, the innermost last.
	keys [][]byte
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

// object reads an object and hands every key to field, which reads the value. Keys come once each; a key's bytes are not to
// be kept.
func (s *scanner) object(field func(key []byte) error) error {
	return s.container('{', '}', func(seen *keySet, _ int) error {
		key, err := s.text()
		if err != nil {
			return err
		}
		if !s.first(seen, key) && !s.lenient {
			return under(pointerSegment(string(key)), &bodyError{message: "must not come twice"})
		}
		if s.next() != ':' {
			return s.syntaxError()
		}
		s.pos++
		if err := field(key); err != nil {
			return under(pointerSegment(string(key)), err)
		}
		return nil
	})
}

// array reads an array; element reads the i-th value.
func (s *scanner) array(element func(i int) error) error {
	return s.container('[', ']', func(_ *keySet, i int) error {
		if err := element(i); err != nil {
			return under(strconv.Itoa(i), err)
		}
		return nil
	})
}

// container reads what objects and arrays have in common: the brackets, the commas and the depth.
func (s *scanner) container(open, closing byte, item func(seen *keySet, i int) error) error {
	if s.next() != open {
		return s.syntaxError()
	}
	s.pos++
	if s.depth++; s.depth > maxDepth {
		return &bodyError{message: "is nested deeper than " + strconv.Itoa(maxDepth) + " levels"}
	}
	seen := keySet{from: len(s.keys)}
	for i := 0; ; i++ {
		c := s.next()
		switch {
		case c == closing && i == 0:
			s.pos++
			s.depth--
			return nil
		case open == '{' && c != '"':
			return s.syntaxError()
		}
		if err := item(&seen, i); err != nil {
			return err
		}
		switch s.next() {
		case ',':
			s.pos++
		case closing:
			s.pos++
			s.depth--
			s.keys = s.keys[:seen.from]
			return nil
		default:
			return s.syntaxError()
		}
	}
}

// fewKeys is how many keys of an object are compared one by one.
const fewKeys = 16

// keySet is the keys of one object: those of the scanner from one on, or a map where they are many.
type keySet struct {
	from int
	many map[string]struct{}
}

// first reports whether a key comes for the first time in its object.
func (s *scanner) first(seen *keySet, key []byte) bool {
	if seen.many != nil {
		before := len(seen.many)
		seen.many[string(key)] = struct{}{}
		return len(seen.many) > before
	}
	for _, other := range s.keys[seen.from:] {
		if bytes.Equal(other, key) {
			return false
		}
	}
	if s.keys == nil {
		s.keys = make([][]byte, 0, fewKeys)
	}
	if s.keys = append(s.keys, key); len(s.keys)-seen.from > fewKeys {
		seen.many = make(map[string]struct{}, 2*fewKeys)
		for _, other := range s.keys[seen.from:] {
			seen.many[string(other)] = struct{}{}
		}
	}
	return true
}

// skip reads any value and keeps the rules.
func (s *scanner) skip() error {
	switch c := s.next(); {
	case c == '{':
		return s.object(func([]byte) error { return s.skip() })
	case c == '[':
		return s.array(func(int) error { return s.skip() })
	case c == '"':
		_, err := s.text()
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

// text reads a string. Almost all are plain: they are cut out of the body in one piece.
func (s *scanner) text() ([]byte, error) {
	if s.next() != '"' {
		return nil, s.syntaxError()
	}
	s.pos++
	start, ascii := s.pos, true
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			text := s.data[start:s.pos]
			s.pos++
			if ascii {
				return text, nil
			}
			return s.sound(text)
		case c == '\\':
			return s.escaped(start)
		case c < ' ':
			return nil, s.syntaxError()
		case c >= utf8.RuneSelf:
			ascii = false
		}
		s.pos++
	}
	return nil, s.syntaxError()
}

// escaped goes on with a string from its first backslash.
func (s *scanner) escaped(start int) ([]byte, error) {
	text := bytes.Clone(s.data[start:s.pos])
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		s.pos++
		switch {
		case c == '"':
			return s.sound(text)
		case c < ' ':
			return nil, s.syntaxError()
		case c != '\\':
			text = append(text, c)
		default:
			var err error
			if text, err = s.escape(text); err != nil {
				return nil, err
			}
		}
	}
	return nil, s.syntaxError()
}

// sound holds a string to what every store and every output can hold.
func (s *scanner) sound(text []byte) ([]byte, error) {
	switch {
	case s.lenient:
	case !utf8.Valid(text):
		return nil, &bodyError{message: "is not valid UTF-8"}
	case bytes.IndexByte(text, 0) >= 0:
		return nil, &bodyError{message: "must not hold a NUL character"}
	}
	return text, nil
}

// escape appends what a backslash and the characters after it stand for.
func (s *scanner) escape(text []byte) ([]byte, error) {
	if s.pos >= len(s.data) {
		return nil, s.syntaxError()
	}
	c := s.data[s.pos]
	s.pos++
	switch c {
	case '"', '\\', '/':
		return append(text, c), nil
	case 'b':
		return append(text, '\b'), nil
	case 'f':
		return append(text, '\f'), nil
	case 'n':
		return append(text, '\n'), nil
	case 'r':
		return append(text, '\r'), nil
	case 't':
		return append(text, '\t'), nil
	case 'u':
		return s.unicode(text)
	}
	return nil, s.syntaxError()
}

// unicode reads the four digits of a \u escape, and the second half of a surrogate pair.
func (s *scanner) unicode(text []byte) ([]byte, error) {
	r, ok := s.hex4()
	if !ok {
		return nil, s.syntaxError()
	}
	if !utf16.IsSurrogate(r) {
		return utf8.AppendRune(text, r), nil
	}
	if bytes.HasPrefix(s.data[s.pos:], []byte(`\u`)) {
		s.pos += 2
		low, ok := s.hex4()
		if !ok {
			return nil, s.syntaxError()
		}
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return utf8.AppendRune(text, pair), nil
		}
	}
	if s.lenient {
		return text, nil
	}
	return nil, &bodyError{message: "holds half a surrogate pair"}
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
