package tenants

// Kind is the prefix that tells our credentials from anybody else's.
type Kind string

// The credential kinds.
const (
	KindAPIKey       Kind = "pgk"
	KindServiceToken Kind = "pgs"
	KindAdminToken   Kind = "pga"
)

// Credential is a parsed credential: `<kind>_<public id>_<secret><checksum>`. It is for comparing, never for printing.
type Credential struct {
	Kind Kind
	ID   string
	// Hash is the SHA-256 of the secret; the secret itself is not kept.
	Hash [32]byte
}
