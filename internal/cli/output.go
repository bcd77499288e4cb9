package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

// The exit codes.
const (
	exitOK          = 0
	exitBad         = 1 // done, and the answer is bad
	exitUsage       = 2
	exitUnreachable = 3
	exitState       = 4
	exitHeld        = 5
	exitPerson      = 6
)

// line is one thing that is wrong, and what to do.
type line struct{ detail, hint string }

// failure ends the program with a code. Without detail nothing is printed: the result says it all.
type failure struct {
	code         int
	kind         string // machine-readable
	detail, hint string // "cannot …", what to do
	lines        []line // in place of detail and hint, where there are several
}

func (f *failure) Error() string { return f.detail }

// usage is a wrong command line.
func usage(detail, hint string) *failure {
	return &failure{code: exitUsage, kind: "usage", detail: detail, hint: hint}
}

// bad ends with code 1 after a result that tells why.
func bad() error { return &failure{code: exitBad} }

func (a *app) report(f *failure, asJSON bool) {
	lines := f.lines
	if len(lines) == 0 && f.detail != "" {
		lines = []line{{f.detail, f.hint}}
	}
	for _, l := range lines {
		detail := l.detail
		if !strings.HasPrefix(detail, "cannot ") {
			detail = "cannot go on: " + detail
		}
		if asJSON {
			writeJSON(a.stderr, struct {
				Error  string `json:"error"`
				Detail string `json:"detail"`
				Hint   string `json:"hint"`
			}{f.kind, detail, l.hint})
			continue
		}
		fmt.Fprintf(a.stderr, "scanonce: %s\n", detail)
		if l.hint != "" {
			fmt.Fprintf(a.stderr, "hint: %s\n", l.hint)
		}
	}
}

// writeJSON writes one line. Characters that only matter within HTML stay as they are.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// print writes a result: as JSON, or as text for people.
func (a *app) print(v any, text string) error {
	if a.json {
		return writeJSON(a.stdout, v)
	}
	_, err := io.WriteString(a.stdout, text)
	return err
}

// export runs write on the file called name, or on stdout if name is "" or "-". A file that could not be
// written whole is removed.
func (a *app) export(name string, write func(io.Writer) error) error {
	if name == "" || name == "-" {
		return write(a.stdout)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return usage(fmt.Sprintf("cannot write %s: %v", name, err), "name a file in a folder that you may write to")
	}
	err = write(f)
	if e := f.Close(); err == nil && e != nil {
		err = usage(fmt.Sprintf("cannot write %s: %v", name, e), "make space, or name another file")
	}
	if err != nil {
		os.Remove(name)
	}
	return err
}
