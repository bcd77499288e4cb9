package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// posted is the body of POST /v1/scans.
type posted struct {
	Scanner    string  `json:"scanner_id"`
	Data       string  `json:"data"`
	Symbology  *string `json:"symbology"`
	CapturedAt *string `json:"captured_at"`
	Quantity   *int    `json:"quantity"`
}

// postAnswer is what it is answered, refusals too.
type postAnswer struct {
	Outcome     string  `json:"outcome"`
	EventID     string  `json:"event_id"`
	Key         string  `json:"key"`
	WindowIndex *int64  `json:"window_index"`
	DuplicateOf *string `json:"duplicate_of"`
	Kind        string  `json:"kind"`
	Reason      string  `json:"reason"`
}

func postRequest(ctx context.Context, key string, p posted) (*http.Request, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/v1/scans", bytes.NewReader(b))
	if err == nil && key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return r, err
}

func tryPost(ctx context.Context, h *testenv.Home, key string, p posted) (code int, a postAnswer, body string, err error) {
	r, err := postRequest(ctx, key, p)
	if err != nil {
		return 0, a, "", err
	}
	resp, err := h.HTTP().Do(r)
	if err != nil {
		return 0, a, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	return resp.StatusCode, a, string(b), err
}

// post wants an outcome, or the reason of a refusal.
func post(t testing.TB, h *testenv.Home, key, want string, p posted) postAnswer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	code, a, body, err := tryPost(ctx, h, key, p)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]int{"accepted": http.StatusCreated, "duplicate": http.StatusOK, "control": http.StatusOK}
	if a.Outcome+a.Reason != want || a.Outcome != "" && code != codes[want] {
		t.Fatalf("%d %s, want %s", code, body, want)
	}
	return a
}

func TestPostedScans(t *testing.T) {
	t.Parallel()
	setup := rxSetup(secretFile(t, goldenSecret))
	h, p, st, g := bench(t, setup)
	quantity := 12
	label := matrix(bottleGTIN, "SN1", "A1")
	a := post(t, h, "", "accepted", posted{Scanner: "phone", Data: label, Quantity: &quantity})
	d := post(t, h, "", "duplicate", posted{Scanner: "phone", Data: label})
	if deref(d.DuplicateOf) != a.EventID || d.Key != a.Key {
		t.Errorf("%+v of %+v", d, a)
	}
	e, _ := st.Wait(t, 0, "the posted scan", func(e *testenv.Event) bool { return e.Kind == "accepted" && e.EventID == a.EventID })
	if e.Key != a.Key || e.Quantity != quantity || e.Item == nil || deref(e.Item.Lot) != "A1" {
		t.Errorf("event %s", e.Data)
	}
	// A scanner's session is one, whoever sends its scans.
	h.Ask(t, http.MethodPut, "/v1/scanners/SCN-04/mode", map[string]any{"scan_type": "return"})
	b := post(t, h, "", "accepted", posted{Scanner: "SCN-04", Data: matrix(bottleGTIN, "SN2", "A1")})
	if e := g.answer(); e.EventID != b.EventID {
		t.Errorf("event %s", e.Data)
	}
	g.expect("duplicate", matrix(bottleGTIN, "SN2", "A1"))
	// A label and the item behind it.
	l := post(t, h, "", "control", posted{Scanner: "phone", Data: goldenLabel})
	sym := "]d2"
	c := post(t, h, "", "accepted", posted{Scanner: "phone", Data: matrix(ciiGTIN, "SN3", "B")[3:], Symbology: &sym})
	post(t, h, "", "id_document", posted{Scanner: "phone", Data: "@\n\x1e\rANSI 636000090002DL00410278ZV03190008DLDAQT64235789"})
	post(t, h, "", "check_digit", posted{Scanner: "phone", Data: "]d2010030093721410710A"})
	post(t, h, "", "idempotency_key_missing", posted{Scanner: "phone", Data: label, CapturedAt: ptr(time.Now().UTC().Format(time.RFC3339Nano))})
	for _, off := range []time.Duration{time.Minute, -169 * time.Hour} {
		post(t, h, "k-"+off.String(), "bad_captured_at", posted{Scanner: "phone", Data: label, CapturedAt: ptr(time.Now().UTC().Add(off).Format(time.RFC3339Nano))})
	}
	if code, body := h.Ask(t, http.MethodPost, "/v1/scans", map[string]any{"scanner_id": "phone", "data": label, "lot": "A"}); code != http.StatusBadRequest {
		t.Errorf("an unknown field: %d %s", code, body)
	}
	if code, body := h.Ask(t, http.MethodPost, "/v1/scans", posted{Scanner: "phone", Data: strings.Repeat("0", 64<<10)}); code != http.StatusRequestEntityTooLarge {
		t.Errorf("a large body: %d %s", code, body)
	}
	rows, lines := quiet(t, h)
	if len(rows) != 3 || l.Kind != "label" {
		t.Fatalf("%d rows, label %+v", len(rows), l)
	}
	agent := rows[0].AgentID
	for _, want := range []struct {
		event, scanner, typ string
		quantity            int
		token               string
	}{{a.EventID, agent + "/phone", "dispense", 12, ""}, {b.EventID, "SCN-04", "return", 1, ""}, {c.EventID, agent + "/phone", "dispense", 1, goldenToken}} {
		r := rowByEvent(t, rows, want.event)
		if r.ScannerID != want.scanner || r.ScanType != want.typ || r.Quantity != want.quantity || deref(r.RxToken) != want.token {
			t.Errorf("row %+v, want %+v", r, want)
		}
	}
	if n := len(linesOf(lines, "rejected")); n != 2 {
		t.Errorf("%d rejected lines", n)
	}
	s := h.Status(t)
	if x := s.Scanner(agent + "/phone"); x == nil || x.State != "api" {
		t.Errorf("scanners %+v", s.Scanners)
	}
	if s.Frames.Frames != 8 || s.Frames.Captured != 5 || s.Frames.Rejected != 2 || s.Frames.Control != 1 {
		t.Errorf("%+v", s.Frames)
	}
	p.Stop(t)
	secrets{"the document": "T64235789", "the number": "1234567"}.searchFolder(t, h.State)
}

