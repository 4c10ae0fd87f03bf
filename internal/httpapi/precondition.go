package httpapi

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/pegel-dev/pegel/internal/problem"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// noVersion is a version that no object has: the ETag it stands for was never given out.
const noVersion = -1

// etag is a version as an entity tag.
func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// readIfMatch turns If-Match into a precondition. A tag that is not ours matches nothing: it is stale, not malformed. Weak
// tags never match (RFC 9110, 13.1.1). given is false without the header.
func readIfMatch(header *string) (pre tenants.Precondition, given bool) {
	if header == nil {
		return pre, false
	}
	tag := strings.TrimSpace(*header)
	if tag == "*" {
		return tenants.Precondition{Any: true}, true
	}
	pre.Version = noVersion
	if len(tag) > 2 && tag[0] == '"' && tag[len(tag)-1] == '"' {
		if v, err := strconv.ParseInt(tag[1:len(tag)-1], 10, 64); err == nil && v > 0 {
			pre.Version = v
		}
	}
	return pre, true
}

// errPreconditionRequired asks for an If-Match on an object that exists.
func errPreconditionRequired() error {
	return refuse(problem.PreconditionRequired, "the object exists: send its ETag as If-Match")
}

// mustMatch is for PATCH and DELETE: without If-Match the answer is 428 when the object exists, and whatever reading it
// answers when it does not.
func mustMatch(ctx context.Context, header *string, exists func(ctx context.Context) error) (tenants.Precondition, error) {
	pre, given := readIfMatch(header)
	if given {
		return pre, nil
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
