package faults

import (
	"strings"
	"testing"
)

const lines = `{"world":"w","faults":["b"],"scans":10,"accepted":8,"refused":0,"lost":0,"doubled":0,"accept_p99_ms":12.4,"recover_ms":100}
{"world":"w","faults":["a","b"],"scans":5,"accepted":5,"lost":1,"doubled":2,"accept_p99_ms":2100,"recover_ms":50}
{"world":"w","faults":["a"],"scans":7,"accepted":7,"refused":3,"accept_p99_ms":2,"unanswering":true,"recover_ms":1}
{"world":"w","faults":["b"],"scans":10,"accepted":8,"accept_p99_ms":8,"recover_ms":4200}
{"world":"w","faults":["b"],"scans":1,"accepted":1,"accept_p99_ms":8,"recover_ms":300}
`

func TestTable(t *testing.T) {
	results, err := Read(strings.NewReader(lines))
	if err != nil || len(results) != 5 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	want := `| b | 3 | 21 | nothing | nothing | nothing | 12ms | 300ms (4.2s) |
| a | 1 | 7 | 3 | nothing | nothing | the fault's own | 1ms (1ms) |
| two or three of these at once | 1 | 5 | nothing | 1 | 2 | 2.1s | 50ms (50ms) |
`
	if got := Table(results); !strings.HasSuffix(got, "|\n"+want) || strings.Count(got, "\n") != 5 {
		t.Errorf("the table is\n%s", got)
	}
	if _, err := Read(strings.NewReader(lines + "{")); err == nil {
		t.Error("half a line is taken for a result")
	}
}

func TestSummary(t *testing.T) {
	results, err := Read(strings.NewReader(lines + `{"faults":["Store: killed"],"scans":3}` + "\n" + `{"faults":["Store: silent"],"scans":4,"refused":2}` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := `| a | 1 | 7 | 3 | nothing | nothing |
| b | 3 | 21 | nothing | nothing | nothing |
| Store, in 2 ways | 2 | 7 | 2 | nothing | nothing |
| two or three of these at once | 1 | 5 | nothing | 1 | 2 |
`
	if got := Summary(results); !strings.HasSuffix(got, "|\n"+want) || strings.Count(got, "\n") != 6 {
		t.Errorf("the summary is\n%s", got)
	}
}

func TestReplace(t *testing.T) {
	doc := "before\n" + begin + "\nold\n" + end + "\nafter\n"
	once, err := Replace([]byte(doc), "| new |\n")
	if err != nil || string(once) != "before\n"+begin+"\n| new |\n"+end+"\nafter\n" {
		t.Errorf("%q, %v", once, err)
	}
	if again, err := Replace(once, "| new |\n"); err != nil || string(again) != string(once) {
		t.Errorf("%q, %v", again, err)
	}
	for _, doc := range []string{"", begin, end + begin} {
		if _, err := Replace([]byte(doc), "x"); err == nil {
			t.Errorf("%q has a place for a table", doc)
		}
	}
}
