package main

import (
	"os"
	"testing"

	"scanonce/internal/testenv"
)

// A start on a full disk says why scans are refused before one comes, and goes on by itself once there is room.
func TestStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	h := program.NewHome(t, testenv.Setup{Directory: directory})
	if err := os.Mkdir(h.State, 0o700); err != nil {
		t.Fatal(err)
	}
	d := testenv.NewDisk(t, h.State, 24<<20)
	h.Start(t).Stop(t)
	d.Fill(t, 0)
	p := h.Start(t)
	st := h.Follow(t)
	if s := h.Status(t); s.Accepting || s.Alarm("disk_full") == nil {
		t.Errorf("status %+v", s)
	}
	d.Free(t)
	st.Wait(t, 0, "the end of the alarm", alarm("disk_full", false))
	if s := h.Status(t); !s.Accepting || s.Alarm("disk_full") != nil {
		t.Errorf("status %+v", s)
	}
	p.Stop(t)
}