func ptr[T any](v T) *T { return &v }

// The agent is killed when it has accepted a request's scan and its application has not heard of it: the same request
// gets the first answer from the next process.
func TestKillBetweenAcceptanceAndAnswer(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"accepted", "committed"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			h := program.NewHome(t, testenv.Setup{Directory: directory})
			const rounds = 4
			var answers []postAnswer
			for i := range rounds {
				p := h.Start(t)
				st := h.Follow(t)
				key := fmt.Sprintf("round-%d", i)
				q := posted{Scanner: "phone", Data: matrix(bottleGTIN, key, "A")}
				sendUnheard(t, h, key, q)
				e, _ := st.Wait(t, 0, "the scan is "+when, func(e *testenv.Event) bool { return e.Kind == when })
				st.Close()
				p.Kill()
				if i%2 == 1 { // everything is settled once more, from the segments
					if err := os.Remove(filepath.Join(h.State, "spool", "state.db")); err != nil {
						t.Fatal(err)
					}
				}
				p = h.Start(t)
				a := post(t, h, key, "accepted", q)
				if a.EventID != e.EventID || a.Key != e.Key || a.WindowIndex == nil {
					t.Errorf("%+v, and the event was %s", a, e.Data)
				}
				if other := post(t, h, key, "idempotency_key_reused", posted{Scanner: "phone", Data: matrix(bottleGTIN, "X", "A")}); other.EventID != "" {
					t.Errorf("%+v", other)
				}
				answers = append(answers, a)
				quiet(t, h)
				p.Kill()
			}
			h.Start(t)
			for i, a := range answers {
				key := fmt.Sprintf("round-%d", i)
				if b := post(t, h, key, "accepted", posted{Scanner: "phone", Data: matrix(bottleGTIN, key, "A")}); b.EventID != a.EventID || *b.WindowIndex != *a.WindowIndex || b.Key != a.Key {
					t.Errorf("%+v, and the first answer was %+v", b, a)
				}
			}
			if rows, _ := quiet(t, h); len(rows) != rounds {
				t.Errorf("%d rows, want %d", len(rows), rounds)
			}
		})
	}
}

// sendUnheard sends a request over a connection on which nobody listens.
func sendUnheard(t testing.TB, h *testenv.Home, key string, p posted) {
	t.Helper()
	r, err := postRequest(t.Context(), key, p)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", h.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := r.Write(conn); err != nil {
		t.Fatal(err)
	}
}

