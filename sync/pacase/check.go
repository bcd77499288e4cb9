package pacase

import (
	"fmt"
	"strings"

	"scanonce/internal/pg"
)

// ConfigError is an error that stays until a person changes the configuration, the database or a login.
type ConfigError = pg.ConfigError

func configError(detail, hint string) error {
	return fmt.Errorf("cannot hold prior-authorization cases: %w", &ConfigError{Detail: detail, Hint: hint})
}

// RequestError is an error that stays whenever the request is made. Its text holds no value of the request.
type RequestError struct {
	Field  string // member_token, gpi, request_window, event_id, op_id, case_id, expected_version or to
	Detail string // what is wrong with it
	Hint   string // what to do
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("cannot take the request: %s %s: %s", e.Field, e.Detail, e.Hint)
}

const (
	maxToken   = 128
	idLength   = 32
	cardholder = 20 // characters that a cardholder id (302-C2) has at most
	cardDigits = 5
	maxVersion = 1<<31 - 2
)

// check says why no store takes the pend, nil if it does.
func (p *Pend) check() error {
	if p.Event.IsZero() {
		return &RequestError{"event_id", "is missing", "give the event's own id, the same at every attempt"}
	}
	return p.Question.check()
}

func (q Question) check() error {
	const opaque = "give an opaque token, for example MTOK_9f2a"
	wrong := func(field, detail, hint string) error { return &RequestError{field, detail, hint} }
	t := q.MemberToken
	digits := count(t, isDigit)
	letters := count(t, isLetter)
	switch {
	case t == "":
		return wrong("member_token", "is missing", opaque)
	case len(t) > maxToken:
		return wrong("member_token", fmt.Sprintf("has more than %d characters", maxToken), opaque)
	case count(t, isGraphic) != len(t):
		return wrong("member_token", "has characters other than printable ASCII without spaces", opaque)
	case strings.ContainsAny(t, "@,^"):
		return wrong("member_token", "looks like an address or a name", opaque)
	case letters == 0:
		return wrong("member_token", "looks like the number of a card or a person", "tokenize it, or give the token a prefix, for example MTOK_")
	case digits == 0 && !prefixed(t):
		return wrong("member_token", "has no digit and looks like a name", "tokenize it, or give the token the prefix tok or mtok and a separator, for example MTOK_")
	case digits >= cardDigits && digits+letters == len(t) && len(t) <= cardholder:
		return wrong("member_token", "looks like the id of a card (302-C2)", "tokenize it, or give the token a prefix, for example MTOK_")
	}
	const gpi = "give the first 2 to 14 characters of a GPI without hyphens, for example 27100010100320"
	switch g := q.GPI; {
	case len(g) < 2 || len(g) > 14 || len(g)%2 != 0:
		return wrong("gpi", "does not have 2, 4, … or 14 characters", gpi)
	case count(g, func(c byte) bool { return isDigit(c) || 'A' <= c && c <= 'Z' }) != len(g):
		return wrong("gpi", "has characters other than digits and capital letters", gpi)
	case !isDigit(g[0]) || !isDigit(g[1]) || g[:2] == "00":
		return wrong("gpi", "does not begin with a drug group, 01 to 99", gpi)
	}
	if !isWindow(q.Window) {
		return wrong("request_window", "is no window of requests", "write a date, 2026-07-17, or hours, 2026-07-17T12:00Z/PT6H, or leave it out")
	}
	return nil
}

// prefixed says that t says of itself that it is a token: tok or mtok and a separator, in any case.
func prefixed(t string) bool {
	rest := strings.TrimPrefix(strings.ToLower(t), "m")
	return len(rest) > 3 && rest[:3] == "tok" && !isLetter(rest[3])
}

// Validate returns a *RequestError about what no store takes.
func (t *Transition) Validate() error {
	switch {
	case !isID(t.ID):
		return CheckID(t.ID)
	case t.Op.IsZero():
		return &RequestError{"op_id", "is missing", "give the operation an id of its own, the same at every attempt"}
	case t.Expected < 1 || t.Expected > maxVersion:
		return &RequestError{"expected_version", fmt.Sprintf("is not 1 to %d", maxVersion), "give the version of the case that the decision was made on"}
	case !t.To.known():
		return &RequestError{"to", "is no state", "write PENDING, IN_REVIEW, APPROVED, DENIED, APPEALED, CANCELLED or EXPIRED"}
	}
	return nil
}

// errReused is the answer to an event that has pended for another member or drug before.
func errReused() error {
	return &RequestError{"event_id", "was used for another member or drug before", "make a new event id for each request"}
}

// CheckID returns a *RequestError about what no case can have as its id, a number or a name above all.
func CheckID(id string) error {
	if !isID(id) {
		return &RequestError{"case_id", "is no case's id, which has 32 digits of 0-9 a-f", "give the case_id or requested_id of an earlier answer"}
	}
	return nil
}

// isID says that s can be an id: nobody looks for what no store can have given out.
func isID(s string) bool {
	return len(s) == idLength && count(s, func(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'f' }) == idLength
}

func count(s string, f func(byte) bool) (n int) {
	for i := range len(s) {
		if f(s[i]) {
			n++
		}
	}
	return n
}

func isDigit(c byte) bool   { return '0' <= c && c <= '9' }
func isLetter(c byte) bool  { return 'a' <= c|0x20 && c|0x20 <= 'z' }
func isGraphic(c byte) bool { return '!' <= c && c <= '~' }
