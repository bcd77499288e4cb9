package ledger_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"scanonce/idem"
	"scanonce/sync/ledger"
	"scanonce/window"
)

const (
	columns = "idem_key,edge_key,event_id,facility_uuid,scanner_id,ndc,lot,quantity,scan_type,window_index,extras,gtin,hibc,serial,ndc11,ndc12,expiry,pkg_level,flags,rx_token,agent_id,captured_at,clock_quality,committed_at"
	zeros   = "0000000000000000000000000000000000000000000000000000000000000000"
)

// exported are a row with every column, in characters that need care, and one with none that may be null.
func exported() []ledger.Row {
	full := ledger.Row{
		Keys:  idem.Keys{Idem: idem.Key{Kind: idem.Idem}, Edge: idem.Key{Kind: idem.Edge}, Window: -7},
		Event: idem.EventID{1, 0x9a, 15: 1}, Facility: "F", Scanner: "SCN-04/02", NDC: "00093721410", Lot: `A,"1`, Quantity: 30,
		Type: window.Return, Extras: "serial==1+1", GTIN: "00300937214106", HIBC: "H<&>", Serial: "=1+1", NDC11: "00093721410",
		NDC12: "000937214109", Expiry: "2028-02-29", PkgLevel: 0, Flags: []string{"claim_bypassed", "a b", `q"\`, "", "NULL", "x,y"},
		RxToken: "rx1.0123abcd.00", Agent: "agent-a", CapturedAt: 1762206339007, Quality: window.Holdover, CommittedAt: 1762206340000,
	}
	bare := ledger.Row{Keys: idem.Keys{Idem: idem.Key{Kind: idem.Idem}}, Event: idem.EventID{2}, Facility: " F ", Scanner: "S\r\nT", Quantity: 1,
		Type: window.Dispense, PkgLevel: -1, Agent: "a"}
	return []ledger.Row{full, bare}
}

func eachOf(rows []ledger.Row) ledger.Each {
	return func(yield func(ledger.Row) error) error {
		for _, r := range rows {
			if err := yield(r); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestWriteCSV(t *testing.T) {
	var b bytes.Buffer
	if err := ledger.WriteCSV(&b, eachOf(exported())); err != nil {
		t.Fatal(err)
	}
	want := columns + "\r\n" +
		"scan:idem:" + zeros + ",scan:edge:" + zeros + `,019a0000-0000-0000-0000-000000000001,F,SCN-04/02,00093721410,"A,""1",30,return,-7,` +
		`serial==1+1,00300937214106,H<&>,=1+1,00093721410,000937214109,2028-02-29,0,"{claim_bypassed,""a b"",""q\""\\"","""",""NULL"",""x,y""}",` +
		"rx1.0123abcd.00,agent-a,2025-11-03T21:45:39.007Z,holdover,2025-11-03T21:45:40.000Z\r\n" +
		"scan:idem:" + zeros + `,,02000000-0000-0000-0000-000000000000," F ","S` + "\r\n" + `T",,,1,dispense,0,,,,,,,,,{},,a,1970-01-01T00:00:00.000Z,unsynced,1970-01-01T00:00:00.000Z` + "\r\n"
	if b.String() != want {
		t.Errorf("CSV\n%q, want\n%q", b.String(), want)
	}
	records, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(records) != 3 || records[1][6] != `A,"1` {
		t.Errorf("read back: %q, %v", records, err)
	}
}

func TestWriteJSONL(t *testing.T) {
	var b bytes.Buffer
	if err := ledger.WriteJSONL(&b, eachOf(exported())); err != nil {
		t.Fatal(err)
	}
	want := `{"idem_key":"scan:idem:` + zeros + `","edge_key":"scan:edge:` + zeros + `","event_id":"019a0000-0000-0000-0000-000000000001","facility_uuid":"F",` +
		`"scanner_id":"SCN-04/02","ndc":"00093721410","lot":"A,\"1","quantity":30,"scan_type":"return","window_index":-7,"extras":"serial==1+1",` +
		`"gtin":"00300937214106","hibc":"H<&>","serial":"=1+1","ndc11":"00093721410","ndc12":"000937214109","expiry":"2028-02-29","pkg_level":0,` +
		`"flags":["claim_bypassed","a b","q\"\\","","NULL","x,y"],"rx_token":"rx1.0123abcd.00","agent_id":"agent-a","captured_at":"2025-11-03T21:45:39.007Z",` +
		`"clock_quality":"holdover","committed_at":"2025-11-03T21:45:40.000Z"}` + "\n" +
		`{"idem_key":"scan:idem:` + zeros + `","edge_key":null,"event_id":"02000000-0000-0000-0000-000000000000","facility_uuid":" F ","scanner_id":"S\r\nT","ndc":"","lot":"",` +
		`"quantity":1,"scan_type":"dispense","window_index":0,"extras":"","gtin":null,"hibc":null,"serial":null,"ndc11":null,"ndc12":null,"expiry":null,"pkg_level":null,` +
		`"flags":[],"rx_token":null,"agent_id":"a","captured_at":"1970-01-01T00:00:00.000Z","clock_quality":"unsynced","committed_at":"1970-01-01T00:00:00.000Z"}` + "\n"
	if b.String() != want {
		t.Errorf("JSON Lines\n%s, want\n%s", b.String(), want)
	}
	names := strings.Split(columns, ",")
	for line := range strings.Lines(b.String()) {
		if got := keysOf(t, line); !slices.Equal(got, names) {
			t.Errorf("columns %q, want %q", got, names)
		}
	}
}

// keysOf lists the names of an object in their order.
func keysOf(t *testing.T, object string) (names []string) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(object))
	d.Token()
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name.(string))
		var skip any
		if err := d.Decode(&skip); err != nil {
			t.Fatal(err)
		}
	}
	return names
}

func TestWriteLinesJSONL(t *testing.T) {
	lines := []ledger.Line{
		{Event: idem.EventID{1}, Agent: "a", At: 1, Key: idem.Key{Kind: idem.Idem}, Ref: idem.EventID{2}, Outcome: ledger.Suppressed, Reason: "bounce",
			Winner: idem.EventID{3}, Scanner: "S", Type: window.Count, CapturedAt: 2, TTL: 60000, Length: 40, Symbology: "]d2", RecordedAt: 3},
		{Event: idem.EventID{4}, Agent: "a", Outcome: ledger.Notice},
	}
	var b bytes.Buffer
	err := ledger.WriteLinesJSONL(&b, func(yield func(ledger.Line) error) error {
		return errors.Join(yield(lines[0]), yield(lines[1]))
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"event_id":"01000000-0000-0000-0000-000000000000","agent_id":"a","at":"1970-01-01T00:00:00.001Z","key":"scan:idem:` + zeros + `",` +
		`"ref":"02000000-0000-0000-0000-000000000000","outcome":"suppressed","reason":"bounce","winner_event_id":"03000000-0000-0000-0000-000000000000",` +
		`"scanner_id":"S","scan_type":"count","captured_at":"1970-01-01T00:00:00.002Z","ttl_ms":60000,"length":40,"symbology":"]d2","recorded_at":"1970-01-01T00:00:00.003Z"}` + "\n" +
		`{"event_id":"04000000-0000-0000-0000-000000000000","agent_id":"a","at":"1970-01-01T00:00:00.000Z","key":null,"ref":null,"outcome":"notice","reason":null,` +
		`"winner_event_id":null,"scanner_id":null,"scan_type":null,"captured_at":null,"ttl_ms":null,"length":null,"symbology":null,"recorded_at":null}` + "\n"
	if b.String() != want {
		t.Errorf("lines\n%s, want\n%s", b.String(), want)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestExportsEndWithTheirErrors(t *testing.T) {
	broken := errors.New("the ledger broke")
	for name, write := range map[string]func(each ledger.Each) error{
		"csv":   func(each ledger.Each) error { return ledger.WriteCSV(fullDisk{}, each) },
		"jsonl": func(each ledger.Each) error { return ledger.WriteJSONL(fullDisk{}, each) },
	} {
		if err := write(eachOf(exported())); err == nil || err.Error() != "no space" {
			t.Errorf("%s to a full disk: %v", name, err)
		}
		if err := write(func(func(ledger.Row) error) error { return broken }); err != broken {
			t.Errorf("%s of a broken ledger: %v", name, err)
		}
		many := slices.Repeat(exported(), 1000)
		if err := write(eachOf(many)); err == nil || err.Error() != "no space" {
			t.Errorf("%s of many rows to a full disk: %v", name, err)
		}
	}
}
