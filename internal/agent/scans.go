package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"scanonce/capture"
	"scanonce/device"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/internal/session"
	"scanonce/spool"
	"scanonce/window"
)

const (
	maxSources = 256 // applications' own names for what scans, at a time
	oldestScan = 7 * 24 * time.Hour
	stateAPI   = "api" // of such a source, in place of a device's state
)

var (
	sourceName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,32}$`)
	fullSource = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}/[A-Za-z0-9_.-]{1,32}$`)
)

// post is what a scan of an application has beside a frame.
type post struct {
	profile  capture.Profile
	quantity int // 0: what the session has set
	once     spool.Once
	given    string // the Idempotency-Key of one that brings its time
	at       window.UTC

	converted *outcome // what its "same again" made of a told duplicate
}

// Scan takes a scan from an application, through the pipeline like any other.
func (a *agent) Scan(ctx context.Context, q api.ScanRequest) (out api.ScanAnswer, err error) {
	var once spool.Once
	if q.Key != "" {
		h := sha256.Sum256([]byte(q.Key))
		once = spool.Once{Key: [16]byte(h[:]), Request: [16]byte(q.Request[:])}
		if err := a.spool.Recall(ctx); err != nil {
			return out, &api.Error{Status: http.StatusServiceUnavailable, Reason: "busy", Detail: err.Error(), Hint: "send it again, with the same Idempotency-Key"}
		}
	}
	var failed error
	err = a.inPipeline(ctx, func(b *spool.Batch) func(error) {
		now := a.clock.Now()
		if !once.IsZero() {
			if first, ok := a.spool.Answer(once.Key, now.T); ok {
				if first.Request != once.Request {
					failed = &api.Error{Status: http.StatusUnprocessableEntity, Reason: "idempotency_key_reused",
						Detail: "cannot use this Idempotency-Key: it came with another request before", Hint: "take a new key for each new scan"}
					return nil
				}
				out = firstAnswer(&first)
				return func(err error) { // the first may be in the batch at hand, and gone with it
					if _, ok := a.spool.Answer(once.Key, now.T); !ok {
						failed = notDurable(err)
					}
				}
			}
		}
		o, err := a.pipe.post(b, &q, once, now)
		if err != nil {
			failed = err
			return nil
		}
		return func(err error) { out, failed = answerTo(o, err) }
	})
	return out, firstOf(errors.Join(err, failed))
}

// post decides a scan of an application. It returns what answers it.
func (p *pipeline) post(b *spool.Batch, q *api.ScanRequest, once spool.Once, now window.Reading) (outcome, error) {
	ask := post{quantity: q.Quantity, once: once}
	if q.CapturedAt != nil {
		ask.given, ask.at = q.Key, *q.CapturedAt
		unusable := func(detail, hint string) (outcome, error) {
			return outcome{}, &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_captured_at", Detail: detail, Hint: hint}
		}
		switch age := now.T.Sub(ask.at); {
		case age < 0:
			return unusable("cannot take a scan that lies in the future", "set the clock of the device that scans; the agent's is "+now.T.String())
		case age > oldestScan:
			return unusable("cannot take a scan of more than 7 days ago", "enter the movement by hand")
		}
	}
	s, err := p.source(q.Scanner, ask.given != "")
	if err == nil && q.Quantity != 0 && s.cfg.Shared {
		err = session.ErrShared
	}
	if err != nil {
		return outcome{}, apiError(err)
	}
	if !once.IsZero() && !p.a.spool.RoomForKey(now.T) {
		if ask.given == "" {
			return outcome{}, &api.Error{Status: http.StatusServiceUnavailable, Reason: "too_many_keys", Detail: "cannot take the scan: too many Idempotency-Keys are remembered, for 24 h each",
				Hint: "send scans without the header, or with captured_at: the ledger knows those keys"}
		}
		ask.once = spool.Once{}
	}
	ask.profile = s.profile
	if s.id != s.cfg.ID { // the gun is named: its address is not in the data
		ask.profile.GunDigits = 0
	}
	data := payload(q, &ask.profile)
	p.mu.Lock()
	p.tally.frames++
	p.tally.inFlight++
	p.mu.Unlock()
	p.a.metrics.frames.WithLabelValues(s.cfg.ID).Inc()
	o := outcome{frame: device.Frame{Scanner: s.cfg.ID, Data: data, Length: len(data), At: now}, live: true, scanner: s, post: &ask}
	p.content(b, s, &o)
	p.out = append(p.out, o)
	if ask.converted != nil {
		o = *ask.converted
	}
	o.frame.Data = nil // it need not live as long as the answer
	return o, nil
}

