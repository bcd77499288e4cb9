package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/google/renameio/v2"

	"scanonce/sync/forward"
)

// madeSuffix ends the name of the marker beside a file of the agent's own. It says that the file was made, and, with
// text in it, that it was gone later: until a person takes the marker away.
const madeSuffix = ".made"

// watchFiles has the agent's own files of claims and cases noticed when they are gone.
func (a *agent) watchFiles() {
	if l, ok := a.states.(*lateState); ok {
		watchFile(a, &l.late, a.ownFile(forward.Claims), alarmClaimsLost, "the claims in it are lost with it, and one that is asked for again begins anew")
	}
	if l, ok := a.cases.(*lateCases); ok {
		watchFile(a, &l.late, a.ownFile(forward.Cases), alarmCasesLost, "the cases in it are lost with it, and one that is asked for again is opened anew")
	}
}

func watchFile[T io.Closer](a *agent, l *late[T], path, code, loss string) {
	if path == "" {
		return
	}
	open := l.open
	l.open = func() (none T, err error) {
		known, err := a.madeBefore(path, code, loss)
		if err != nil {
			return none, err
		}
		s, err := open()
		if err == nil && !known {
			if err = writeMarker(path, nil); err != nil {
				return none, errors.Join(err, s.Close())
			}
		}
		return s, err
	}
}

// madeBefore says that the file was made by this agent earlier. If it is gone, or was found so and no person has acted
// since, there is an alarm, which no new file ends.
func (a *agent) madeBefore(path, code, loss string) (bool, error) {
	said, err := os.ReadFile(path + madeSuffix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("cannot read the marker of a file: %w", err)
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) { // a link that leads nowhere now is there
		said = []byte("the file " + path + " was gone, and a new one was begun: " + loss)
		if err := writeMarker(path, said); err != nil {
			return false, err
		}
	}
	if len(said) > 0 {
		a.alarms.set(code, string(said), "stop the agent, put the file back from a copy if there is one, remove "+path+madeSuffix+", and start the agent again")
	}
	return true, nil
}

func writeMarker(path string, text []byte) error {
	if err := renameio.WriteFile(path+madeSuffix, text, 0o600); err != nil {
		return fmt.Errorf("cannot write the marker of a file: %w", err)
	}
	return nil
}
