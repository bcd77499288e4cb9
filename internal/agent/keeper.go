package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/spool"
	"scanonce/window"
)

// keeper is the task that reads the spool's older files after an unclean stop, and heals what is damaged, while
// scanning goes on.
type keeper struct {
	a        *agent
	ready    chan struct{}
	lost     int64 // records, in this run
	doubtful int64 // likewise, that were sent or are lost
	lines    int64 // likewise, of the journal of operations
	files    int
	last     string   // of the files
	notes    []string // what else has happened
	earlier  string   // what an earlier run has lost
	moved    bool
	apart    int // files
}

func newKeeper(a *agent) *keeper { return &keeper{a: a, ready: make(chan struct{})} }

func (k *keeper) String() string { return "spool keeper" }

// Ready is closed at once: nothing waits for the older files.
func (k *keeper) Ready() <-chan struct{} { return k.ready }

// Run tends the spool until ctx ends.
func (k *keeper) Run(ctx context.Context) error {
	close(k.ready)
	if k.a.bereft != "" {
		k.a.log.Error("the spool that this agent had is gone", "detail", k.a.bereft)
		k.notes = append(k.notes, k.a.bereft)
	}
	if n := k.a.spool.Stats().Unaccounted; n > 0 && keptAside(k.a.cfg.Agent.StateDir) {
		k.earlier = fmt.Sprintf("%d accepted scans were lost in damaged files of the spool", n)
	}
	k.alarm()
	return k.a.spool.Tend(ctx, k.healed, func(err error) {
		k.a.log.Error("cannot heal the spool yet; nothing more is lost", "error", err)
	})
}

func (k *keeper) healed(h spool.Healing) {
	if h.Older {
		k.a.log.Error("the spool went back to an earlier time: what was sent since is sent again and finds its own rows", "file", h.File, "no_longer_counted", h.Records)
		k.a.alarms.set(alarmSpoolOlder, fmt.Sprintf("the spool went back to an earlier time; %d scans that were sent since are in the ledger and no longer in the counts", h.Records),
			"nothing to do if somebody has put a backup back, but for scans of that time that had not been sent: they are in none; else see who has changed the state folder. The alarm ends with the next start")
		return
	}
	k.lost += h.Unaccounted
	k.lines += h.Operations
	k.earlier = ""
	attrs := []any{"file", h.File, "detail", h.Detail, "kept", h.Aside, "records", h.Records, "unaccounted", h.Unaccounted, "operations", h.Operations}
	switch {
	case h.Moved:
		k.moved = true
		k.notes = append(k.notes, h.File+": "+h.Detail)
		k.a.log.Error("a file of the spool was not in its place", attrs...)
	case h.Doubtful > 0:
		k.doubtful += h.Doubtful
		k.notes = append(k.notes, h.File+": "+h.Detail)
		k.a.log.Error("scans are in no file of the spool; they were sent before, or are lost", append(attrs, "scans", h.Doubtful)...)
	case h.Apart:
		k.apart++
		k.notes = append(k.notes, h.File+": "+h.Detail)
		k.a.log.Error("a file of the spool was set aside that takes no part in it", attrs...)
	default:
		k.files++
		k.last = h.File
		k.a.log.Error("a damaged file of the spool was healed, with what can be read of it", attrs...)
	}
	k.alarm()
}

const mostNotes = 3 // in an alarm; the log has all

