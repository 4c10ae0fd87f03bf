package proxy

import (
	"bytes"
	"errors"
	"strconv"
)

// The shapes of a request that two servers could read as different ones (RFC 9112, 2.2, 5.2, 6.1, 6.3 and 7.1).
var (
	errBareLineFeed   = errors.New("a line ends with a bare line feed; lines end with CR LF")
	errBareReturn     = errors.New("a carriage return stands within a line; lines end with CR LF")
	errFolded         = errors.New("a header is folded over several lines; write it in one")
	errTwoFramings    = errors.New("Content-Length and Transfer-Encoding come more than once or together; send exactly one of them, once")
	errContentLength  = errors.New("Content-Length is not a number of bytes")
	errTransferCoding = errors.New("Transfer-Encoding is not just chunked")
	errOldChunks      = errors.New("Transfer-Encoding needs HTTP/1.1")
	errChunk          = errors.New("a chunk of the body does not begin with its size, or does not end where its size says")
)

// framing reads the bytes of an HTTP/1 connection along with net/http and finds where a request's framing becomes ambiguous.
// net/http takes such a request in one way of several, and when a handler sees it the others are forgotten. This decides
// nothing else, in constant memory. The zero value stands before a connection's first request.
type framing struct {
	at   framingPlace
	body uint64 // bytes of a body or a chunk that are still to come

	line   [64]byte // the start of the line that is being read
	length int      // of all of it
	last   uint64   // its last eight bytes
	cr     bool     // the very last is a carriage return

	old     bool // the request is HTTP/1.0
	framed  bool // it had a framing header,
	chunked bool // Transfer-Encoding,
	size    uint64
}

type framingPlace uint8

const (
	atRequestLine framingPlace = iota
	atHeader
	atChunkSize
	atChunkEnd
	atTrailer
)

// scan reads on. It returns how much of p may be passed on; with an error, the byte behind that is the one that must not.
// What may be passed on of an ambiguous request is never a whole head.
func (f *framing) scan(p []byte) (int, error) {
	for n := 0; n < len(p); {
		if f.body > 0 {
			skipped := min(f.body, uint64(len(p)-n))
			f.body -= skipped
			n += int(skipped) //nolint:gosec // not more than len(p)
			continue
		}
		part, _, ended := bytes.Cut(p[n:], []byte{'\n'})
		if good, err := f.add(part); err != nil {
			return n + good, err
		}
		n += len(part)
		if !ended {
			break
		}
		if err := f.endLine(); err != nil {
			return n, err
		}
		n++
	}
	return len(p), nil
}

// add takes a part of a line, without its line feed.
func (f *framing) add(part []byte) (good int, err error) {
	switch {
	case len(part) == 0:
		return 0, nil
	case f.cr:
		return 0, errBareReturn
	case f.length == 0 && (part[0] == ' ' || part[0] == '\t') && (f.at == atHeader || f.at == atTrailer):
		return 0, errFolded
	}
	if i := bytes.IndexByte(part, '\r'); i >= 0 && i < len(part)-1 {
		return i + 1, errBareReturn
	}
	if f.length < len(f.line) {
		copy(f.line[f.length:], part)
	}
	f.length += len(part)
	for _, b := range part[max(0, len(part)-8):] {
		f.last = f.last<<8 | uint64(b)
	}
	f.cr = part[len(part)-1] == '\r'
	return len(part), nil
}

// endLine takes a line feed.
func (f *framing) endLine() error {
	if !f.cr {
		return errBareLineFeed
	}
	length := f.length - 1
	line, whole := f.line[:min(length, len(f.line))], length <= len(f.line)
	old := f.last == 'T'<<56|'T'<<48|'P'<<40|'/'<<32|'1'<<24|'.'<<16|'0'<<8|'\r'
	f.length, f.last, f.cr = 0, 0, false
	switch f.at {
	case atRequestLine:
		if length > 0 { // an empty one before a request is net/http's to judge
			f.at, f.old = atHeader, old
		}
	case atHeader:
		if length > 0 {
			return f.header(line, whole)
		}
		f.endHead()
	case atChunkSize:
		return f.chunk(line, whole)
	case atChunkEnd:
		if length > 0 {
			return errChunk
		}
		f.at = atChunkSize
	case atTrailer:
		if length == 0 {
			*f = framing{}
		}
	}
	return nil
}

// header takes a header's line.
func (f *framing) header(line []byte, whole bool) error {
	name, value, _ := bytes.Cut(line, []byte{':'})
	coding := bytes.EqualFold(name, []byte("Transfer-Encoding"))
	if !coding && !bytes.EqualFold(name, []byte("Content-Length")) {
		return nil
	}
	value = bytes.Trim(value, " \t")
	switch {
	case f.framed:
		return errTwoFramings
	case coding && f.old:
		return errOldChunks
	case coding && (!whole || !bytes.EqualFold(value, []byte("chunked"))):
		return errTransferCoding
	case !coding:
		var err error
		if f.size, err = strconv.ParseUint(string(value), 10, 63); err != nil || !whole {
			return errContentLength
		}
	}
	f.framed, f.chunked = true, coding
	return nil
}

func (f *framing) endHead() {
	if f.chunked {
		f.at = atChunkSize
		return
	}
	*f = framing{body: f.size}
}

// chunk takes the line before a chunk.
func (f *framing) chunk(line []byte, whole bool) error {
	digits, _, extended := bytes.Cut(line, []byte{';'})
	size, err := strconv.ParseUint(string(bytes.TrimRight(digits, " \t")), 16, 64)
	switch {
	case err != nil || !extended && !whole:
		return errChunk
	case size == 0:
		f.at = atTrailer
	default:
		f.at, f.body = atChunkEnd, size
	}
	return nil
}
