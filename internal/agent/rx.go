package agent

import (
	"fmt"
	"os"

	"scanonce/capture"
	"scanonce/internal/config"
)

// maxSecretFile is far more than any secret has.
const maxSecretFile = 64 << 10

// loadRxSecret reads the facility's secret; nil if the configuration names none.
func loadRxSecret(cfg *config.Config) (*capture.RxSecret, error) {
	path := cfg.Agent.FacilitySecretFile
	if path == "" {
		return nil, nil
	}
	info, err := os.Stat(path) // before it is opened: a pipe would not come back
	if err == nil && !info.IsDir() && (!info.Mode().IsRegular() || info.Size() > maxSecretFile) {
		return nil, secretError(path, "it is no file of one secret, but a pipe, a device or a large file", "write facility_secret_file with the path of a regular file that holds the secret alone (openssl rand -hex 32 makes one)")
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, secretError(path, cause(err), "write the facility's secret into it, the same on every workstation (openssl rand -hex 32 makes one), readable for the agent's user")
	}
	s, err := capture.NewRxSecret(cfg.Agent.FacilityUUID, b)
	clear(b)
	if err != nil {
		return nil, secretError(path, err.Error(), fmt.Sprintf("write one secret of at least %d bytes into it, the same on every workstation of the facility (openssl rand -hex 32 makes one)", capture.MinRxSecret))
	}
	return s, nil
}

func secretError(path, detail, hint string) error {
	return &ExitError{Code: ExitUsage, Kind: "facility_secret", Detail: fmt.Sprintf("cannot use the facility's secret in %s: %s", path, detail), Hint: hint}
}

// checkRxSecret is loadRxSecret for check-config, which also refuses a file that everybody may read: whoever
// has the secret finds the number to a token by trying all. The agent itself goes on with such a file, since
// scans that lose their prescription help nobody, and says so in its log.
func checkRxSecret(cfg *config.Config) error {
	if _, err := loadRxSecret(cfg); err != nil {
		return err
	}
	if path := cfg.Agent.FacilitySecretFile; openToAll(path) {
		return secretError(path, "every user of this machine may read it", "chmod o= "+path)
	}
	return nil
}

func openToAll(path string) bool {
	if path == "" {
		return false
	}
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().Perm()&0o007 != 0
}

// tellSecret logs which secret makes the tokens from now on: workstations whose ids differ make different ones.
func (p *pipeline) tellSecret(cfg *config.Config, s *capture.RxSecret) {
	if s == nil {
		return
	}
	if p.secret == nil || p.secret.ID() != s.ID() {
		p.a.log.Info("prescription numbers become tokens", "secret_id", s.ID())
	}
	if path := cfg.Agent.FacilitySecretFile; openToAll(path) {
		p.a.log.Warn("every user of this machine may read the facility's secret", "file", path, "hint", "chmod o= "+path)
	}
}

// tokenOf is the token of an acceptance, which its duplicates inherit. It may be in this very batch.
func (p *pipeline) tokenOf(seq uint64) string {
	for i := len(p.out) - 1; i >= 0; i-- {
		if r := p.out[i].decision.Record; r != nil && r.Seq == seq {
			return r.RxToken
		}
	}
	r, err := p.a.spool.Load(seq)
	if err != nil {
		p.a.log.Warn("cannot read what a duplicate repeats", "error", err)
		return ""
	}
	return r.RxToken
}
