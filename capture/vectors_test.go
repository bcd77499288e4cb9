package capture

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"testing"
)

var vectorDay = Date{2026, 11, 29}

type vector struct {
	ID       string                     `json:"id"`
	In       string                     `json:"in"`
	Ctx      json.RawMessage            `json:"ctx"`
	Want     map[string]json.RawMessage `json:"want"`
	Error    string                     `json:"error"`
	ErrorAny []string                   `json:"error_any"`
	Line     []byte                     `json:"-"`
}

// The vector files: the published ones, and further ones of the same kinds, each reasoned from the standard
// that it names.
var vectorFiles = [...]struct {
	name  string
	count int
}{{"testdata/barcodes.jsonl", 223}, {"testdata/own.jsonl", 174}}

func vectors(t testing.TB) (all []vector) {
	t.Helper()
	for _, f := range vectorFiles {
		v := readVectors(t, f.name)
		if len(v) != f.count {
			t.Fatalf("%s has %d vectors, want %d", f.name, len(v), f.count)
		}
		all = append(all, v...)
	}
	return all
}

func readVectors(t testing.TB, name string) []vector {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var out []vector
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var v vector
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		v.Line = append([]byte(nil), sc.Bytes()...)
		out = append(out, v)
	}
	return out
}

func TestVectors(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v.ID, func(t *testing.T) {
			out, err := DecodeVectorLine(v.Line, vectorDay)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatal(err)
			}
			if got["id"] != v.ID {
				t.Errorf("id %v", got["id"])
			}
			if v.Error != "" {
				kinds := append(v.ErrorAny, v.Error)
				for _, k := range kinds {
					if got["error"] == k {
						return
					}
				}
				t.Fatalf("got %s, want error %v", out, kinds)
			}
			for key, raw := range v.Want {
				var want any
				if err := json.Unmarshal(raw, &want); err != nil {
					t.Fatal(err)
				}
				if g, ok := got[key]; !ok || !reflect.DeepEqual(g, want) {
					t.Errorf("%s: got %v, want %v\n%s", key, g, want, out)
				}
			}
		})
	}
}
