package capture

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const goldenFacility = "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"

func rxSecret(t testing.TB, facility, secret string) *RxSecret {
	t.Helper()
	s, err := NewRxSecret(facility, []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The golden tokens were computed by another program:
//
//	printf %s "$SECRET" | sha256sum | cut -c1-8
//	printf %s "$FACILITY|$STORE|$RX|$REFILL" | openssl dgst -sha256 -hmac "$SECRET" -r | cut -c1-32
func TestRxTokens(t *testing.T) {
	const golden = "golden facility secret"
	label := Rx{Rx: "1234567", Store: "0123456"}
	for _, c := range []struct {
		name, facility, file string
		rx                   Rx
		want                 string
	}{
		{"number and store", goldenFacility, golden, label, "rx1.c01737db.a36eace327bac08200d2f9b3b1c55907"},
		{"line ending in the file", goldenFacility, golden + "\n", label, "rx1.c01737db.a36eace327bac08200d2f9b3b1c55907"},
		{"CRLF in the file", goldenFacility, golden + "\r\n", label, "rx1.c01737db.a36eace327bac08200d2f9b3b1c55907"},
		{"number alone", goldenFacility, golden, Rx{Rx: "1234567"}, "rx1.c01737db.9f7441870ffc59d3ab4ceced64e5fea9"},
		{"refill", goldenFacility, golden, Rx{Rx: "1234567", Store: "0123456", Refill: "02"}, "rx1.c01737db.6df97df0b3f8869565fbac6bdf96b906"},
		{"escaped", goldenFacility, golden, Rx{Rx: "1234567", Store: `012\3|456`}, "rx1.c01737db.17b828b854d40bb57dd7cce9f21b6345"},
		{"another facility", "OTHER", golden, label, "rx1.c01737db.67dc4b49a130151f43760c9e7bbb41c8"},
		{"another secret", goldenFacility, "another facility secret", label, "rx1.4016cd07.4757883488ce735edb9a951157b62192"},
		// python3 -c 'import hmac,hashlib; b=bytes(range(250,256))+b"\n"+bytes(range(20)); print(…)'
		{"random bytes", goldenFacility, "\xfa\xfb\xfc\xfd\xfe\xff\n\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13", label, "rx1.cb24b7ea.0789e818093faff8f2a0ca0e38b2e023"},
	} {
		s := rxSecret(t, c.facility, c.file)
		if got := s.Token(c.rx); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if got := s.ID(); got != c.want[4:12] {
			t.Errorf("%s: the secret is named %s", c.name, got)
		}
	}
	if (*RxSecret)(nil).Token(label) != "" {
		t.Error("no secret makes a token")
	}
}

// The same label gives the same token, whatever stands around its content.
func TestRxTokensOfOneLabel(t *testing.T) {
	d := rxDecoder(t, RxProfile{"ncpdp", `(?P<rx>\d{7}),(?P<store>\d{7})`})
	secret := rxSecret(t, goldenFacility, "golden facility secret")
	for _, in := range []string{"1234567,0123456", "1234567,0123456\r", "1234567,0123456\r\n", "\x021234567,0123456\x03", "1234567,0123456\t", "]C01234567,0123456", "]A01234567,0123456\r", "]d11234567,0123456", "]Q11234567,0123456", "]F01234567,0123456"} {
		var s Scan
		if r := d.Decode(&s, []byte(in), nil, vectorDay); !r.OK() {
			t.Fatalf("%q: %v", in, r)
		}
		if got := secret.Token(s.Rx); got != "rx1.c01737db.a36eace327bac08200d2f9b3b1c55907" {
			t.Errorf("%q: %s", in, got)
		}
	}
}

func TestRxSecretsThatAreRefused(t *testing.T) {
	for file, want := range map[string]string{
		"": "it is empty", "\r\n\n": "it is empty", "fifteen bytes..": "15 bytes, at least 16", "short\n": "5 bytes, at least 16",
		"first facility secret\nformer facility secret\n": "several lines", "# the facility's\r\n0123456789abcdef0123": "several lines",
	} {
		s, err := NewRxSecret("F", []byte(file))
		if s != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", file, err, want)
			continue
		}
		if strings.Contains(err.Error(), "short") || strings.Contains(err.Error(), "former") {
			t.Errorf("the error names the secret: %v", err)
		}
	}
	rxSecret(t, "F", "sixteen bytes...")
}

// timeless leaves the time out of log lines, whose digits may be those that are looked for.
var timeless = &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}}

// No verb, logger or encoder shows what may be PHI, a payload or a secret.
func TestNothingIsFormatted(t *testing.T) {
	d := rxDecoder(t, RxProfile{"a", `R(?P<rx>\d{7})(?P<refill>\d{2})(?P<store>\d{4})`})
	var label, item Scan
	if r := d.Decode(&label, []byte("R7654321110099"), nil, vectorDay); !r.OK() {
		t.Fatal(r)
	}
	if r := d.Decode(&item, []byte("]d2010030093721410621CANARY77\x1d10CANARYLOT"), nil, vectorDay); !r.OK() {
		t.Fatal(r)
	}
	secret := rxSecret(t, "F", "canary facility secret")
	values := []any{label, &label, label.Rx, &label.Rx, label.Rx.Rx, label.Rx.Store, &label.Rx.Rx, label.Clone(), label.Report(), item, &item, secret, *secret,
		[]Secret{label.Rx.Rx}, map[string]any{"scan": label, "rx": label.Rx}, struct{ S Scan }{label}, struct{ P *RxSecret }{secret}}
	var out strings.Builder
	text, js := slog.New(slog.NewTextHandler(&out, timeless)), slog.New(slog.NewJSONHandler(&out, timeless))
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%o", "%b", "%U", "%c", "%e", "%t", "%T", "%20.10v"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		fmt.Fprintln(&out, v)
		text.Info("m", "v", v)
		js.Info("m", "v", v)
		if _, isReport := v.(Report); !isReport { // whose JSON is for those who may see it
			j, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(j)
		}
	}
	for _, plain := range []string{"7654321", "0099", "CANARY77", "CANARYLOT", "canary facility", "00300937214106"} {
		for _, form := range []string{plain, fmt.Sprintf("%x", plain), fmt.Sprintf("%X", plain), fmt.Sprintf("% x", plain), strings.Trim(fmt.Sprint([]byte(plain)), "[]"), strings.Trim(fmt.Sprintf("%o", []byte(plain)), "[]")} {
			if i := strings.Index(out.String(), form); i >= 0 {
				t.Errorf("%s shows as %q: …%s", plain, form, out.String()[max(0, i-80):i+len(form)])
			}
		}
	}
}
