package world

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// mutant is a mistake that somebody could make: a text of the program, and what would stand there instead.
type mutant struct {
	name string
	file string
	old  string
	new  string
	at   int  // text that stands several times: which one, from 1
	fast bool // played by the ordinary tests too
}

// mutants are the mistakes that the simulation must find.
func mutants() []mutant {
	return []mutant{
		{name: "no edge key", file: "idem/key.go", old: "boundary, ok := p.Boundary(t)\n\tif !ok {", new: "boundary, ok := p.Boundary(t)\n\tif !ok || p.Width > 0 {", fast: true},
		{name: "edge key without extras", file: "idem/key.go", old: "k.Edge = Key{Kind: Edge, Hash: sha256.Sum256(b)}\n\t} else {", new: "k.Edge = Key{Kind: Edge, Hash: sha256.Sum256(b[:to])}\n\t} else {"},
		{name: "a claim that does not say whose it is", file: "idem/redis.go", old: "token := c.Event.String()", new: "token := \"1\""},
		{name: "no unique keys in the ledger", file: "internal/sim/world/stores_test.go",
			old: "return s.rows[r.Keys.Idem] != nil || !r.Keys.Edge.IsZero() && s.rows[r.Keys.Edge] != nil || s.events[r.Event] != nil", new: "return s.events[r.Event] != nil"},
		{name: "suppressed because the claim is held", file: "sync/forward/forward.go", old: "\tif owner.Event.IsZero() {\n", new: "\tif w == unwon && owner.Event.IsZero() && !r.IsDuplicate() {\n\t\tv.Key, v.Winner = r.Keys.Idem, idem.EventID{1}\n\t\treturn v\n\t}\n\tif owner.Event.IsZero() {\n", fast: true},
		{name: "unlinked before the verdict", file: "spool/settle.go", old: "\t\tif !s.finished(seg) || seg.sick != \"\" {\n\t\t\tbreak\n\t\t}\n", new: "\t\tif s.finished(seg); seg.sick != \"\" {\n\t\t\tbreak\n\t\t}\n\t\tclear(busy)\n"},
		{name: "unlinked before the horizon", file: "spool/settle.go", old: "if !oldEnough(seg, s.opts.BootID, s.began, now, horizon) {", new: "if !oldEnough(seg, s.opts.BootID, s.began, now, horizon/100) {"},
		{name: "row before the fsync", file: "sync/forward/forward.go", old: "\tf.early = f.claim(ctx, spool.Work{Records: records}, nil)\n",
			new: "\tf.early = f.claim(ctx, spool.Work{Records: records}, nil)\n\tfor i, r := range f.early.records {\n\t\tif f.early.ways[i] == won {\n\t\t\tf.ledger.Insert(ctx, []ledger.Row{f.row(r)})\n\t\t}\n\t}\n"},
		{name: "answer before the fsync", file: "internal/agent/pipeline.go", old: "\tp.overflowed(t.Batch)\n\terr := t.Commit()\n",
			new: "\tp.overflowed(t.Batch)\n\tfor i := range p.out {\n\t\tif o := &p.out[i]; o.frame.Reply != nil && o.kind == kAccepted {\n\t\t\to.frame.Reply.Reply(device.Accepted)\n\t\t\to.frame.Reply = nil\n\t\t}\n\t}\n\terr := t.Commit()\n", fast: true},
		{name: "the prefilter decides", file: "spool/intake.go", old: "\t\twinner = s.recent.match(c.Physical, c.At.Boot, c.Act, marked)\n", new: "\t\t_ = marked\n\t\twinner = s.recent.physical[c.Physical.Hash]\n"},
		{name: "local rule by the window's phase", file: "spool/local.go", old: "boot-a.anchor >= a.span", new: "boot/a.span != a.anchor/a.span"},
		{name: "quantity in the physical identity", file: "internal/agent/pipeline.go", old: "Physical: idem.PhysicalKey(s.id, sc.Element()),", new: "Physical: idem.PhysicalKey(s.id+strings.Repeat(\"+\", quantity), sc.Element()),"},
		{name: "prefilter asked for keys alone", file: "spool/intake.go", old: "s.filter.Ask(c.Physical, keys.Idem, keys.Edge)", new: "s.filter.Ask(keys.Idem, keys.Edge)"},
		{name: "a line that is not final under the scan's id", file: "sync/forward/forward.go", old: "lines = append(lines, f.line(r, ledger.Quarantined, \"\", now))",
			new: "l := f.line(r, ledger.Quarantined, \"\", now)\n\t\t\tl.Event = r.Event\n\t\t\tlines = append(lines, l)"},
		{name: "another event id on replay", file: "spool/record.go", old: "\tit.Length = int(d.uint())\n\tif v[0]", new: "\tit.Length = int(d.uint())\n\tr.Event[15] ^= 1\n\tif v[0]"},
		{name: "clock goes back without a step", file: "window/clock.go", old: "\tdefault:\n\t\tc.debt = -off - e\n", new: "\tdefault:\n\t\tc.t, c.debt = ref+int64(e), 0\n"},
		{name: "keys met again behind a step", file: "window/clock.go", old: "return r.suspect != 0 &&", new: "return false &&"},
		{name: "verdict and line in two transactions", file: "spool/settle.go", old: "\tif err := s.state.apply(&st); err != nil {\n\t\treturn err\n\t}\n\ts.marks",
			new: "\tlate := settlement{lines: st.lines}\n\tst.lines = nil\n\tif err := s.state.apply(&st); err != nil {\n\t\treturn err\n\t}\n\tlate.counters = s.state.counters\n\tif err := s.state.apply(&late); err != nil {\n\t\treturn err\n\t}\n\ts.marks"},
		{name: "agents with another guard", file: "internal/sim/world/node_test.go", old: "\tn.cfg = cfg\n",
			new: "\tfor i := range cfg.Window {\n\t\tif id == \"a2\" && cfg.Window[i].Width == 3*time.Second {\n\t\t\tcfg.Window[i].Guard = 100 * time.Millisecond\n\t\t}\n\t}\n\tn.cfg = cfg\n"},
		{name: "agents with another window", file: "internal/sim/world/node_test.go", old: "\tn.cfg = cfg\n",
			new: "\tfor i := range cfg.Window {\n\t\tif id == \"a2\" && cfg.Window[i].Width == 3*time.Second {\n\t\t\tcfg.Window[i].Width = 2900 * time.Millisecond\n\t\t}\n\t}\n\tn.cfg = cfg\n"},
		{name: "nothing in doubt behind a crash", file: "spool/spool.go", old: "!ok && (s.unclean || slices", new: "!ok && r.Seq == 0 && (s.unclean || slices"},
		{name: "what a failed commit wrote counts", file: "spool/spool.go", old: "seg.last = min(seg.last, seg.bound(s.segments[i+1]))", new: "_ = seg.bound(s.segments[i+1])"},
		{name: "the act of one breaks the match of echoes", file: "spool/local.go", old: "act > a.anchor && act <= boot && !resend && boot-a.equal > bounce", new: "act > 0 && !resend"},
		{name: "verdict without an answer", file: "sync/forward/forward.go", old: "\t\tins, err := f.ledger.Insert(ctx, rows)\n\t\tif err != nil {\n\t\t\treturn err\n\t\t}\n",
			new: "\t\tins, err := f.ledger.Insert(ctx, rows)\n\t\tif err != nil {\n\t\t\tfor _, r := range rows {\n\t\t\t\tins.Receipts = append(ins.Receipts, ledger.Receipt{Event: r.Event})\n\t\t\t}\n\t\t}\n"},
		{name: "a deferred record waits for a minute", file: "sync/forward/forward.go", old: "const retryDeferred = 250 * time.Millisecond", new: "const retryDeferred = time.Minute"},
		{name: "a claim for each row", file: "sync/forward/courier.go", old: "if got[n].Event != op.ID {", new: "if false {"},
		{name: "a claim for another's row", file: "sync/forward/forward.go", old: "if b.verdicts[i].State != spool.Committed || !asksForClaim(r) {",
			new: "if s := b.verdicts[i].State; s != spool.Committed && s != spool.Suppressed || !asksForClaim(r) {"},
		{name: "claims asked for behind the settlement", file: "sync/forward/forward.go",
			old: "\tif err := f.askForClaims(b); err != nil {\n\t\treturn err\n\t}\n\tlines, record := f.bind(b, lines, now)\n\tif err := f.spool.Settle(b.work, b.verdicts, lines, record); err != nil {\n\t\treturn err\n\t}\n",
			new: "\tlines, record := f.bind(b, lines, now)\n\tif err := f.spool.Settle(b.work, b.verdicts, lines, record); err != nil {\n\t\treturn err\n\t}\n\tif err := f.askForClaims(b); err != nil {\n\t\treturn err\n\t}\n"},
		{name: "a scan's claim made again when it is over", file: "sync/forward/courier.go", old: "if op.Early && c.clock.Now().T.Sub(op.At) >= max(", new: "if false && c.clock.Now().T.Sub(op.At) >= max("},
		{name: "journal not synced", file: "spool/journal.go", old: "if err = j.s.opts.durable(DiskCommit, j.path, func() error {\n\t\t_, err := j.f.WriteAt(line, j.size)",
			new: "if err = func(_ DiskStep, do func() error) error { return do() }(DiskCommit, func() error {\n\t\t_, err := j.f.WriteAt(line, j.size)"},
		{name: "done before the store has answered", file: "sync/forward/courier.go", old: "\tverdicts := c.judge(ctx, l, ops)\n",
			new: "\tvar early spool.Settlement\n\tfor i := range ops {\n\t\tearly.Done = append(early.Done, ops[i].ID)\n\t}\n\tc.journal.Settle(early)\n\tverdicts := c.judge(ctx, l, ops)\n"},
		{name: "the queue overtaken", file: "sync/forward/inline.go", old: "!c.journal.Waits(subject) && ", new: ""},
		{name: "conflict dropped", file: "sync/forward/courier.go", old: "end.Conflicts = append(end.Conflicts, *v.conflict)", new: "end.Done = append(end.Done, ops[i].ID)"},
		{name: "a pend under another event on replay", file: "sync/forward/courier.go", old: "pacase.Pend{Event: pacase.UUID(op.ID), Question: b.question()}",
			new: "pacase.Pend{Event: pacase.UUID(spool.NewEvent(c.clock.Now().T)), Question: b.question()}"},
		{name: "an advance under another id on replay", file: "sync/forward/courier.go", old: "b.Node, b.IngredientCost, b.RejectCode, op.ID.String())",
			new: "b.Node, b.IngredientCost, b.RejectCode, OperationID(\"again\", op.ID.String()).String())"},
		{name: "created told without the store", file: "internal/agent/operations.go", old: "\tcase queued:\n\t\tout.Result = api.ResultQueued\n",
			new: "\tcase queued:\n\t\tout.Result = api.ResultQueued\n\t\tdefer func() { yes := true; out.Case.Created = &yes }()\n"},
	}
}

