package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// etag is a version as an entity tag.
func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// readIfMatch turns If-Match into a precondition (RFC 9110, 13.1.1): any, or a list of tags of which one has to be the object's. A tag that
// is not ours matches nothing, nor does a weak one: that is stale, not malformed. given is false without the header.
func readIfMatch(header *string) (pre tenants.Precondition, given bool, err error) {
	if header == nil {
		return pre, false, nil
	}
	if strings.Trim(*header, " \t") == "*" {
		return tenants.Precondition{Any: true}, true, nil
	}
	tags, ok := strongTags(*header)
	if !ok {
		return pre, true, invalid("/header/"+headerIfMatch, `must be * or a list of quoted ETags, such as "3" or "3", "4"`)
	}
	pre.Versions = make([]int64, 0, len(tags))
	for _, tag := range tags {
		if v, err := strconv.ParseInt(tag, 10, 64); err == nil && v > 0 && etag(v) == `"`+tag+`"` {
			pre.Versions = append(pre.Versions, v)
		}
	}
	return pre, true, nil
}

const headerIfMatch = "If-Match"

// strongTags reads a list of entity tags (RFC 9110, 5.6.1 and 8.8.3) and leaves out the weak ones. ok is false for what is no such list, and
// for one without any tag.
func strongTags(list string) (tags []string, ok bool) {
	rest := list
	for {
		if rest = strings.TrimLeft(rest, " \t,"); rest == "" { // elements may be empty
			return tags, ok
		}
		opaque, weak := strings.CutPrefix(rest, "W/")
		quoted, opened := strings.CutPrefix(opaque, `"`)
		tag, after, closed := strings.Cut(quoted, `"`)
		after = strings.TrimLeft(after, " \t")
		if !opened || !closed || strings.ContainsFunc(tag, func(r rune) bool { return r <= ' ' || r == 0x7f }) || after != "" && after[0] != ',' {
			return nil, false
		}
		if !weak {
			tags = append(tags, tag)
		}
		rest, ok = after, true
	}
}

// joinLines makes one line of the lines of a header that is a list: they mean the same (RFC 9110, 5.3).
func joinLines(h http.Header, name string) {
	if lines := h[name]; len(lines) > 1 {
		h[name] = []string{strings.Join(lines, ", ")}
	}
}

// errPreconditionRequired asks for an If-Match on an object that exists.
func errPreconditionRequired() error {
	return refuse(problem.PreconditionRequired, "the object exists: send its ETag as If-Match")
}

// mustMatch is for PATCH and DELETE: without If-Match the answer is 428 when the object exists, and whatever reading it
// answers when it does not.
func mustMatch(ctx context.Context, header *string, exists func(ctx context.Context) error) (tenants.Precondition, error) {
	pre, given, err := readIfMatch(header)
	if given {
		return pre, err
	}
	if err := exists(ctx); err != nil {
		return pre, err
	}
	return pre, errPreconditionRequired()
}

// orRequired makes of a failed precondition that nobody stated the demand to state one.
func orRequired(err error, stated bool) error {
	if errors.Is(err, tenants.ErrVersion) && !stated {
		return errPreconditionRequired()
	}
	return err
}

func setETag(c *gin.Context, version int64) { c.Header("ETag", etag(version)) }