// payload is the scan as a scanner would send it, the symbology in front of the content if that has none.
func payload(q *api.ScanRequest, p *capture.Profile) device.Payload {
	data := make([]byte, 0, len(q.Data)+len(q.Symbology))
	for _, c := range string(q.Data) {
		if c <= 0xff {
			data = append(data, byte(c))
		} else {
			data = append(data, string(c)...)
		}
	}
	at := 0
	for at < len(data) && at < p.GunDigits && data[at] >= '0' && data[at] <= '9' {
		at++
	}
	content := string(data[at:])
	if q.Symbology == "" || content == "" || content[0] == ']' || p.SymbologyPrefix != "" && strings.HasPrefix(content, p.SymbologyPrefix) {
		return data
	}
	return append(append(data[:at:at], q.Symbology...), content...)
}

// source finds what an application's scan comes from: a scanner of the configuration, or a name of the
// application's own, which has a session with the default settings from its first scan on. Such a name belongs to
// this agent; only a scan that brings its time may name another agent's, so that it makes the same key here as there.
func (p *pipeline) source(id string, given bool) (*scanner, error) {
	if s, err := p.at(id); err == nil {
		return s, nil
	}
	full := id
	if name := strings.TrimPrefix(id, p.a.id+"/"); sourceName.MatchString(name) {
		full = p.a.id + "/" + name
	} else if !given || !fullSource.MatchString(id) {
		return nil, &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_scanner_id", Detail: "cannot use this scanner_id", Hint: "write the id of a configured scanner, or a name of 1 to 32 of A-Z a-z 0-9 _ . -"}
	}
	if base, _, _ := strings.Cut(full, "/"); p.cfg.Scanner(base) != nil && p.cfg.Scanner(base).GunDigits > 0 {
		return nil, &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_scanner_id", Detail: "cannot use this scanner_id: it would look like a gun of the base station " + base, Hint: "name the gun by its whole address, or rename the base station"}
	}
	n := 0
	for _, s := range p.scanners {
		if s.api {
			n++
		}
	}
	if n >= maxSources {
		return nil, &api.Error{Status: http.StatusTooManyRequests, Reason: "too_many_sources", Detail: fmt.Sprintf("cannot take scans from more than %d names", maxSources), Hint: "use one scanner_id for each place that scans, not for each scan; GET /v1/status lists them, and a restart forgets them"}
	}
	s := p.adopt(nil, full, &config.Scanner{ID: full, ScanType: window.Dispense})
	s.api = true
	p.mu.Lock()
	p.scanners[full] = s
	p.mu.Unlock()
	return s, nil
}

// firstAnswer is what a request was answered the first time.
func firstAnswer(f *spool.Answer) api.ScanAnswer {
	index := int64(f.Window)
	out := api.ScanAnswer{Outcome: "accepted", EventID: f.Event.String(), Key: f.Key.String(), WindowIndex: &index}
	if !f.Of.IsZero() {
		out.Outcome, out.DuplicateOf = "duplicate", nullable(f.Of.String())
	}
	return out
}

// answerTo tells the application what deliver tells a device; err is the commit's.
func answerTo(o outcome, err error) (api.ScanAnswer, error) {
	if err != nil && o.kind != kVoided {
		return api.ScanAnswer{}, notDurable(err)
	}
	switch o.kind {
	case kAccepted, kDuplicate:
		r := o.decision.Record
		index := int64(r.Keys.Window)
		out := api.ScanAnswer{Outcome: "accepted", EventID: r.Event.String(), Key: r.Keys.Idem.String(), WindowIndex: &index}
		if o.kind == kDuplicate {
			out.Outcome, out.DuplicateOf = "duplicate", nullable(r.Of.String())
		}
		return out, nil
	case kControl:
		return api.ScanAnswer{Outcome: "control", Kind: o.reason}, nil
	case kNotAccepted:
		return api.ScanAnswer{}, notAcceptedError(o.reason, o.detail)
	}
	detail := o.detail
	if detail == "" { // a void frame: the rest of a document
		detail = documentDetail
	}
	return api.ScanAnswer{}, &api.Error{Status: http.StatusUnprocessableEntity, Reason: o.reason, Detail: detail, Hint: "scan the product's own barcode; scanonce decode explains a refusal"}
}

func notAcceptedError(reason, detail string) error {
	return &api.Error{Status: http.StatusServiceUnavailable, Reason: reason, Detail: detail, Hint: "nothing was counted: send it again once GET /v1/status says accepting"}
}

func notDurable(err error) error {
	reason, detail, _, _ := commitFailure(err)
	return notAcceptedError(reason, detail)
}

// pastLabel is the label in front of scans that bring their time: it belongs to such scans only, by their times, as
// a label at the counter belongs to those at the counter.
type pastLabel struct {
	token string
	at    window.UTC
	typ   window.ScanType
}

func (l *pastLabel) rxToken(at window.UTC, typ window.ScanType, lasts time.Duration) string {
	if age := at.Sub(l.at); typ != l.typ || age < 0 || age >= lasts {
		return ""
	}
	return l.token
}