// alarm says what has happened to the spool in this run, if anything has.
func (k *keeper) alarm() {
	told := k.notes[max(0, len(k.notes)-mostNotes):]
	if k.files > 0 {
		told = append(told[:len(told):len(told)], fmt.Sprintf("%d damaged files of the spool were healed, the last one %s", k.files, k.last))
	}
	var lost []string
	if k.lost > 0 {
		lost = append(lost, fmt.Sprintf("%d accepted scans are lost", k.lost))
	}
	if k.doubtful > 0 {
		lost = append(lost, fmt.Sprintf("%d more are in no file: what was not sent of them is lost", k.doubtful))
	}
	if k.apart > 0 {
		lost = append(lost, fmt.Sprintf("%d files were set aside whose scans are not in the spool", k.apart))
	}
	if k.lines > 0 {
		lost = append(lost, fmt.Sprintf("%d entries about queued operations on claims and cases are lost", k.lines))
	}
	switch {
	case k.earlier != "":
		told = append(told, k.earlier)
	case len(told) == 0:
		return
	case lost == nil && k.a.bereft == "":
		told = append(told, "nothing is lost")
	case lost != nil:
		told = append(told, strings.Join(lost, " and "))
	}
	hint := "check the disk under the state folder"
	if k.lost > 0 || k.doubtful > 0 || k.apart > 0 || k.earlier != "" {
		hint += ", count the items that were scanned around that time, and try scanonce spool salvage on a copy of what is in spool/quarantine"
	}
	if k.a.bereft != "" {
		hint = "find out who moved or removed the spool folder; if it still exists, stop the agent, move the present one away, put it back, start, and let that be sent;" +
			" then do the same with the present one. If not, count the items that were scanned and not yet sent"
	} else if k.moved {
		hint += ", and find out who moves or removes files of a running agent: stop it first (systemctl stop scanonce), and start it again now"
	}
	if k.lines > 0 {
		hint += ", and compare claims and cases of that time with the pharmacy system: answers of 202 may not have been carried out"
	}
	end := "a start after the files are taken out of spool/quarantine"
	if k.a.bereft != "" {
		end = "a start after the file " + bereftName + " is taken out of the state folder"
	}
	k.a.alarms.set(alarmSpoolDamage, strings.Join(told, "; "), hint+"; the alarm ends with "+end)
}

// bereftName is the file in the state folder that keeps the alarm about a spool that is gone until a person has seen it.
const bereftName = "spool-is-gone.txt"

// bereft finds out, before a new one is made, whether the spool that an agent had is gone, or was found gone earlier.
func bereft(dir string, known bool) (string, error) {
	path := filepath.Join(dir, bereftName)
	if b, err := os.ReadFile(path); err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	at := filepath.Join(dir, "spool")
	fi, err := os.Stat(at)
	link, lerr := os.Lstat(at)
	switch {
	case err == nil && !fi.IsDir():
		if err := os.Rename(at, at+"."+fi.ModTime().UTC().Format("20060102T150405Z")); err != nil {
			return "", stateError(dir, fmt.Errorf("cannot move away what stands in the place of the spool folder: %w", err))
		}
	case err != nil && lerr == nil && link.Mode()&fs.ModeSymlink != 0:
		return "", &ExitError{Code: ExitState, Kind: "state_folder", Detail: fmt.Sprintf("cannot open the spool folder %s: it is a link that leads nowhere", at),
			Hint: "mount the disk that it leads to, or, if that is lost, remove the link: the agent then begins a new spool"}
	}
	if !known {
		return "", nil
	}
	if used, err := spool.Used(at); err != nil || used || spool.Marked(at) {
		return "", nil // what is missing of it the spool tells itself
	}
	text := "the spool of this agent was gone at its start, and a new one was begun: scans that were accepted and not yet sent are lost with it, and nobody knows how many"
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		return "", stateError(dir, fmt.Errorf("cannot write %s: %w", path, err))
	}
	return text, nil
}

// keptAside says that nobody has taken the damaged files away.
func keptAside(dir string) bool {
	entries, err := os.ReadDir(filepath.Join(dir, "spool", "quarantine"))
	return err == nil && len(entries) > 0
}

// rotateWithin is how long a backup may wait for the intake.
const rotateWithin = 10 * time.Second

// SpoolVerify reads every record of the spool; see api.Reader.
func (a *agent) SpoolVerify(ctx context.Context) (api.SpoolReport, error) {
	return a.stored().SpoolVerify(ctx)
}

