// Package faults is what the fault runs of the real program have shown: a result for each round, and the table
// that a reader of the documentation sees.
package faults

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Result is what came of one round of scanning under faults.
type Result struct {
	World       string   `json:"world"`         // the stores behind the agents
	Faults      []string `json:"faults"`        // one, or those that were there at once
	Scans       int      `json:"scans"`         // transmissions, echoes apart
	Accepted    int      `json:"accepted"`      // movements told as accepted
	Refused     int      `json:"refused"`       // movements told as not accepted
	Lost        int      `json:"lost"`          // accepted, and no row
	Doubled     int      `json:"doubled"`       // rows too many, of whatever was scanned
	AcceptP99MS float64  `json:"accept_p99_ms"` // from the scan to its answer
	Unanswering bool     `json:"unanswering"`   // the agent itself was down or stopped: the figure before is that of the fault
	RecoverMS   float64  `json:"recover_ms"`    // from the end of the faults until all that was accepted was in the ledger
}

// Read reads one result a line.
func Read(r io.Reader) (out []Result, err error) {
	d := json.NewDecoder(r)
	for {
		var x Result
		switch err := d.Decode(&x); err {
		case nil:
			out = append(out, x)
		case io.EOF:
			return out, nil
		default:
			return nil, fmt.Errorf("cannot read result %d: %w", len(out)+1, err)
		}
	}
}

// row is a line of the table: the sum of the rounds with the same fault.
type row struct {
	name                   string
	rounds, scans          int
	refused, lost, doubled int
	p99                    float64
	unanswering            bool
	recover                []float64
}

const several = "two or three of these at once"

// Table is the Markdown table of the results, a line for each fault in the order in which they first came, those
// of several faults at once in one line.
func Table(results []Result) string {
	var rows []*row
	byName := map[string]*row{}
	for i := range results {
		x := &results[i]
		name := several
		if len(x.Faults) == 1 {
			name = x.Faults[0]
		}
		r := byName[name]
		if r == nil {
			r = &row{name: name}
			byName[name] = r
			rows = append(rows, r)
		}
		r.rounds++
		r.scans += x.Scans
		r.refused += x.Refused
		r.lost += x.Lost
		r.doubled += x.Doubled
		r.unanswering = r.unanswering || x.Unanswering
		r.p99 = max(r.p99, x.AcceptP99MS)
		r.recover = append(r.recover, x.RecoverMS)
	}
	slices.SortStableFunc(rows, func(a, b *row) int {
		last := func(r *row) int {
			if r.name == several {
				return 1
			}
			return 0
		}
		return cmp.Compare(last(a), last(b))
	})
	var b strings.Builder
	b.WriteString("| fault | rounds | scans | refused aloud | lost | doubled | answer, worst p99 | all in the ledger after, median (worst) |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range rows {
		p99 := "the fault's own"
		if !r.unanswering {
			p99 = span(r.p99)
		}
		slices.Sort(r.recover)
		fmt.Fprintf(&b, "| %s | %d | %d | %s | %s | %s | %s | %s (%s) |\n", r.name, r.rounds, r.scans, nothing(r.refused), nothing(r.lost), nothing(r.doubled),
			p99, span(r.recover[len(r.recover)/2]), span(r.recover[len(r.recover)-1]))
	}
	return b.String()
}

// Summary is the table in few rows, those of one store together: what is lost of how many scans.
func Summary(results []Result) string {
	type group struct {
		name                                string
		kinds                               map[string]bool
		rounds, scans, refused, lost, twice int
	}
	var groups []*group
	for i := range results {
		x := &results[i]
		name, kind := several, several
		if len(x.Faults) == 1 {
			name, kind, _ = strings.Cut(x.Faults[0], ": ")
		}
		at := slices.IndexFunc(groups, func(g *group) bool { return g.name == name })
		if at < 0 {
			at = len(groups)
			groups = append(groups, &group{name: name, kinds: map[string]bool{}})
		}
		g := groups[at]
		g.kinds[kind] = true
		g.rounds++
		g.scans += x.Scans
		g.refused += x.Refused
		g.lost += x.Lost
		g.twice += x.Doubled
	}
	slices.SortStableFunc(groups, func(a, b *group) int {
		switch {
		case a.name == several:
			return 1
		case b.name == several:
			return -1
		}
		return strings.Compare(strings.ToLower(a.name), strings.ToLower(b.name))
	})
	var b strings.Builder
	b.WriteString("| what breaks | rounds | scans | refused aloud | lost | counted twice |\n|---|--:|--:|--:|--:|--:|\n")
	for _, g := range groups {
		name := g.name
		if len(g.kinds) > 1 {
			name = fmt.Sprintf("%s, in %d ways", name, len(g.kinds))
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %s | %s | %s |\n", name, g.rounds, g.scans, nothing(g.refused), nothing(g.lost), nothing(g.twice))
	}
	return b.String()
}

func nothing(n int) string {
	if n == 0 {
		return "nothing"
	}
	return fmt.Sprint(n)
}

func span(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// The marks around the table in a document.
const (
	begin = "<!-- losses: made by make loss-table -->"
	end   = "<!-- /losses -->"
)

// Replace puts a table between the marks of a document.
func Replace(doc []byte, table string) ([]byte, error) {
	from := bytes.Index(doc, []byte(begin))
	to := bytes.Index(doc, []byte(end))
	if from < 0 || to < from {
		return nil, fmt.Errorf("cannot find where the table goes: write %s and %s into the document", begin, end)
	}
	return slices.Concat(doc[:from], []byte(begin+"\n"+table), doc[to:]), nil
}
