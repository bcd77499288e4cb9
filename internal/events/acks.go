package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"sync"
)

// What Ack and Acked refuse.
var (
	ErrUnknownID = errors.New("cannot acknowledge that event: the stream does not know its id")
	ErrClient    = errors.New("cannot use that name of a client")
	ErrClients   = fmt.Errorf("cannot keep the place of more than %d clients", maxClients)
)

const (
	maxClients = 64
	acksSuffix = ".acks"
)

var clientName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// acks are how far each client has come, in a small file beside the log's. It is written before Ack returns, and
// replaced as a whole.
type acks struct {
	mu       sync.Mutex // held while the file is written; taken before the log's
	byClient map[string]string
	lost     bool // the file could not be read: whoever had a place begins at what is retained
}

type acksFile struct {
	Format  int               `json:"format"`
	Clients map[string]string `json:"clients"`
}

func (l *Log) loadAcks() error {
	l.acks.byClient = map[string]string{}
	b, err := os.ReadFile(l.path + acksSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read how far the clients have come: %w", err)
	}
	var f acksFile
	if json.Unmarshal(b, &f) != nil || f.Format != format || f.Clients == nil {
		l.acks.lost = true
		return nil
	}
	l.acks.byClient = f.Clients
	return nil
}

// Ack keeps that a client has dealt with all events up to id, also over a power cut. An id behind one that it has
// acknowledged before changes nothing. Its errors are ErrClient, ErrUnknownID, ErrClients, or that of the disk.
func (l *Log) Ack(client, id string) error {
	if !clientName.MatchString(client) {
		return ErrClient
	}
	l.acks.mu.Lock()
	defer l.acks.mu.Unlock()
	l.mu.Lock()
	seq, ok := l.resolve(id)
	before, had := l.resolve(l.acks.byClient[client])
	l.mu.Unlock()
	switch {
	case !ok:
		return ErrUnknownID
	case had && before >= seq:
		return nil
	}
	return l.keepAck(client, id)
}

// Acked is the event behind which a client goes on: the last one that it has acknowledged. One that has no place yet
// gets the present one, so that it loses nothing before its first Ack.
func (l *Log) Acked(client string) (id string, err error) {
	if !clientName.MatchString(client) {
		return "", ErrClient
	}
	l.acks.mu.Lock()
	defer l.acks.mu.Unlock()
	if id, ok := l.acks.byClient[client]; ok {
		return id, nil
	}
	if id = l.Last(); l.acks.lost {
		id = "lost" // the stream begins with a gap, and goes on with all that is retained
	}
	return id, l.keepAck(client, id)
}

// keepAck needs acks.mu.
func (l *Log) keepAck(client, id string) error {
	next := maps.Clone(l.acks.byClient)
	if _, ok := next[client]; !ok && len(next) >= maxClients && !l.dropClient(next) {
		return ErrClients
	}
	next[client] = id
	b, err := json.Marshal(acksFile{format, next})
	if err == nil {
		err = replaceFile(l.path+acksSuffix, append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot keep how far a client has come: %w", err)
	}
	l.acks.byClient = next
	return nil
}

// dropClient makes room: a client that has missed events already loses nothing but its place.
func (l *Log) dropClient(clients map[string]string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prune()
	for c, id := range clients {
		if seq, ok := l.resolve(id); !ok || seq+1 < l.firstRetained() {
			delete(clients, c)
			return true
		}
	}
	return false
}

// replaceFile puts b in the place of a file: the old or the new content is there, whatever crashes.
func replaceFile(path string, b []byte) error {
	f, err := os.OpenFile(path+newSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(path+newSuffix, path)
	}
	if err != nil {
		os.Remove(path + newSuffix)
		return err
	}
	return syncFolder(filepath.Dir(path))
}
