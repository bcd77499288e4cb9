package api

import (
	"context"
	"io"
	"net/http"
	"reflect"
	"testing"
)

func (f *fake) Devices(_ context.Context, yield func(Device) error) error {
	if err := f.called("devices"); err != nil {
		return err
	}
	for _, d := range someDevices() {
		if err := yield(d); err != nil {
			return err
		}
	}
	return nil
}

func someDevices() []Device {
	text := func(s string) *string { return &s }
	return []Device{
		{ID: "05e0:1701:<A>", Transport: text("serial"), VID: text("05e0"), PID: text("1701"), Serial: text("<A>"), Port: text("1-1"), Node: text("/dev/ttyACM0"), State: text("reading"),
			ScannerID: text("SCN-04"), Name: text("Zebra"), Scanner: true, Config: "[[scanner]]\n"},
		{ID: "1234:5678@1-2", Ambiguous: true, Config: "# none\n"},
	}
}

func TestDevices(t *testing.T) {
	r := newRig(t, nil)
	resp, err := r.client.send(t.Context(), http.MethodGet, "/v1/devices", nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":"05e0:1701:<A>","transport":"serial","vid":"05e0","pid":"1701","serial":"<A>","port":"1-1","node":"/dev/ttyACM0","ambiguous":false,"state":"reading","scanner_id":"SCN-04","name":"Zebra","scanner":true,"config":"[[scanner]]\n"}
{"id":"1234:5678@1-2","transport":null,"vid":null,"pid":null,"serial":null,"port":null,"node":null,"ambiguous":true,"state":null,"scanner_id":null,"name":null,"scanner":false,"config":"# none\n"}
`
	if string(body) != want || resp.Header.Get("Content-Type") != ndjson {
		t.Errorf("%s of %s", body, resp.Header.Get("Content-Type"))
	}
	var got []Device
	if err := r.client.Devices(t.Context(), func(d Device) error { got = append(got, d); return nil }); err != nil || !reflect.DeepEqual(got, someDevices()) {
		t.Errorf("%+v, %v", got, err)
	}
}
