package agent

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"scanonce/capture"
	"scanonce/internal/config"
)

// rxSecret is the facility's secret, under which prescription numbers become tokens. nil makes none.
type rxSecret struct {
	secret []byte
	id     string
}

func (*rxSecret) String() string { return "[facility secret]" }

func loadRxSecret(cfg *config.Config) (*rxSecret, error) {
	path := cfg.Agent.FacilitySecretFile
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	b = bytes.TrimRight(b, "\r\n")
	if err != nil || len(b) < 16 {
		return nil, &ExitError{Code: ExitUsage, Kind: "facility_secret", Detail: fmt.Sprintf("cannot read the facility's secret from %s", path),
			Hint: "write the same secret, at least 16 bytes, into this file on every workstation of the facility"}
	}
	h := sha256.Sum256(b)
	return &rxSecret{b, hex.EncodeToString(h[:4])}, nil
}

// token names a label without telling its number: the same label gives the same token at every workstation
// of the facility, and another one elsewhere.
func (s *rxSecret) token(facility string, rx capture.Rx) *string {
	if s == nil {
		return nil
	}
	m := hmac.New(sha256.New, s.secret)
	var text []byte
	for i, f := range [...]string{facility, rx.Store.Reveal(), rx.Rx.Reveal(), rx.Refill.Reveal()} {
		if i > 0 {
			text = append(text, '|')
		}
		for j := 0; j < len(f); j++ {
			switch f[j] {
			case '\\':
				text = append(text, `\\`...)
			case '|':
				text = append(text, `\p`...)
			default:
				text = append(text, f[j])
			}
		}
	}
	m.Write(text)
	t := "rx1." + s.id + "." + hex.EncodeToString(m.Sum(nil)[:16])
	return &t
}
