// Package jwt verifies the tokens that an application gives its own users (JWT, RFC 7519), so that their requests reach tenant
// and user limits without an API key of ours. The decision engine asks a Verifier about an Authorization value that is no
// credential of ours; a token that does not verify is somebody else's business, and its request is anonymous.
//
// Only signatures by the keys of one configured set (JWKS, RFC 7517) count, by asymmetric algorithms. The set is read by Run,
// in the background: while its URL is away the last keys hold. What a stranger can make a Verifier do is bounded: long tokens
// are not parsed, claims are looked at before the signature, an address has failuresPerSecond wrong signatures a second, and a
// key that is not known makes Run read the set again at most once in pauseBetween.
//
// A Verifier is safe for concurrent use. It depends on nothing but its file or URL; it never logs a token or a claim.
package jwt
