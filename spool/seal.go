package spool

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// KeyRing holds the master keys by id. A key file has one key a line, 64 hexadecimal digits, the current
// one first; older lines stay until nothing sealed with them is left.
type KeyRing struct {
	current string
	keys    map[string][]byte
}

// String hides the keys.
func (k *KeyRing) String() string {
	return fmt.Sprintf("[%d spool keys, current %s]", len(k.keys), k.current)
}

// Current is the id of the key that seals.
func (k *KeyRing) Current() string { return k.current }

// keyID names a master key without telling of it: 8 hexadecimal digits.
func keyID(key []byte) string {
	h := sha256.Sum256(append([]byte("scanonce spool key id|"), key...))
	return hex.EncodeToString(h[:4])
}

// LoadKeyRing reads a key file. With create, a missing file is made, mode 0600, with a new random key.
func LoadKeyRing(path string, create bool) (*KeyRing, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && create {
		key := make([]byte, 32)
		rand.Read(key)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("cannot make the folder of the spool key: %w", err)
		}
		text = []byte(hex.EncodeToString(key) + "\n")
		if err := replaceFile(path, text); err != nil {
			return nil, fmt.Errorf("cannot write the spool key: %w", err)
		}
	} else if err != nil {
		return nil, fmt.Errorf("cannot read the spool key: %w", err)
	}
	ring := &KeyRing{keys: map[string][]byte{}}
	for n, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, err := hex.DecodeString(line)
		if err != nil || len(key) != 32 {
			return nil, fmt.Errorf("cannot read the spool key: line %d of %s must be 64 hexadecimal digits", n+1, path)
		}
		id := keyID(key)
		ring.keys[id] = key
		if ring.current == "" {
			ring.current = id
		}
	}
	if ring.current == "" {
		return nil, fmt.Errorf("cannot read the spool key: %s is empty", path)
	}
	return ring, nil
}

// WrongKeyError says which key a file needs. The file is left as it is.
type WrongKeyError struct{ File, KeyID string }

func (e *WrongKeyError) Error() string {
	return fmt.Sprintf("cannot unseal %s: it was sealed with spool key %s, which the key file does not hold", e.File, e.KeyID)
}

const sealVersion = 1

var errUnseal = errors.New("cannot unseal: the record is damaged or belongs elsewhere")

// sealParams stand in a file's header, in clear.
type sealParams struct {
	KeyID string `json:"key_id"`
	Salt  []byte `json:"salt"`
	Check []byte `json:"check"` // proves the key before anything is read with it
}

// sealer seals the values of one file with AES-256-GCM. The key is derived from the master key by HKDF
// (RFC 5869) with the file's salt and scope (agent|epoch|file), and the additional data tie a value to its
// place: this is the encryption at rest and the checksum that bbolt does not have.
type sealer struct {
	aead  cipher.AEAD
	scope string
}

func newSealParams(ring *KeyRing) sealParams {
	p := sealParams{KeyID: ring.current, Salt: make([]byte, 16)}
	rand.Read(p.Salt)
	return p
}

func deriveKey(ring *KeyRing, p sealParams, scope, file string) ([]byte, error) {
	master, ok := ring.keys[p.KeyID]
	if !ok {
		return nil, &WrongKeyError{File: file, KeyID: p.KeyID}
	}
	return hkdf.Key(sha256.New, master, p.Salt, "scanonce spool|"+scope, 32)
}

func keyCheck(key []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte("scanonce key check"))
	return m.Sum(nil)[:8]
}

// newSealer makes the sealer of a file; with a fresh p it also fills p.Check.
func newSealer(ring *KeyRing, p *sealParams, scope, file string) (*sealer, error) {
	key, err := deriveKey(ring, *p, scope, file)
	if err != nil {
		return nil, err
	}
	check := keyCheck(key)
	if p.Check == nil {
		p.Check = check
	} else if !hmac.Equal(check, p.Check) {
		return nil, &WrongKeyError{File: file, KeyID: p.KeyID}
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &sealer{aead: aead, scope: scope}, nil
}

func (s *sealer) aad(buf []byte, bucket string, key []byte) []byte {
	b := append(append(append(buf, s.scope...), '|'), bucket...)
	b = append(append(b, '|'), key...)
	return append(b, '|', sealVersion)
}

// sealOnce seals a value that is written once under its key. The key must be an 8-byte sequence number that
// this sealer never sees twice for the bucket: it is the nonce.
func (s *sealer) sealOnce(dst []byte, bucket string, key, plain []byte) []byte {
	var aad [128]byte
	nonce := onceNonce(bucket, key)
	return s.aead.Seal(append(dst, sealVersion), nonce[:], plain, s.aad(aad[:0], bucket, key))
}

func (s *sealer) openOnce(dst []byte, bucket string, key, sealed []byte) ([]byte, error) {
	if len(sealed) < 1 || len(sealed) > mostValue || sealed[0] != sealVersion || len(key) != 8 {
		return nil, errUnseal
	}
	var aad [128]byte
	nonce := onceNonce(bucket, key)
	p, err := s.aead.Open(dst, nonce[:], sealed[1:], s.aad(aad[:0], bucket, key))
	if err != nil {
		return nil, errUnseal
	}
	return p, nil
}

func onceNonce(bucket string, key []byte) (n [12]byte) {
	copy(n[:4], bucket)
	copy(n[4:], key)
	return n
}

// seal seals a value that may change under its key: the nonce is random and stored.
func (s *sealer) seal(bucket string, key, plain []byte) []byte {
	var aad [128]byte
	out := make([]byte, 13, 13+len(plain)+s.aead.Overhead())
	out[0] = sealVersion
	rand.Read(out[1:13])
	return s.aead.Seal(out, out[1:13], plain, s.aad(aad[:0], bucket, key))
}

func (s *sealer) open(bucket string, key, sealed []byte) ([]byte, error) {
	if len(sealed) < 13 || len(sealed) > mostValue || sealed[0] != sealVersion {
		return nil, errUnseal
	}
	var aad [128]byte
	p, err := s.aead.Open(nil, sealed[1:13], sealed[13:], s.aad(aad[:0], bucket, key))
	if err != nil {
		return nil, errUnseal
	}
	return p, nil
}

func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