// SpoolBackup writes a copy of the spool with everything until now; see api.Reader.
func (a *agent) SpoolBackup(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, rotateWithin)
	defer cancel()
	var failed error
	if a.pipe.do(ctx, func(*spool.Batch) func(error) { failed = a.spool.Rotate(); return nil }) != nil {
		return errBusy()
	}
	if failed != nil {
		return unkept(failed)
	}
	return a.stored().SpoolBackup(ctx, w)
}

func (s stored) SpoolVerify(ctx context.Context) (api.SpoolReport, error) {
	if s.spool == nil {
		return api.SpoolReport{}, nil
	}
	r, err := s.spool.Verify(ctx)
	return spoolReport(&r), err
}

func (s stored) SpoolBackup(_ context.Context, w io.Writer) error {
	if s.spool == nil {
		return &api.Error{Status: http.StatusNotFound, Reason: "no_spool", Detail: "cannot back up the spool: there is none yet", Hint: "start the agent once"}
	}
	var damaged *spool.DamageError
	err := s.spool.Backup(w)
	if errors.As(err, &damaged) {
		return &api.Error{Status: http.StatusServiceUnavailable, Reason: "spool_damage", Detail: err.Error(), Hint: "try again once it is healed, which scanonce status tells"}
	}
	return err
}

func spoolReport(r *spool.Report) api.SpoolReport {
	out := api.SpoolReport{Records: r.Records, Readable: r.Readable, Unaccounted: r.Unaccounted, Segments: r.Segments, Damaged: []api.SpoolDamage{}}
	for _, d := range r.Damaged {
		out.Damaged = append(out.Damaged, api.SpoolDamage{File: d.File, Detail: d.Detail})
	}
	return out
}

// VerifySpool reads the spool at path, or, if that is "", the one of the state folder, which no agent uses.
// Nothing is changed.
func VerifySpool(cfg *config.Config, path string) (api.SpoolReport, error) {
	if path == "" {
		path = filepath.Join(cfg.Agent.StateDir, "spool")
		folder, err := openFolder(cfg.Agent.StateDir)
		if err != nil {
			return api.SpoolReport{}, err
		}
		defer folder.Close()
		if _, err := os.Stat(path); err != nil {
			return api.SpoolReport{Damaged: []api.SpoolDamage{}}, nil
		}
	}
	ring, err := spoolKeys(cfg)
	if err != nil {
		return api.SpoolReport{}, err
	}
	r, err := spool.VerifyFolder(path, ring)
	if err != nil {
		return api.SpoolReport{}, spoolError(cfg, err)
	}
	return spoolReport(&r), nil
}

// SalvageSpool makes a new spool folder of what can be read of the one at path.
func SalvageSpool(ctx context.Context, cfg *config.Config, path, into string) (api.SpoolReport, error) {
	ring, err := spoolKeys(cfg)
	if err != nil {
		return api.SpoolReport{}, err
	}
	host, err := window.Host()
	if err != nil {
		return api.SpoolReport{}, &ExitError{Code: ExitState, Kind: "clock", Detail: err.Error(), Hint: "mount /proc"}
	}
	longest := cfg.Window.Longest()
	r, err := spool.Salvage(ctx, path, into, spool.Options{Keys: ring, BootID: host.BootID(), Boot: host.Boot, MaxRecords: 1 << 40, MaxBytes: 1 << 50,
		SegmentRecords: cfg.Spool.SegmentRecords, Horizon: max(10*time.Minute, longest), LocalSpan: longest, Wall: host.Wall}, host)
	if err != nil {
		return api.SpoolReport{}, spoolError(cfg, err)
	}
	return spoolReport(&r), nil
}

func spoolKeys(cfg *config.Config) (*spool.KeyRing, error) {
	ring, err := spool.LoadKeyRing(cfg.SpoolKeyFile(), false)
	if err != nil {
		return nil, &ExitError{Code: ExitState, Kind: "spool_key", Detail: err.Error(), Hint: "name the key file with --set spool.key_file=FILE"}
	}
	return ring, nil
}
