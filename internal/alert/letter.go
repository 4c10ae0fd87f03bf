package alert

import (
	"bytes"
	"embed"
	"fmt"
	htmltemplate "html/template"
	"math"
	texttemplate "text/template"
)

//go:embed templates
var templates embed.FS

// The colours of what is wrong and of what is over; both can be read on light and on dark.
const (
	colorWrong = "#d9480f"
	colorOver  = "#2b8a3e"
)

// digestLines is how many incidents a digest names.
const digestLines = 50

// Letter is a mail without its addresses.
type Letter struct{ Subject, Text, HTML string }

// letters writes mails. It is safe for concurrent use.
type letters struct {
	dashboard string
	text      *texttemplate.Template
	html      *htmltemplate.Template
}

func newLetters(dashboard string) (*letters, error) {
	text, err := texttemplate.ParseFS(templates, "templates/mail.txt.tmpl")
	if err != nil {
		return nil, fmt.Errorf("read the text of mails: %w", err)
	}
	html, err := htmltemplate.ParseFS(templates, "templates/mail.html.tmpl")
	if err != nil {
		return nil, fmt.Errorf("read the HTML of mails: %w", err)
	}
	return &letters{dashboard: dashboard, text: text, html: html}, nil
}

// letterView is what the templates show.
type letterView struct {
	Words                  Words
	Headline, Kicker, Foot string
	Color                  string
	Link                   string
	// Bar is how full the bar is, 0…100; 0: there is none.
	Bar int
	// Items and More are a digest's.
	Items []string
	More  int
}

const (
	footOperators = "Pegel sends this to the addresses in PEGEL_ALERT_TO, once per incident."
	footContact   = "You get this because you are the contact of this organisation."
)

// one is the mail about a single incident.
func (l *letters) one(n *Notice) (Letter, error) {
	w := Tell(n, l.dashboard)
	return l.write("one", letterView{Words: w, Headline: w.Headline, Kicker: kicker(n.Occasion), Foot: footOperators, Link: w.Link, Color: color(w.Over), Bar: bar(n)})
}

// contact is the mail to the tenant that it is about.
func (l *letters) contact(n *Notice) (Letter, error) {
	w := TellContact(n)
	return l.write("one", letterView{Words: w, Headline: w.Headline, Kicker: kicker(n.Occasion), Foot: footContact, Color: color(w.Over), Bar: bar(n)})
}

// digest is one mail about many incidents of the same occasion.
func (l *letters) digest(messages []Message) (Letter, error) {
	on := messages[0].Notice.Occasion
	verb := map[Occasion]string{OnOpen: "incidents have opened", OnReminder: "incidents are still open", OnResolve: "incidents are over"}[on]
	v := letterView{
		Headline: fmt.Sprintf("%d %s", len(messages), verb), Kicker: kicker(on), Foot: footOperators, Color: color(on == OnResolve),
		More: max(0, len(messages)-digestLines),
	}
	for i := range messages[:min(len(messages), digestLines)] {
		v.Items = append(v.Items, Tell(&messages[i].Notice, "").Headline)
	}
	if l.dashboard != "" {
		v.Link = l.dashboard + "/alerts"
	}
	return l.write("many", v)
}

func (l *letters) write(name string, v letterView) (Letter, error) {
	var text, html bytes.Buffer
	if err := l.text.ExecuteTemplate(&text, name, v); err != nil {
		return Letter{}, fmt.Errorf("write the text of a mail: %w", err)
	}
	if err := l.html.ExecuteTemplate(&html, name, v); err != nil {
		return Letter{}, fmt.Errorf("write the HTML of a mail: %w", err)
	}
	return Letter{Subject: "[Pegel] " + clean(v.Headline, 180), Text: text.String(), HTML: html.String()}, nil
}

func kicker(on Occasion) string {
	return map[Occasion]string{OnOpen: "New incident", OnReminder: "Still open", OnResolve: "Resolved", OnTest: "Test"}[on]
}

func color(over bool) string {
	if over {
		return colorOver
	}
	return colorWrong
}

func bar(n *Notice) int {
	if n.Kind != TenantHigh {
		return 0
	}
	level := n.Peak
	if n.Occasion == OnResolve {
		level = n.Value
	}
	return max(1, min(100, int(math.Floor(level*100))))
}
