package alert

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// GiveUpAfter is how long a message is tried.
	GiveUpAfter = 24 * time.Hour
	// Retention is how long incidents are kept after they were resolved.
	Retention = 90 * 24 * time.Hour
	// MaxUnsure is how many attempts may end without anybody knowing whether the message got through.
	MaxUnsure = 2
	// TwiceInDoubt and TooOld are why a message was given up.
	TwiceInDoubt = "two attempts ended without an answer, so it may have arrived; not sent a third time"
	TooOld       = "nobody sent it in time"
	// DigestFrom is from how many mails of one occasion on they are sent as one.
	DigestFrom = 6
	// DigestMost is how many incidents one digest tells of.
	DigestMost = 200

	// fetchEvery is how often a courier looks for messages.
	fetchEvery = 2 * time.Second
	// firstRetry and lastRetry bound the pause before the next attempt; it doubles, with jitter.
	firstRetry = 10 * time.Second
	lastRetry  = 30 * time.Minute
	// settleWithin bounds saying what became of a message, also when the courier is told to end.
	settleWithin = 3 * time.Second
)

// courier takes one channel's messages from the ledger and sends them, one after another.
type courier struct {
	channel Channel
	worker  string // unique among replicas
	ledger  Ledger
	send    func(ctx context.Context, messages []Message) Fate
	now     func() time.Time
	log     *slog.Logger
	count   func(channel Channel, result string)
	// pause waits between two looks at the queue; false: ctx has ended.
	pause func(ctx context.Context, d time.Duration) bool
}

// run sends until ctx ends.
func (c *courier) run(ctx context.Context) {
	for {
		sent, err := c.round(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Debug("messages cannot be fetched now", slog.String("channel", string(c.channel)), slog.Any("error", err))
		}
		if ctx.Err() != nil || !sent && !c.pause(ctx, fetchEvery) {
			return
		}
	}
}

// round sends what is next; false when there is nothing.
func (c *courier) round(ctx context.Context) (bool, error) {
	messages, err := c.ledger.Claim(ctx, c.channel, c.worker)
	if err != nil || len(messages) == 0 {
		return false, err
	}
	fate := settled(&messages[0], c.send(ctx, messages), c.now())
	ids := make([]int64, len(messages))
	for i := range messages {
		ids[i] = messages[i].ID
	}
	c.say(ctx, messages, &fate)
	// What was sent must be written down even when the replica is told to end, or it would be sent again.
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	if err := c.ledger.Settle(limit, c.worker, ids, fate); err != nil {
		return false, fmt.Errorf("settle messages: %w", err)
	}
	return true, nil
}

// settled completes the fate of an attempt: when it is tried again, or why it is not.
func settled(m *Message, f Fate, now time.Time) Fate {
	if f.Sent {
		return Fate{Done: true, Sent: true, Known: true, Error: f.Error}
	}
	if !f.Known && m.Unsure >= MaxUnsure {
		return Fate{Done: true, Error: TwiceInDoubt}
	}
	if now.Sub(m.CreatedAt) >= GiveUpAfter {
		f.Done = true
	}
	f.Retry = retryAfter(m.Attempts)
	return f
}

// retryAfter is the pause after so many attempts.
func retryAfter(attempts int) time.Duration {
	pause := lastRetry
	if n := max(0, attempts-1); n < 8 {
		pause = min(lastRetry, firstRetry<<n)
	}
	return pause*3/4 + rand.N(pause/4) //nolint:gosec // jitter is no secret
}

func (c *courier) say(ctx context.Context, messages []Message, f *Fate) {
	level, text, result := slog.LevelWarn, "a message could not be sent; it will be tried again", "retried"
	switch {
	case f.Sent:
		level, text, result = slog.LevelInfo, "message sent", "sent"
	case f.Done:
		level, text, result = slog.LevelError, "a message was given up", "failed"
	}
	m := &messages[0]
	c.log.LogAttrs(ctx, level, text, slog.String("channel", string(c.channel)), slog.Int64("incident", m.Notice.IncidentID),
		slog.String("occasion", string(m.Notice.Occasion)), slog.Int("messages", len(messages)), slog.Int("attempt", m.Attempts), slog.String("error", f.Error))
	for range messages {
		c.count(c.channel, result)
	}
}

// Outlets are the ways out: what is nil is not configured.
type Outlets struct {
	Mailer  *Mailer
	To      []string // operators
	Poster  *Poster
	letters *letters
}

// NewOutlets puts them together. dashboard is where the dashboard is; empty: not known.
func NewOutlets(mailer *Mailer, to []string, poster *Poster, dashboard string) (*Outlets, error) {
	l, err := newLetters(dashboard)
	if err != nil {
		return nil, err
	}
	return &Outlets{Mailer: mailer, To: to, Poster: poster, letters: l}, nil
}

// Post writes the mail that tells of messages: of one, or a digest.
func (o *Outlets) Post(messages []Message) (*Post, error) {
	m := &messages[0]
	p := &Post{To: o.To, MessageID: m.MessageID, Date: m.Notice.Made, Attempt: m.Attempts}
	var err error
	switch {
	case m.Channel == Contact:
		p.To = []string{m.To}
		p.Letter, err = o.letters.contact(&m.Notice)
	case len(messages) > 1:
		p.Letter, err = o.letters.digest(messages)
	default:
		p.Letter, err = o.letters.one(&m.Notice)
	}
	return p, err
}

func (o *Outlets) sendMail(ctx context.Context, messages []Message) Fate {
	p, err := o.Post(messages)
	if err != nil {
		return Fate{Known: true, Done: true, Error: plainError(err)}
	}
	f := o.Mailer.Send(ctx, p)
	if messages[0].Channel == Contact && f.refused {
		f.Done = true // there is no such mailbox: trying for a day would not make one
	}
	return f
}

// errNoOutlet is a test without anybody to tell.
var errNoOutlet = errors.New("neither PEGEL_SMTP_URL nor PEGEL_ALERT_WEBHOOK_URL is set: there is nobody to tell")

// Test sends a made-up incident on every way out, and says of each what became of it.
func (o *Outlets) Test(ctx context.Context, now time.Time, id string) (map[Channel]Fate, error) {
	if o.Mailer == nil && o.Poster == nil {
		return nil, errNoOutlet
	}
	m := Message{MessageID: id, Notice: Notice{
		Facts: Facts{
			Tenant: "school-17", TenantName: "School 17", Plan: "light", Limit: "requests-per-minute", Quota: 2000, Window: time.Minute,
			Slowed: true, At: 0.8, Below: 0.7, For: 10 * time.Minute,
		},
		Kind: TenantHigh, Occasion: OnTest, Since: now.Add(-10 * time.Minute), OpenedAt: now, Made: now, Value: 0.85, Peak: 0.87,
	}}
	fates := map[Channel]Fate{}
	if o.Mailer != nil {
		m.Channel = Mail
		fates[Mail] = o.sendMail(ctx, []Message{m})
	}
	if o.Poster != nil {
		m.Channel = Hook
		fates[Hook] = o.Poster.Send(ctx, &m, now)
	}
	return fates, nil
}
