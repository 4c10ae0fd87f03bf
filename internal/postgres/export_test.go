package postgres

// What the tests of this package's outside need from its inside.
var (
	MigrateUpFrom     = migrateUp
	MigrateStatusFrom = migrateStatus
	EncodeCursor      = encodeCursor
	Clip              = clip
	RequestsSQL       = requestsSQL
	Unsorted          = unsorted
)
