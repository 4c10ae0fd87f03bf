package postgres

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pegel-dev/pegel/internal/tenants"
)

// A cursor is the key of the last item of a page, with a checksum over it and the list it belongs to: a damaged one, and
// one of another list, is an ErrCursor instead of a page that starts somewhere. It hides and protects nothing.
//
// Lists run by a unique key that never changes, and a page starts after a key, present or not, so rows that come and go
// while somebody turns pages neither repeat nor hide others.

const cursorSum = 6 // bytes of checksum

// maxPage bounds a page whatever was asked for.
const maxPage = 500

func encodeCursor(list, key string) string {
	raw := append([]byte(key), cursorChecksum(list, key)...)
	return base64.RawURLEncoding.EncodeToString(raw)
}

// decodeCursor is the key a page starts after; empty for the first page.
func decodeCursor(list, cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	if len(cursor) > 1024 {
		return "", tenants.ErrCursor
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(raw) <= cursorSum {
		return "", tenants.ErrCursor
	}
	key := string(raw[:len(raw)-cursorSum])
	if string(raw[len(raw)-cursorSum:]) != string(cursorChecksum(list, key)) {
		return "", tenants.ErrCursor
	}
	if !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0 { // anybody can compute the checksum; Postgres refuses such text
		return "", tenants.ErrCursor
	}
	return key, nil
}

// decodeNumber is decodeCursor for lists that run by a number; first is where the first page starts.
func decodeNumber(list, cursor string, first int64) (int64, error) {
	key, err := decodeCursor(list, cursor)
	if err != nil || key == "" {
		return first, err
	}
	n, err := strconv.ParseInt(key, 10, 64)
	if err != nil {
		return 0, tenants.ErrCursor
	}
	return n, nil
}

func cursorChecksum(list, key string) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(list), list, key))
	return sum[:cursorSum]
}

// pageSize is the number of rows a page holds.
func pageSize(p tenants.Page) int {
	if p.Limit <= 0 {
		return 50
	}
	return min(p.Limit, maxPage)
}

// page cuts the one row too many that was asked for, to know whether there is a next page.
func page[T any](list string, items []T, size int, key func(*T) string) tenants.List[T] {
	if len(items) <= size {
		return tenants.List[T]{Items: items}
	}
	items = items[:size]
	return tenants.List[T]{Items: items, Next: encodeCursor(list, key(&items[size-1]))}
}
