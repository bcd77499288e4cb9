package spool

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	bolt "go.etcd.io/bbolt"

	"scanonce/window"
)

// fileVersion is that of the files' layout: of segments, of state.db and of the sidecar.
const fileVersion = 2

var (
	bucketHead = []byte("head")
	keyHeader  = []byte("header")
	keyProof   = []byte("proof")
)

// fileHead is the header of a sealed file. It is in clear, since it says what unseals the rest, and proven by a
// value that only its own key makes. The sidecar keeps a copy.
type fileHead struct {
	Version  int        `json:"version"`
	Agent    string     `json:"agent_id"`
	Epoch    string     `json:"spool_epoch,omitempty"`
	First    uint64     `json:"first_seq,omitempty"`
	BootID   string     `json:"boot_id,omitempty"`
	Created  window.UTC `json:"created"`
	Salvaged bool       `json:"salvaged,omitempty"` // written anew from a damaged file: numbers may be missing
	Seal     sealParams `json:"seal"`
}

func (h *fileHead) scope(name string) string {
	if name == stateName {
		return h.Agent + "|state"
	}
	return h.Agent + "|" + h.Epoch + "|" + name
}

// put writes the header of the file called name, with its proof.
func (h *fileHead) put(tx *bolt.Tx, seal *sealer) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	bucket, err := tx.CreateBucketIfNotExists(bucketHead)
	if err == nil {
		err = bucket.Put(keyHeader, b)
	}
	if err == nil {
		sum := sha256.Sum256(b)
		err = bucket.Put(keyProof, seal.seal(string(bucketHead), keyHeader, sum[:]))
	}
	return err
}

func proven(seal *sealer, header, proof []byte) bool {
	sum := sha256.Sum256(header)
	p, err := seal.open(string(bucketHead), keyHeader, proof)
	return err == nil && string(p) == string(sum[:])
}

// unlock judges the header of a file and makes its sealer. kept is the sidecar's copy of the header, or nil. A
// key that is wrong or missing and a format of another version are told as that, unless the copy, whose key is
// right, says that the header is damaged.
func unlock(ring *KeyRing, name string, header, proof []byte, kept *fileHead) (*fileHead, *sealer, error) {
	damaged := &DamageError{name, "its header is damaged"}
	var h fileHead
	parsed := json.Unmarshal(header, &h) == nil
	var seal *sealer
	var err error = damaged
	if parsed {
		seal, err = newSealer(ring, &h.Seal, h.scope(name), name)
		if err == nil && !proven(seal, header, proof) {
			err = damaged
		}
		if h.Version != fileVersion && (err == nil || kept == nil) {
			return nil, nil, &SchemaError{name, h.Version}
		}
	}
	if err == nil && name != stateName && segmentName(h.Epoch, h.First) != name {
		err = damaged
	}
	if err == nil {
		return &h, seal, nil
	}
	if kept == nil {
		return nil, nil, err
	}
	if _, kerr := newSealer(ring, &kept.Seal, kept.scope(name), name); kerr != nil {
		return nil, nil, kerr // this copy is authentic as the sidecar is: it names the key wanted
	}
	return nil, nil, damaged
}

// headOf reads the header of a file as it is.
func (r *raw) headOf(buckets map[string]tree) (header, proof []byte, err error) {
	t, ok := buckets[string(bucketHead)]
	if !ok {
		return nil, nil, r.damage("it has no header")
	}
	if header, err = r.get(t, keyHeader); err == nil {
		proof, err = r.get(t, keyProof)
	}
	return header, proof, err
}

// parseSegmentName takes a segment's name apart.
func parseSegmentName(name string) (epoch string, first uint64, ok bool) {
	epoch, rest, _ := strings.Cut(strings.TrimSuffix(name, segmentExt), "-")
	first, err := strconv.ParseUint(rest, 10, 64)
	if b, herr := hex.DecodeString(epoch); err != nil || herr != nil || len(b) != 8 || first == 0 || segmentName(epoch, first) != name {
		return "", 0, false
	}
	return epoch, first, true
}

// sealerFor finds what unseals the values of a damaged file: by the sidecar's copy of the header, or else by
// one that stands anywhere in the file. head is nil if there is none.
func (r *raw) sealerFor(ring *KeyRing, kept *fileHead) (head *fileHead, seal *sealer, err error) {
	if kept != nil {
		h := *kept
		if seal, err = newSealer(ring, &h.Seal, h.scope(r.name), r.name); err == nil {
			head = &h
		}
	}
	const mark = `{"version":`
	var wrong *WrongKeyError
	const piece = 64 << 10
	for off := int64(0); off < r.size; off += piece / 2 {
		b := string(r.readable(off, int(min(piece, r.size-off))))
		for i := strings.Index(b, mark); i >= 0; {
			var h fileHead
			if json.NewDecoder(strings.NewReader(b[i:])).Decode(&h) == nil && h.Version == fileVersion &&
				(r.name == stateName || segmentName(h.Epoch, h.First) == r.name) {
				s, err := newSealer(ring, &h.Seal, h.scope(r.name), r.name)
				if err == nil && (head == nil || string(h.Seal.Salt) != string(head.Seal.Salt)) {
					return &h, s, nil // the file's own: a copy may be of what stood there before
				}
				errors.As(err, &wrong)
			}
			next := strings.Index(b[i+1:], mark)
			if next < 0 {
				break
			}
			i += 1 + next
		}
	}
	if head == nil && wrong != nil {
		return nil, nil, wrong
	}
	return head, seal, nil
}

// newHead is the header of a new file.
func newHead(ring *KeyRing, h fileHead, name string) (*fileHead, *sealer, error) {
	h.Version, h.Seal = fileVersion, newSealParams(ring)
	seal, err := newSealer(ring, &h.Seal, h.scope(name), name)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot seal %s: %w", name, err)
	}
	return &h, seal, nil
}
