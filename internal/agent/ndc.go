package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"scanonce/capture"
	"scanonce/internal/api"
	"scanonce/window"
)

// ndcDirectory is the NDC directory in use.
type ndcDirectory struct {
	list    *capture.Directory // nil: ten-digit codes stay undecided
	dated   window.UTC
	problem error // why it is not the configured one, or none
}

// status is nil without a directory.
func (d ndcDirectory) status() *api.NDCStatus {
	if d.list == nil {
		return nil
	}
	return &api.NDCStatus{Packages: d.list.Len(), Dated: &d.dated}
}

// loadNDC loads the directory of the configuration. One that cannot be used leaves the one from before in use:
// a wrong file must not undo what is known.
func loadNDC(path string, before ndcDirectory) ndcDirectory {
	if path == "" {
		return ndcDirectory{}
	}
	list, dated, err := ReadNDC(path)
	if err != nil {
		return ndcDirectory{before.list, before.dated, err}
	}
	return ndcDirectory{list: list, dated: dated}
}

// maxNDCFile is far more than any directory has: an index of the FDA's has 1.3 MB, the list as text 4 MB.
const maxNDCFile = 128 << 20

// ReadNDC reads the file that ndc.directory names, an index or a text list, whole, so that nothing done to the
// file later reaches who uses it. It is dated as the index says; a text list by the file's modification time.
// An error is an *ExitError.
func ReadNDC(path string) (*capture.Directory, window.UTC, error) {
	wrong := func(detail, hint string) error {
		return &ExitError{Code: ExitUsage, Kind: "config", Detail: detail, Hint: hint}
	}
	const again = "make it anew: scanonce ndc import ndctext.zip (the FDA's NDC directory)"
	info, err := os.Stat(path) // before it is opened: a pipe would not come back
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxNDCFile) {
		return nil, 0, wrong(fmt.Sprintf("cannot use ndc.directory %s: it is no NDC directory, but a folder, a device or a very large file", path), "name an index by scanonce ndc import, or a text file with one hyphenated NDC a line")
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, 0, wrong(fmt.Sprintf("cannot read ndc.directory %s: %s", path, cause(err)), "make it: scanonce ndc import ndctext.zip (the FDA's NDC directory); or correct ndc.directory")
	case errors.Is(err, fs.ErrPermission):
		return nil, 0, wrong(fmt.Sprintf("cannot read ndc.directory %s: %s", path, cause(err)), "let the agent's user read it and enter its folder; what it holds is public")
	case err != nil:
		return nil, 0, wrong(fmt.Sprintf("cannot read ndc.directory %s: %s", path, cause(err)), "see that it is on a healthy disk, or "+again)
	}
	list, err := capture.ReadDirectory(b)
	if err != nil {
		hint := again
		if !errors.Is(err, capture.ErrDamagedIndex) && !errors.Is(err, capture.ErrNewerIndex) {
			hint = "mend the text list; or " + again + ", and name the index as ndc.directory"
		}
		return nil, 0, wrong(fmt.Sprintf("cannot use ndc.directory %s: %v", path, err), hint)
	}
	dated := list.Dated()
	if dated == 0 {
		dated = window.FromTime(info.ModTime())
	}
	return list, dated, nil
}

// tellNDC raises or clears the alarms about a directory that is taken over.
func (p *pipeline) tellNDC(d ndcDirectory) {
	var wrong *ExitError
	if errors.As(d.problem, &wrong) {
		meanwhile := "scans are accepted meanwhile, and the NDC of ten-digit codes stays undecided"
		if d.list != nil {
			meanwhile = "the directory from before stays in use meanwhile"
		}
		p.a.alarms.set(alarmNDC, wrong.Detail, wrong.Hint+"; "+afterImport+"; "+meanwhile)
	} else {
		p.a.alarms.clear(alarmNDC)
	}
	p.tellAge(d)
}

const afterImport = "then let the agent take it: systemctl reload scanonce"

// ndcGoodFor is the age from which on a directory is stale. The FDA publishes it daily; a pharmacy that imports
// it monthly has missed a month then. What an old one lacks, new packages, is accepted undecided.
const ndcGoodFor = 60 * 24 * time.Hour

// isOld says that a directory is stale now.
func (p *pipeline) isOld(d ndcDirectory) bool {
	return d.list != nil && p.a.clock.Now().T.Sub(d.dated) > ndcGoodFor
}

// watchNDC notices that the directory in use grows old. It runs at least once a day.
func (p *pipeline) watchNDC() {
	if p.isOld(p.ndc) != p.oldNDC {
		p.tellAge(p.ndc)
	}
}

// tellAge raises or clears the alarm about a directory's age.
func (p *pipeline) tellAge(d ndcDirectory) {
	if p.oldNDC = p.isOld(d); !p.oldNDC {
		p.a.alarms.clear(alarmNDCStale)
		return
	}
	p.a.alarms.set(alarmNDCStale, fmt.Sprintf("the NDC directory is of %s, more than %d days old: packages listed since then stay undecided", d.dated.Time().Format(time.DateOnly), int(ndcGoodFor/(24*time.Hour))),
		"import the FDA's present one: scanonce ndc import ndctext.zip; "+afterImport)
}
