package alert

import (
	"context"
	"time"

	"github.com/pegel-dev/pegel/internal/audit"
	"github.com/pegel-dev/pegel/internal/tenants"
)

// Kind is what an incident is about.
type Kind string

// The kinds.
const (
	TenantHigh          Kind = "tenant_high"           // a tenant has been high at one of its limits
	StoreDown           Kind = "store_down"            // a replica does not reach Redis or Postgres
	ReplicasDisagree    Kind = "replicas_disagree"     // replicas decide by different stores
	RequestLogDrops     Kind = "request_log_drops"     // rows of the request log were lost
	ServiceTokenRefused Kind = "service_token_refused" // an internal service was refused for its address
	ForgedTokens        Kind = "forged_tokens"         // many credentials that are not valid
)

// Kinds are all of them, as the API names them.
func Kinds() []Kind {
	return []Kind{TenantHigh, StoreDown, ReplicasDisagree, RequestLogDrops, ServiceTokenRefused, ForgedTokens}
}

// Key names what an incident is about: at most one incident of a key is open at a time.
type Key struct {
	Kind Kind
	// Subject within the kind: a tenant's id and limit, a store, a token's name; empty where there is only one.
	Subject string
}

// Facts are what an incident's messages and the API say, as it was when it opened.
type Facts struct {
	TenantID   int64         `json:"tenant_id,omitempty"`
	Tenant     string        `json:"tenant,omitempty"`
	TenantName string        `json:"tenant_name,omitempty"`
	Plan       string        `json:"plan,omitempty"`
	Limit      string        `json:"limit,omitempty"`
	Quota      int64         `json:"quota,omitempty"`
	Window     time.Duration `json:"window,omitempty"` // for a bucket the time an empty one takes to be whole again
	// Slowed: the limit slows requests down before it refuses them.
	Slowed bool `json:"slowed,omitempty"`
	// At is the level that is high, For how long it must have been, Below where it counts as low.
	At    float64       `json:"at,omitempty"`
	Below float64       `json:"below,omitempty"`
	For   time.Duration `json:"for,omitempty"`
	// Name is a store's or a service token's.
	Name string `json:"name,omitempty"`
	// Replicas are "name: what it sees", for what is about stores.
	Replicas []string `json:"replicas,omitempty"`
	// Count is how many (refusals, wrong credentials, lost rows).
	Count int64 `json:"count,omitempty"`
}

// Incident is something that was wrong for long enough, over all replicas.
type Incident struct {
	ID int64
	Key
	Facts

	// Since is when it began, OpenedAt when it had lasted long enough; ResolvedAt is zero while it lasts.
	Since, OpenedAt, ResolvedAt time.Time
	// Value is the level last seen, Peak the highest.
	Value, Peak float64
	// AckedAt is when somebody said that they know: no more reminders.
	AckedAt time.Time
	AckedBy string
	// RemindAt is when the next reminder is due; zero: never. Reminders is how many there were.
	RemindAt  time.Time
	Reminders int
	// Deliveries are its messages, oldest first (Incidents only).
	Deliveries []Delivery
}

// Occasion is why a message is sent.
type Occasion string

// The occasions.
const (
	OnOpen     Occasion = "opened"
	OnReminder Occasion = "reminder"
	OnResolve  Occasion = "resolved"
	OnTest     Occasion = "test"
)

// Channel is a way to somebody; each has its own queue.
type Channel string

// The channels.
const (
	Mail    Channel = "mail"    // to the operators
	Contact Channel = "contact" // a mail to the tenant
	Hook    Channel = "webhook"
)

// Notice is what a message says.
type Notice struct {
	Facts

	Kind       Kind      `json:"kind"`
	Occasion   Occasion  `json:"occasion"`
	IncidentID int64     `json:"incident_id"`
	Since      time.Time `json:"since"`
	OpenedAt   time.Time `json:"opened_at"`
	ResolvedAt time.Time `json:"resolved_at,omitzero"`
	// Made is when the message was written: what it says was true then.
	Made  time.Time `json:"made"`
	Value float64   `json:"value"`
	Peak  float64   `json:"peak"`
}