// Applications send and send again while the agent is killed at any moment: one row for each key, and every answer for
// a key is the same.
func TestPostsOverKills(t *testing.T) {
	t.Parallel()
	h := program.NewHome(t, testenv.Setup{Directory: directory})
	p := h.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*testenv.Patience)
	defer cancel()
	const applications, scans, kills = 6, 40, 12
	var answered, again atomic.Int64
	var wait sync.WaitGroup
	var over atomic.Bool
	for n := range applications {
		wait.Go(func() {
			for i := 0; i < scans || !over.Load(); i++ {
				key := fmt.Sprintf("app-%d-%d", n, i)
				q := posted{Scanner: fmt.Sprintf("app-%d", n), Data: matrix(bottleGTIN, key, "A")}
				var first postAnswer
				for try := 0; ; try++ {
					code, a, body, err := tryPost(ctx, h, key, q)
					if err == nil && code == http.StatusServiceUnavailable {
						continue // it stops, or has no turn
					}
					if err != nil {
						if ctx.Err() != nil {
							t.Errorf("no answer to %s in time", key)
							return
						}
						pause := time.NewTimer(5 * time.Millisecond)
						<-pause.C
						again.Add(1)
						continue
					}
					if code != http.StatusCreated || first.EventID != "" && a.EventID != first.EventID {
						t.Errorf("%s: %d %s, the first answer was %+v", key, code, body, first)
						return
					}
					if first.EventID != "" {
						break
					}
					first = a // and once more, as an application that has lost it
				}
				answered.Add(1)
			}
		})
	}
	for range kills {
		pace(t, time.Duration(20+rand.IntN(250))*time.Millisecond)
		p.Kill()
		p = h.Start(t)
	}
	over.Store(true)
	wait.Wait()
	rows, lines := quiet(t, h)
	serials := map[string]bool{}
	for _, r := range rows {
		serials[deref(r.Serial)] = true
	}
	if len(rows) != int(answered.Load()) || len(serials) != len(rows) || len(linesOf(lines, "suppressed")) != 0 {
		t.Errorf("%d rows of %d items for %d requests, %d suppressed", len(rows), len(serials), answered.Load(), len(linesOf(lines, "suppressed")))
	}
	t.Logf("%d requests, %d kills, %d tries without an answer", answered.Load(), kills, again.Load())
}

// 64 at once with one key are one movement.
func TestManyPostsOfOneKey(t *testing.T) {
	t.Parallel()
	h, _, _, _ := bench(t, testenv.Setup{})
	q := posted{Scanner: "phone", Data: matrix(bottleGTIN, "S", "A")}
	var all [64]postAnswer
	var wait sync.WaitGroup
	for i := range all {
		wait.Go(func() {
			var err error
			var body string
			if _, all[i], body, err = tryPost(t.Context(), h, "one", q); err != nil || all[i].EventID == "" {
				t.Errorf("%s, %v", body, err)
			}
		})
	}
	wait.Wait()
	if slices.ContainsFunc(all[:], func(a postAnswer) bool { return a.EventID != all[0].EventID || a.Outcome != "accepted" }) {
		t.Errorf("answers %+v", all)
	}
	if rows, lines := quiet(t, h); len(rows) != 1 || len(lines) != 1 || h.Status(t).Frames.Frames != 1 {
		t.Errorf("%d rows, lines %+v", len(rows), lines)
	}
}

// The same scan with its time, sent to two agents: one row, and a line that says so.
func TestGivenTimeAtTwoAgents(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	setup := func(agent string) testenv.Setup {
		return c.stores().in(testenv.Setup{Agent: fmt.Sprintf("agent_id = %q\n", agent), Scanner: "shared = true\n"})
	}
	a, b := program.NewHome(t, setup("agent-a")), program.NewHome(t, setup("agent-b"))
	a.Start(t)
	b.Start(t)
	at := time.Now().UTC().Add(-26 * time.Hour).Format("2006-01-02T15:04:05.000Z")
	var keys []string
	for i, id := range []string{"SCN-04", "agent-a/phone"} {
		q := posted{Scanner: id, Data: matrix(bottleGTIN, fmt.Sprint("S", i), "A"), CapturedAt: &at}
		key := fmt.Sprintf("upload-%d", i)
		first, second := post(t, a, key, "accepted", q), post(t, b, key, "accepted", q)
		if first.Key != second.Key || first.EventID == second.EventID {
			t.Errorf("%+v and %+v", first, second)
		}
		if again := post(t, a, key, "accepted", q); again.EventID != first.EventID {
			t.Errorf("%+v, and the first answer was %+v", again, first)
		}
		keys = append(keys, first.Key)
	}
	rows, lines := c.settled(t, a, b)
	if len(rows) != 2 || len(linesOf(lines, "suppressed")) != 2 {
		t.Fatalf("rows %+v, lines %+v", rows, lines)
	}
	for i := range rows {
		checkRow(t, &rows[i])
		if !slices.Contains(keys, rows[i].IdemKey) || rows[i].ClockQuality != "device" || rows[i].CapturedAt.Format("2006-01-02T15:04:05.000Z") != at {
			t.Errorf("row %+v", rows[i])
		}
	}
}