const mutantSeeds = "1000"

var killed = regexp.MustCompile(`killed at seed (\d+): (.*)`)

// Each mistake is found, within a number of seeds. The program is patched by the compiler's overlay, so that
// nothing is written into the tree; a text that is gone from it is a failure. MUTANTS=all plays all of them.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	only, all := os.Getenv("MUTANTS"), os.Getenv("MUTANTS") == "all"
	for _, m := range mutants() {
		path := filepath.Join(root, filepath.FromSlash(m.file))
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		src := string(b)
		if n := strings.Count(src, m.old); n == 0 || n > 1 && m.at == 0 {
			t.Errorf("%s: the text to change stands %d times in %s: write it anew", m.name, n, m.file)
			continue
		}
		if !all && !m.fast && (only == "" || !strings.Contains(m.name, only)) {
			continue
		}
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			dir := t.TempDir()
			patched, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
			places := strings.SplitAfter(src, m.old)
			i := max(m.at, 1) - 1
			places[i] = strings.TrimSuffix(places[i], m.old) + m.new
			replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: patched}})
			if err == nil {
				err = os.WriteFile(patched, []byte(strings.Join(places, "")), 0o600)
			}
			if err == nil {
				err = os.WriteFile(overlay, replace, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-overlay="+overlay, "-run=^TestSeeds$", ".")
			cmd.Env = append(os.Environ(), "SCANONCE_MUTANT=1", "SEED=1", "N="+mutantSeeds)
			out, err := cmd.CombinedOutput()
			hit := killed.FindSubmatch(out)
			switch {
			case err == nil:
				t.Errorf("lives through %s seeds", mutantSeeds)
			case hit == nil:
				t.Errorf("cannot be played: %v\n%s", err, out[:min(len(out), 3000)])
			default:
				t.Logf("killed at seed %s (%v): %s", hit[1], time.Since(start).Round(100*time.Millisecond), hit[2])
			}
		})
	}
}