// Message is a notice on its way.
type Message struct {
	ID      int64
	Channel Channel
	// To is the recipient on the Contact channel.
	To     string
	Notice Notice
	// MessageID is the same at every attempt, so that a receiver can tell a repeat.
	MessageID string
	CreatedAt time.Time
	// Attempts were made, Unsure of them ended without anybody knowing whether the message got through; both count the one
	// under way.
	Attempts, Unsure int
}

// Delivery is what became of a message.
type Delivery struct {
	Channel  Channel   `json:"channel"`
	Occasion Occasion  `json:"occasion"`
	Status   string    `json:"status"` // pending, sent, failed
	Attempts int       `json:"attempts"`
	At       time.Time `json:"at"` // when it was sent or given up; while pending: the next attempt
	Error    string    `json:"error"`
}

// Replica is a replica's stores as it sees them.
type Replica struct {
	Name     string
	Instance string // one run of the process
	Source   string // the store that decides
	Redis    string // "up", "down" or "unconfigured"
	Postgres string
}

// Book is what the ledger holds when a judgement begins.
type Book struct {
	// Now is the ledger's clock: replicas' clocks may differ.
	Now time.Time
	// JudgedAt is when the judgement before was; zero: never.
	JudgedAt time.Time
	States   map[Key]State
	Open     map[Key]Incident
	// Replicas are those that were heard within the last ReplicaTTL, the one that judges among them.
	Replicas []Replica
}

// Ruling is what a judgement changes.
type Ruling struct {
	States map[Key]State
	Forget []Key
	// Open, Resolve and Remind each bring their messages.
	Open, Resolve, Remind []Change
}

// Change is an incident as it is now (its ID is 0 when it opens) and what is said about it.
type Change struct {
	Incident Incident
	Messages []Message
}

// Lease is how long a message that is being sent is kept from others: longer than any attempt takes.
const Lease = 2 * time.Minute

// Fate is what becomes of messages after an attempt.
type Fate struct {
	// Done: no more attempts; Sent: it got through.
	Done, Sent bool
	// Retry is the pause before the next attempt.
	Retry time.Duration
	// Known: it is certain that the message did not get through, so that this attempt does not count as unsure.
	Known bool
	// Error is text for people, on one line and without secrets.
	Error string
	// refused: the server knows no such recipient, for good; postponed: it takes nothing for one now.
	refused, postponed bool
}

// Ledger keeps states, incidents and messages for all replicas. Errors are tenants.ErrUnavailable when it cannot be reached.
type Ledger interface {
	// Judge writes down how self sees its stores and runs judge, one at a time over all replicas, in one transaction with
	// what it rules. An incident that is open already is not opened again, and brings no messages.
	Judge(ctx context.Context, self Replica, judge func(Book) Ruling) error
	// Claim leases what is to be sent next on a channel to worker: one message, or many of one occasion that one digest can
	// tell. Nothing: there is nothing due. Messages of one incident come in order.
	Claim(ctx context.Context, channel Channel, worker string) ([]Message, error)
	// Settle says what became of messages; nothing happens to those whose lease worker has lost.
	Settle(ctx context.Context, worker string, ids []int64, f Fate) error
	// Tidy gives up messages older than GiveUpAfter and deletes incidents resolved longer than Retention ago, some at a time.
	Tidy(ctx context.Context) error
	// Queue is how many messages wait, and how many incidents are open.
	Queue(ctx context.Context) (waiting, open int64, err error)
}

// Filter narrows a list of incidents; zero values do not.
type Filter struct {
	Status string // "open", "acknowledged" (open, and somebody knows) or "resolved"
	Kind   Kind
	Tenant string // slug
	// From is inclusive, To exclusive, of OpenedAt.
	From, To time.Time
}

// Incidents is what the admin API reads and writes.
type Incidents interface {
	// ListIncidents lists from the newest down.
	ListIncidents(ctx context.Context, f Filter, p tenants.Page) (tenants.List[Incident], error)
	// AckIncident says that the actor knows: no more reminders. Once is enough; a repeat changes nothing. A resolved one is a
	// conflict.
	AckIncident(ctx context.Context, a audit.Actor, id int64) (Incident, error)
}
