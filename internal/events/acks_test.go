package events

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func acked(t *testing.T, l *Log, client string) string {
	t.Helper()
	id, err := l.Acked(client)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAClientGoesOnBehindWhatItHasAcknowledged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.log")
	l := open(t, path, Options{})
	put(t, l, 1, 3)
	if got := resume(t, l, acked(t, l, "new")); len(got) != 0 {
		t.Errorf("a new client begins with %v", got)
	}
	put(t, l, 4, 6)
	if got := fmt.Sprint(resume(t, l, acked(t, l, "new"))); got != "[4 5 6]" { // it has not acknowledged anything yet
		t.Errorf("it goes on with %s", got)
	}
	all := resume(t, l, acked(t, l, "new"))
	for _, id := range []string{all[1].id, all[0].id, all[1].id} { // an older one changes nothing
		if err := l.Ack("new", id); err != nil {
			t.Fatal(err)
		}
		if got := acked(t, l, "new"); got != all[1].id {
			t.Errorf("after %s: %s", id, got)
		}
	}
	if err := l.Ack("other", all[0].id); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", "x", "000000000000-1", all[0].id + "0"} {
		if err := l.Ack("new", id); !errors.Is(err, ErrUnknownID) {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, c := range []string{"", "a b", "a/b", strings.Repeat("a", 65), "ä"} {
		if err := l.Ack(c, all[0].id); !errors.Is(err, ErrClient) {
			t.Errorf("%q: %v", c, err)
		}
		if _, err := l.Acked(c); !errors.Is(err, ErrClient) {
			t.Errorf("%q: %v", c, err)
		}
	}
	// A killed process closes nothing.
	again := open(t, path, Options{})
	if got := fmt.Sprint(resume(t, again, acked(t, again, "new")), resume(t, again, acked(t, again, "other"))); got != "[6] [5 6]" {
		t.Errorf("after a start they go on with %s", got)
	}
	put(t, again, 7, 7)
	if err := again.Ack("new", again.Last()); err != nil {
		t.Fatal(err)
	}
	if got := resume(t, again, acked(t, again, "new")); len(got) != 0 {
		t.Errorf("all is acknowledged, and it goes on with %v", got)
	}
}

// The number of clients is bounded; one that has missed events leaves room.
func TestClientsAreBounded(t *testing.T) {
	now := t0
	l := open(t, filepath.Join(t.TempDir(), "events.log"), at(&now))
	put(t, l, 1, 1)
	first := l.Last()
	if err := l.Ack("old", first); err != nil {
		t.Fatal(err)
	}
	put(t, l, 2, 3)
	for i := range maxClients - 1 {
		if err := l.Ack(fmt.Sprint("c", i), l.Last()); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Ack("more", l.Last()); !errors.Is(err, ErrClients) {
		t.Errorf("%v", err)
	}
	if _, err := l.Acked("more"); !errors.Is(err, ErrClients) {
		t.Errorf("%v", err)
	}
	if err := l.Ack("c1", l.Last()); err != nil {
		t.Error(err)
	}
	now = now.Add(25 * time.Hour)
	if err := l.Ack("more", l.Last()); err != nil {
		t.Errorf("although one has missed what is past retention: %v", err)
	}
	if err := l.Ack("old", l.Last()); !errors.Is(err, ErrClients) {
		t.Errorf("the one that left, anew: %v", err)
	}
}

// Without their places clients see a gap and everything that is retained, not a silent loss.
func TestLostPlaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.log")
	l := open(t, path, Options{})
	put(t, l, 1, 2)
	if err := l.Ack("pms", l.Last()); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"", "{", `{"format":2,"clients":{}}`, `{"format":1}`} {
		if err := os.WriteFile(path+acksSuffix, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, path, Options{})
		if got := fmt.Sprint(resume(t, l, acked(t, l, "pms"))); got != "[gap 1 2]" {
			t.Errorf("%q: %s", content, got)
		}
		if err := l.Ack("pms", l.Last()); err != nil {
			t.Error(err)
		}
	}
}

// What could not be kept is not acknowledged.
func TestAnAckThatCannotBeKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "events.log")
	l := open(t, path, Options{})
	put(t, l, 1, 1)
	if err := l.Ack("pms", l.Last()); err != nil {
		t.Fatal(err)
	}
	was := l.Last()
	put(t, l, 2, 2)
	if err := os.Mkdir(path+acksSuffix+newSuffix, 0o700); err != nil { // in the way of the new file
		t.Fatal(err)
	}
	if err := l.Ack("pms", l.Last()); err == nil || acked(t, l, "pms") != was {
		t.Errorf("%v, acknowledged %s", err, acked(t, l, "pms"))
	}
}
