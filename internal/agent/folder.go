package agent

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/renameio/v2"

	"scanonce/internal/config"
	"scanonce/spool"
)

// openFolder makes the state folder, mode 0700, and takes its lock for as long as the result is open.
func openFolder(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &ExitError{Code: ExitState, Kind: "state_folder", Detail: fmt.Sprintf("cannot make the state folder %s: %s", dir, cause(err)),
			Hint: "make it, owned by the user that the agent runs as, or set agent.state_dir or --state-dir to a folder that can be written"}
	}
	if fi, err := os.Stat(dir); err == nil && fi.Mode().Perm()&0o077 != 0 {
		os.Chmod(dir, fi.Mode().Perm()&^0o077) // only its owner can; nobody else's business is in there
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, &ExitError{Code: ExitState, Kind: "state_folder", Detail: fmt.Sprintf("cannot write in the state folder %s: %s", dir, cause(err)),
			Hint: "give it to the user that the agent runs as (chown -R), or set agent.state_dir or --state-dir to a folder that can be written"}
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := ""
		if b, err := os.ReadFile(f.Name()); err == nil {
			if pid := strings.TrimSpace(string(b)); pid != "" {
				holder = " (process " + pid + ")"
			}
		}
		f.Close()
		return nil, &ExitError{Code: ExitHeld, Kind: "state_folder_held", Detail: fmt.Sprintf("cannot use the state folder %s: another agent%s holds it", dir, holder),
			Hint: "stop the other agent (systemctl stop scanonce), or give this one a folder of its own with --state-dir"}
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(fmt.Sprintf("%d\n", os.Getpid())), 0)
	}
	if err != nil {
		f.Close()
		return nil, stateError(dir, fmt.Errorf("cannot write in the state folder %s: %w", dir, err))
	}
	return f, nil
}

func cause(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

type identityFile struct {
	AgentID string `json:"agent_id"`
}

// agentID is the configured id, or the one that is kept in agent.json. Without either it is the one to which the spool
// belongs, or else a new one. kept says that agent.json has it: the spool was in use before.
func agentID(dir, configured string) (id string, kept bool, err error) {
	path := identityPath(dir)
	var file identityFile
	b, err := os.ReadFile(path)
	switch {
	case err == nil:
		if err := json.Unmarshal(b, &file); err != nil || file.AgentID == "" {
			hint := "put the file back from a copy, or set agent.agent_id to the id that the agent had"
			if owner := spool.Owner(filepath.Join(dir, "spool")); owner != "" {
				hint = fmt.Sprintf("write {\"agent_id\":%q} into it: the spool belongs to that agent", owner)
			}
			return "", false, &ExitError{Code: ExitState, Kind: "agent_id", Detail: fmt.Sprintf("cannot read the agent's id from %s", path), Hint: hint}
		}
	case !errors.Is(err, fs.ErrNotExist):
		return "", false, stateError(dir, fmt.Errorf("cannot read %s: %w", path, err))
	}
	switch {
	case configured != "" && file.AgentID != "" && configured != file.AgentID:
		return "", false, &ExitError{Code: ExitState, Kind: "agent_id", Detail: fmt.Sprintf("cannot use agent id %s: this state folder belongs to agent %s", configured, file.AgentID),
			Hint: fmt.Sprintf("set agent.agent_id = %q, or give this agent a state folder of its own", file.AgentID)}
	case file.AgentID != "":
		return file.AgentID, true, nil
	case configured != "":
		return configured, false, nil
	}
	if id = spool.Owner(filepath.Join(dir, "spool")); id == "" {
		var r [8]byte
		rand.Read(r[:])
		id = "agent-" + hex.EncodeToString(r[:])
	}
	return id, false, nil
}

func identityPath(dir string) string { return filepath.Join(dir, "agent.json") }

// keepID writes agent.json, once the spool has been opened with the id.
func keepID(dir, id string) error {
	b, err := json.Marshal(identityFile{id})
	if err == nil {
		err = renameio.WriteFile(identityPath(dir), append(b, '\n'), 0o600)
	}
	if err != nil {
		return stateError(dir, fmt.Errorf("cannot write %s: %w", identityPath(dir), err))
	}
	return nil
}

// apiToken reads the token for the loopback listener; the agent's own file is made if it is missing.
func apiToken(cfg *config.Config) (string, error) {
	if cfg.API.Listen == "" {
		return "", nil
	}
	path := cfg.TokenFile()
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && cfg.API.TokenFile == "" {
		var r [24]byte
		rand.Read(r[:])
		b = []byte(base64.RawURLEncoding.EncodeToString(r[:]) + "\n")
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = renameio.WriteFile(path, b, 0o600)
		}
		if err != nil {
			return "", stateError(cfg.Agent.StateDir, fmt.Errorf("cannot write the API token: %w", err))
		}
	}
	token := strings.TrimSpace(string(b))
	if err != nil || token == "" {
		return "", &ExitError{Code: ExitUsage, Kind: "token_file", Detail: fmt.Sprintf("cannot read the API token from %s", path),
			Hint: "write a long random token into the file, readable for the agent, or leave api.token_file out to have one made"}
	}
	return token, nil
}
