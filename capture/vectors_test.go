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

func vectors(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/barcodes.jsonl")
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
	if len(out) != 223 {
		t.Fatalf("%d vectors, want 223", len(out))
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
