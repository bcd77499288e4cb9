package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"scanonce/internal/api"
)

const deviceReading = "reading"

// WaitReading waits until the agent reads the scanner, and gives up the scanner's own hold of the device.
func (s *Scanner) WaitReading(ctx context.Context, a Agent) error {
	if err := s.waitState(ctx, a, func(state string) bool { return state == deviceReading }); err != nil {
		return err
	}
	s.Opened()
	return nil
}

// releaseTime is how long an agent may take to notice that a device went away.
const releaseTime = 2 * time.Second

// waitUnplugged waits until the agent has let go of a scanner that was at the same place before.
func (s *Scanner) waitUnplugged(ctx context.Context, a Agent) error {
	limit, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	err := s.waitState(limit, a, func(state string) bool { return state != deviceReading })
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("cannot plug in scanner %s: the agent reads another one at %s; unplug that first", s.ID, s.Path)
	}
	return err
}

// waitState waits until the state of the scanner's device is as wanted.
func (s *Scanner) waitState(ctx context.Context, a Agent, wanted func(state string) bool) error {
	// The position comes before the status: no change can fall between them.
	from, err := a.Position(ctx)
	if err != nil {
		return err
	}
	st, err := a.Status(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(st.Scanners, func(d api.ScannerStatus) bool { return d.ID == s.ID })
	if i < 0 {
		return fmt.Errorf("cannot find scanner %s in the agent: write its [[scanner]] table into the agent's configuration", s.ID)
	}
	if wanted(st.Scanners[i].State) {
		return nil
	}
	reached := errors.New("reached")
	err = a.Follow(ctx, from, []string{"device"}, func(ev api.Event) error {
		var e struct {
			ScannerID string `json:"scanner_id"`
			State     string `json:"state"`
		}
		if err := json.Unmarshal(ev.Data, &e); err != nil {
			return fmt.Errorf("cannot read the agent's event %s: %w", ev.ID, err)
		}
		if e.ScannerID == s.ID && wanted(e.State) {
			return reached
		}
		return nil
	})
	switch {
	case errors.Is(err, reached):
		return nil
	case err == nil:
		return fmt.Errorf("cannot wait longer for scanner %s, whose device was %s: %w", s.ID, st.Scanners[i].State, ctx.Err())
	}
	return err
}
