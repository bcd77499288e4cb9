package capture

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
)

// MinRxSecret is the least length of a facility's secret, in bytes. Prescription numbers are short: whoever
// can guess the secret can try them all.
const MinRxSecret = 16

// RxSecret is a facility's secret, under which prescription labels become tokens. It never prints.
type RxSecret struct {
	facility string
	secret   []byte
	id       string
}

// NewRxSecret takes the facility's id and the bytes of its secret's file, line endings at their end left out.
// All other bytes count, so that a file of random bytes is as good as one of text; but text of several lines
// is refused, since only one of them can have been meant. The errors name no byte of it.
func NewRxSecret(facility string, file []byte) (*RxSecret, error) {
	n := len(file)
	for n > 0 && (file[n-1] == '\n' || file[n-1] == '\r') {
		n--
	}
	b := file[:n]
	switch {
	case n == 0:
		return nil, errors.New("it is empty")
	case n < MinRxSecret:
		return nil, fmt.Errorf("its secret has %d bytes, at least %d are needed", n, MinRxSecret)
	case severalLines(b):
		return nil, errors.New("it holds several lines")
	}
	h := sha256.Sum256(b)
	return &RxSecret{facility: facility, secret: append([]byte(nil), b...), id: hex.EncodeToString(h[:4])}, nil
}

// severalLines says that b is text with a line ending in it.
func severalLines(b []byte) bool {
	lines := false
	for _, c := range b {
		switch {
		case c == '\r' || c == '\n':
			lines = true
		case c != '\t' && (c < ' ' || c > '~'):
			return false
		}
	}
	return lines
}

// ID names the secret: 8 hexadecimal digits, the beginning of its SHA-256. It stands in every token.
func (s *RxSecret) ID() string { return s.id }

// Token names a label without telling its number: rx1.<id of the secret>.<32 hexadecimal digits of
// HMAC-SHA256 under the secret over facility|store|rx|refill>, each value escaped as in the idempotency keys,
// a missing group empty. The same label gives the same token at every workstation of the facility, however it
// was framed, and another one elsewhere. A nil secret makes none: "".
func (s *RxSecret) Token(rx Rx) string {
	if s == nil {
		return ""
	}
	var text []byte
	for i, v := range [...]string{s.facility, rx.Store.Reveal(), rx.Rx.Reveal(), rx.Refill.Reveal()} {
		if i > 0 {
			text = append(text, '|')
		}
		for j := 0; j < len(v); j++ {
			switch v[j] {
			case '\\':
				text = append(text, `\\`...)
			case '|':
				text = append(text, `\p`...)
			default:
				text = append(text, v[j])
			}
		}
	}
	m := hmac.New(sha256.New, s.secret)
	m.Write(text)
	clear(text)
	return "rx1." + s.id + "." + hex.EncodeToString(m.Sum(nil)[:16])
}

func (s RxSecret) String() string               { return "[facility secret " + s.id + "]" }
func (s RxSecret) Format(f fmt.State, _ rune)   { hide(f, s) }
func (s RxSecret) LogValue() slog.Value         { return slog.StringValue(s.String()) }
func (s RxSecret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
