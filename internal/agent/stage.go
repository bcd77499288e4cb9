package agent

import (
	"context"

	"scanonce/device"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/spool"
	"scanonce/sync/forward"
	"scanonce/window"
)

// Stage is an agent without scanners, sockets and goroutines: it moves when it is told to, so that a simulation
// can put anything between two of its steps. At most one Turn, one of the forwarder's and one of each lane of the
// courier's run at a time.
type Stage struct{ a *agent }

// NewStage opens the state folder and composes the parts as Run does.
func NewStage(cfg *config.Config, o Options, e Edges) (*Stage, error) {
	a, err := core(cfg, o, e)
	if err != nil {
		return nil, err
	}
	a.retell()
	return &Stage{a}, nil
}

// Offer takes a frame, as from a scanner; see device.Sink.
func (s *Stage) Offer(f device.Frame) bool { return s.a.pipe.Offer(f) }

// Turn is one turn of the pipeline: what has come is decided, made durable and told.
func (s *Stage) Turn() { s.a.pipe.decideAll(&intake{Batch: s.a.spool.NewBatch()}) }

// Queued says whether frames wait for a turn.
func (s *Stage) Queued() bool { return len(s.a.pipe.frames) > 0 }

// Silent says whether a scanner has been silent for so long that a turn has to end its run of frames, as the pipeline's
// timer sees to in Run. soon says that this may come to be with no more frames.
func (s *Stage) Silent() (due, soon bool) {
	at, soon := s.a.spool.LapsesAt()
	return soon && at <= s.a.clock.Boot(), soon
}

// Forwarder is the agent's forwarder; Turn moves it.
func (s *Stage) Forwarder() *forward.Forwarder { return s.a.forward }

// Begin comes before the forwarder's first turn, as in Run: operations on claims learn for which dispenses they wait.
func (s *Stage) Begin() error { return s.a.awaitClaims() }

// Courier is the agent's courier; Turn moves its lanes.
func (s *Stage) Courier() *forward.Courier { return s.a.courier }

// Operations are what applications ask for.
func (s *Stage) Operations() api.Operations { return s.a }

// Spool is the agent's spool.
func (s *Stage) Spool() *spool.Spool { return s.a.spool }

// Clock is the agent's clock.
func (s *Stage) Clock() *window.Clock { return s.a.clock }

// Frames are the counts of the process, of which the conservation law speaks.
func (s *Stage) Frames() (frames, captured, notAccepted, rejected, control, voided, inFlight int64) {
	t, _, _ := s.a.pipe.snapshot()
	return t.frames, t.captured, t.notAccepted, t.rejected, t.control, t.voided, t.inFlight
}

// Flush drains once more; see forward.Forwarder.
func (s *Stage) Flush(ctx context.Context) { s.a.forward.Flush(ctx) }

// Close closes the state folder; a clean close says that every answer was told.
func (s *Stage) Close(clean bool) error { return s.a.close(clean) }
