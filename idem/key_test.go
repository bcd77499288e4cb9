package idem_test

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scanonce/idem"
	"scanonce/window"
)

var (
	threeSeconds = window.Policy{Width: 3 * time.Second, Guard: 500 * time.Millisecond}
	shortWindow  = window.Policy{Width: 400 * time.Millisecond, Guard: 200 * time.Millisecond}
)

const goldenWindow = 587402113 // begins 2025-11-03T21:45:39.000Z

// plain is the identity of the golden vectors.
func plain() idem.Identity {
	return idem.Identity{Facility: strings.Repeat("F", 36), Scanner: "SCN-04", NDC: "00093721410", Lot: "A1207", Quantity: 1, Type: window.Dispense}
}

// seedKey is the plain way: seven fields joined, no escaping, no edge key, no serial.
func seedKey(id idem.Identity, w int64) string {
	h := sha256.Sum256([]byte(strings.Join([]string{id.Facility, id.Scanner, id.NDC, id.Lot, strconv.Itoa(id.Quantity),
		id.Type.String(), strconv.FormatInt(w, 10)}, "|")))
	return "scan:idem:" + hex.EncodeToString(h[:])
}

// share says that a ledger with both unique keys takes a and b for one movement.
func share(a, b idem.Keys) bool {
	return a.Idem == b.Idem || !a.Edge.IsZero() && a.Edge == b.Edge
}

func TestGoldenVectors(t *testing.T) {
	index := func(i window.Index) *window.Index { return &i }
	with := func(change func(*idem.Identity)) idem.Identity {
		id := plain()
		change(&id)
		return id
	}
	same := func(*idem.Identity) {}
	serial := func(id *idem.Identity) { id.Serial = "SN0001" }
	for _, c := range []struct {
		name     string
		id       idem.Identity
		window   window.Index
		boundary *window.Index // nil: the idempotency key is meant
		want     string
	}{
		{"idem", with(same), goldenWindow, nil, "fc903c16bc08bcdbfbcc79c7d1ab181a19617bca675ecd8adc447d37e1231021"},
		{"edge, last G", with(same), goldenWindow, index(goldenWindow + 1), "49575b06512e598a15c61021c6f23660b4f24475301a9fcd40cb0ac0ffcc0dd8"},
		{"edge, first G", with(same), goldenWindow, index(goldenWindow), "b8b11fd34e93eb0452d42ea1133b1f34e04de4f3d1bdc91ed06d30c8989e74c3"},
		{"serial", with(serial), goldenWindow, nil, "a8d5069b76b05670b50041926627c46b6b58de29ae5d5feb6b090384b8213af0"},
		{"edge, serial", with(serial), goldenWindow, index(goldenWindow + 1), "e560a2dec94666d388a5c35487689639c59995fdb4ac4dfce475388adfc69fb0"},
		{"again", with(func(id *idem.Identity) { id.Lot, id.Again = "", "019aceee-0000-7000-8000-000000000001" }), goldenWindow, nil,
			"1fff2dbae245fec6634e95e62103bd12c1414e25183161033c70498f75c35720"},
		{"gtin", with(func(id *idem.Identity) { id.NDC, id.Lot, id.GTIN = "", "", "00300937214106" }), goldenWindow, nil,
			"b7ff11b0912d504d11bff712ee75acc86386cb136dd9c705b65c6a1f0e31662e"},
		{"lot A|1", with(func(id *idem.Identity) { id.Lot = "A|1" }), goldenWindow, nil, "8485e44781a51fe778af35267b8d894608080d2794863d6eaa9b4d2b21c80daa"},
		{"window -1", with(same), -1, nil, "12f4bcf2aebc278f2c4d4667a0141f3239ee7543b96f7d04ad94c686072e31bb"},
	} {
		p := window.Default(c.id.Type)
		k := c.id.KeysAt(p, c.window, c.boundary)
		got, want := k.Idem, "scan:idem:"+c.want
		t1 := p.Start(c.window) + 1500 // mid-window: no edge
		if c.boundary != nil {
			got, want = k.Edge, "scan:edge:"+c.want
			t1 = p.Start(*c.boundary)
			if *c.boundary != c.window {
				t1--
			}
		}
		if got.String() != want {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
		// The same from an instant, as a live scan gets it.
		if live := c.id.Keys(p, t1); live != k {
			t.Errorf("%s: at %s %+v, want %+v", c.name, t1, live, k)
		}
		if parsed, err := idem.ParseKey(want); err != nil || parsed != got {
			t.Errorf("%s: parsed as %v, %v", c.name, parsed, err)
		}
	}
}

func TestMaterial(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*idem.Identity)
		p      window.Policy
		want   string
	}{
		{"plain", func(id *idem.Identity) {}, threeSeconds, `F|S|N|L|1|dispense|7`},
		{"empty fields", func(id *idem.Identity) { id.NDC, id.Lot = "", "" }, threeSeconds, `F|S|||1|dispense|7`},
		{"bar", func(id *idem.Identity) { id.Lot = "A|1" }, threeSeconds, `F|S|N|A\p1|1|dispense|7`},
		{"backslash", func(id *idem.Identity) { id.Lot = `A\1` }, threeSeconds, `F|S|N|A\\1|1|dispense|7`},
		{"escaped text", func(id *idem.Identity) { id.Lot = `A\p1` }, threeSeconds, `F|S|N|A\\p1|1|dispense|7`},
		{"everywhere", func(id *idem.Identity) { id.Facility, id.Scanner, id.NDC, id.Lot = "|", `\`, `|\`, `\|` }, threeSeconds, `\p|\\|\p\\|\\\p|1|dispense|7`},
		{"extra escaped", func(id *idem.Identity) { id.Serial = `a|b\c=d` }, threeSeconds, `F|S|N|L|1|dispense|7|serial=a\pb\\c=d`},
		{"order of extras", func(id *idem.Identity) { id.Again, id.Serial, id.HIBC, id.GTIN = "5", "3", "2", "1" },
			window.Policy{Width: 5 * time.Second, Guard: time.Second}, `F|S|N|L|1|dispense|7|gtin=1|hibc=2|serial=3|w=5000|again=5`},
		{"guard is not in it", func(id *idem.Identity) {}, window.Policy{Width: 3 * time.Second, Guard: time.Second}, `F|S|N|L|1|dispense|7`},
		{"w of receive", func(id *idem.Identity) { id.Type = window.Receive }, threeSeconds, `F|S|N|L|1|receive|7|w=3000`},
		{"default of receive", func(id *idem.Identity) { id.Type = window.Receive }, shortWindow, `F|S|N|L|1|receive|7`},
		{"quantity", func(id *idem.Identity) { id.Quantity = 9999 }, threeSeconds, `F|S|N|L|9999|dispense|7`},
	} {
		id := idem.Identity{Facility: "F", Scanner: "S", NDC: "N", Lot: "L", Quantity: 1, Type: window.Dispense}
		c.change(&id)
		got := string(id.AppendMaterial(nil, c.p, 7))
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		_, extras, _ := strings.Cut(got+"|", "|7|")
		if want := strings.TrimSuffix(extras, "|"); id.Extras(c.p) != want {
			t.Errorf("%s: extras %q, want %q", c.name, id.Extras(c.p), want)
		}
		// The edge key hashes the same, with edge| in front and the boundary for the index.
		b := window.Index(7)
		if got, want := id.KeysAt(c.p, 3, &b).Edge.Hash, sha256.Sum256([]byte("edge|"+c.want)); got != want {
			t.Errorf("%s: edge key is not the hash of edge|%s", c.name, c.want)
		}
	}
}

// For plain values the key is the plain join's, byte for byte.
func TestPlainValuesKeepThePlainRecipe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[A-Za-z0-9 /._-]{0,20}`)
		id := idem.Identity{Facility: text.Draw(t, "facility"), Scanner: text.Draw(t, "scanner"), NDC: text.Draw(t, "ndc"),
			Lot: text.Draw(t, "lot"), Quantity: rapid.IntRange(1, 9999).Draw(t, "quantity"),
			Type: rapid.SampledFrom(window.ScanTypes()).Draw(t, "type")}
		i := rapid.Int64().Draw(t, "window")
		if got, want := id.KeysAt(window.Default(id.Type), window.Index(i), nil).Idem.String(), seedKey(id, i); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}

// Pairs over a window boundary, at every millisecond phase: the plain key differs and counts the movement
// twice; one of our two keys is common. Movements a window or more apart have none in common.
func TestStraddlingPairsAtEveryPhase(t *testing.T) {
	for _, c := range []struct {
		name string
		p    window.Policy
		typ  window.ScanType
	}{
		{"3000/500", threeSeconds, window.Dispense},
		{"400/200", shortWindow, window.Receive},
		{"largest guard", window.Policy{Width: 60 * time.Millisecond, Guard: 30 * time.Millisecond}, window.Dispense},
	} {
		t.Run(c.name, func(t *testing.T) {
			id := plain()
			id.Type = c.typ
			w, g := int(c.p.Width.Milliseconds()), int(c.p.Guard.Milliseconds())
			start := c.p.Start(goldenWindow)
			span := w + 2*w + 2*g + 1
			keys, seeds := make([]idem.Keys, span), make([]string, span)
			for i := range keys {
				at := start + window.UTC(i)
				keys[i], seeds[i] = id.Keys(c.p, at), seedKey(id, int64(at)/int64(w))
			}
			straddling, seedMissed, missed, swallowed := 0, 0, 0, 0
			for phase := range w {
				for d := 0; d <= g; d++ {
					if !share(keys[phase], keys[phase+d]) {
						missed++
					}
					if phase+d >= w {
						straddling++
						if seeds[phase] != seeds[phase+d] {
							seedMissed++
						}
					}
				}
				for d := w; d <= 2*w+2*g; d++ { // W+G, a shared scanner's distance, is among them
					if share(keys[phase], keys[phase+d]) {
						swallowed++
					}
				}
			}
			if straddling != g*(g+1)/2 || seedMissed != straddling {
				t.Errorf("the plain way misses %d of %d straddling pairs, want all %d", seedMissed, straddling, g*(g+1)/2)
			}
			if missed != 0 || swallowed != 0 {
				t.Errorf("%d pairs counted twice, %d movements swallowed, want 0 and 0", missed, swallowed)
			}
		})
	}
}

// How often the plain way counts a bounce twice: d/W of the pairs d apart.
func TestPlainKeysMissAShareOfBounces(t *testing.T) {
	id := plain()
	for _, c := range []struct{ apart, want int }{{50, 50}, {500, 500}} {
		missed := 0
		for phase := range 3000 {
			if seedKey(id, int64(phase/3000)) != seedKey(id, int64((phase+c.apart)/3000)) {
				missed++
			}
		}
		if missed != c.want {
			t.Errorf("%d ms apart: %d of 3000 phases missed, want %d", c.apart, missed, c.want)
		}
	}
}

func TestTwoSerializedBottlesOfOneLot(t *testing.T) {
	first, second := plain(), plain()
	first.Serial, second.Serial = "SN0001", "SN0002"
	if seedKey(first, goldenWindow) != seedKey(second, goldenWindow) {
		t.Fatal("the plain way tells the bottles apart: the test shows nothing")
	}
	at := threeSeconds.Start(goldenWindow) // in the guard zone, so that both keys count
	if share(first.Keys(threeSeconds, at), second.Keys(threeSeconds, at)) {
		t.Error("two bottles with serials of their own share a key")
	}
	if !share(first.Keys(threeSeconds, at), first.Keys(threeSeconds, at-1)) {
		t.Error("one bottle's straddling pair shares no key")
	}
}

func TestFieldsDoNotRunIntoEachOther(t *testing.T) {
	a, b := plain(), plain()
	a.NDC, a.Lot = "N", "A|1"
	b.NDC, b.Lot = "N|A", "1"
	if seedKey(a, 0) != seedKey(b, 0) {
		t.Fatal("the plain way tells them apart: the test shows nothing")
	}
	if share(a.Keys(threeSeconds, 0), b.Keys(threeSeconds, 0)) {
		t.Error("lot A|1 of N and lot 1 of N|A share a key")
	}
}

func TestFloorBeforeTheEpoch(t *testing.T) {
	id := plain()
	before, after := int64(-2999), int64(2999)
	if seedKey(id, before/3000) != seedKey(id, after/3000) {
		t.Fatal("truncation tells them apart: the test shows nothing")
	}
	a, b := id.Keys(threeSeconds, window.UTC(before)), id.Keys(threeSeconds, window.UTC(after))
	if a.Window != -1 || b.Window != 0 || share(a, b) {
		t.Errorf("two movements 5998 ms apart: windows %d and %d, share a key: %v", a.Window, b.Window, share(a, b))
	}
	if !share(id.Keys(threeSeconds, -1), id.Keys(threeSeconds, 0)) {
		t.Error("a pair over the epoch shares no key")
	}
}

// tinyLedger takes a row if none of its keys is there.
type tinyLedger []idem.Keys

func (l *tinyLedger) insert(k idem.Keys) {
	if !slices.ContainsFunc(*l, func(o idem.Keys) bool { return share(o, k) }) {
		*l = append(*l, k)
	}
}

// Two movements, each accepted once to three times within the guard, at all phases and distances, replayed
// in every order: each is one row.
func TestEveryOrderOfInsertion(t *testing.T) {
	for _, c := range []struct{ w, g int }{{6, 3}, {4, 2}, {6, 1}} {
		p := window.Policy{Width: time.Duration(c.w) * time.Millisecond, Guard: time.Duration(c.g) * time.Millisecond}
		id := plain()
		keys := map[int]idem.Keys{}
		at := func(t int) idem.Keys {
			if _, ok := keys[t]; !ok {
				keys[t] = id.Keys(p, window.UTC(t))
			}
			return keys[t]
		}
		configs, bad := 0, 0
		for phase := -c.w; phase < c.w; phase++ {
			for _, first := range acceptances(phase, c.g, 3) {
				for apart := c.w; apart <= 2*c.w+c.g; apart++ {
					for _, second := range acceptances(slices.Max(first)+apart, c.g, 2) {
						var all []idem.Keys
						for _, t := range append(slices.Clone(first), second...) {
							all = append(all, at(t))
						}
						permute(all, 0, func() {
							configs++
							var l tinyLedger
							for _, k := range all {
								l.insert(k)
							}
							if len(l) != 2 {
								bad++
							}
						})
					}
				}
			}
		}
		if bad != 0 || configs < 1000 {
			t.Errorf("W=%d G=%d: %d of %d runs do not end with one row a movement", c.w, c.g, bad, configs)
		}
	}
}

// acceptances lists the ways to accept a movement 1 to n times, first at t and all within g.
func acceptances(t, g, n int) [][]int {
	out := [][]int{{t}}
	for i := 0; i < len(out); i++ {
		if a := out[i]; len(a) < n {
			for next := a[len(a)-1]; next <= t+g; next++ {
				out = append(out, append(slices.Clone(a), next))
			}
		}
	}
	return out
}

func permute(list []idem.Keys, from int, visit func()) {
	if from == len(list) {
		visit()
		return
	}
	for i := from; i < len(list); i++ {
		list[from], list[i] = list[i], list[from]
		permute(list, from+1, visit)
		list[from], list[i] = list[i], list[from]
	}
}

// identities draws two identities whose fields are cut from one text, so that a careless join makes
// them equal.
func identities(t *rapid.T) (a, b idem.Identity) {
	pieces := rapid.SliceOfN(rapid.SampledFrom([]string{"|", "|", `\`, "p", "A", "1", "=", "gtin=", "serial=", "edge"}), 8, 20).Draw(t, "pieces")
	cut := func(label string) idem.Identity {
		at := rapid.SliceOfN(rapid.IntRange(0, len(pieces)), 8, 8).Draw(t, label)
		slices.Sort(at)
		part := func(i int) string { // a cut at a bar takes the bar as the separator
			from := 0
			if i > 0 {
				from = at[i-1]
				if from < at[i] && pieces[from] == "|" {
					from++
				}
			}
			return strings.Join(pieces[from:at[i]], "")
		}
		return idem.Identity{Facility: part(0), Scanner: part(1), NDC: part(2), Lot: part(3), GTIN: part(4), HIBC: part(5),
			Serial: part(6), Again: part(7), Quantity: rapid.IntRange(1, 11).Draw(t, label+" quantity"),
			Type: rapid.SampledFrom(window.ScanTypes()).Draw(t, label+" type")}
	}
	return cut("first"), cut("second")
}

// No two different identities, windows or widths are hashed as the same text, nor an idempotency key's and
// an edge key's.
func TestMaterialIsInjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := identities(t)
		index := rapid.IntRange(-2, 12)
		width := rapid.SampledFrom([]window.Policy{threeSeconds, shortWindow})
		ai, bi := window.Index(index.Draw(t, "first window")), window.Index(index.Draw(t, "second window"))
		ap, bp := width.Draw(t, "first width"), width.Draw(t, "second width")
		if rapid.Bool().Draw(t, "same tail") {
			b.Quantity, b.Type, bi, bp = a.Quantity, a.Type, ai, ap
		}
		am, bm := string(a.AppendMaterial(nil, ap, ai)), string(b.AppendMaterial(nil, bp, bi))
		if (am == bm) != (a == b && ai == bi && ap == bp) {
			t.Fatalf("%+v and %+v are hashed as %q and %q", a, b, am, bm)
		}
		if am == "edge|"+bm {
			t.Fatalf("an idempotency key's text %q is an edge key's", am)
		}
	})
}

func TestPhysicalKey(t *testing.T) {
	base := idem.PhysicalKey("SCN-04", []byte("]d201003"))
	if base.Kind != idem.Physical || base.IsZero() || !strings.HasPrefix(base.String(), "phys:") {
		t.Errorf("physical key %v", base)
	}
	if base != idem.PhysicalKey("SCN-04", []byte("]d201003")) {
		t.Error("the same scan has two physical keys")
	}
	for _, other := range []idem.Key{
		idem.PhysicalKey("SCN-05", []byte("]d201003")),
		idem.PhysicalKey("SCN-04", []byte("]d201004")),
		idem.PhysicalKey("SCN-04|]d2", []byte("01003")),
		idem.PhysicalKey("SCN-04]d2", []byte("01003")),
	} {
		if other == base {
			t.Error("another scanner or text has the same physical key")
		}
	}
	if idem.PhysicalKey("a|b", []byte("c")) == idem.PhysicalKey("a", []byte("b|c")) {
		t.Error("scanner and text run into each other")
	}
}

func TestKeysDoNotAllocate(t *testing.T) {
	id := plain()
	id.Serial, id.Again = "SN|0001", "019aceee-0000-7000-8000-000000000001"
	at := threeSeconds.Start(goldenWindow) // with an edge key
	var k idem.Keys
	if n := testing.AllocsPerRun(100, func() { k = id.Keys(threeSeconds, at) }); n != 0 {
		t.Errorf("Keys allocates %v times", n)
	}
	if k.Edge.IsZero() {
		t.Error("no edge key at a boundary")
	}
	element := []byte("]d2010030093721410617280228101A1207")
	if n := testing.AllocsPerRun(100, func() { k.Idem = idem.PhysicalKey("SCN-04", element) }); n != 0 {
		t.Errorf("PhysicalKey allocates %v times", n)
	}
}

func BenchmarkKeys(b *testing.B) {
	id := plain()
	at := threeSeconds.Start(goldenWindow) + 1500
	b.ReportAllocs()
	for b.Loop() {
		id.Keys(threeSeconds, at)
	}
}

func TestParseKeyRefuses(t *testing.T) {
	good := "scan:idem:" + strings.Repeat("0a", 32)
	if _, err := idem.ParseKey(good); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"", "scan:idem:", good[:73], good + "0", "idem:" + good[10:], "scan:edge" + good[9:73] + "x", strings.Replace(good, "0a", "0g", 1), " " + good, good + "\n"} {
		if k, err := idem.ParseKey(s); err == nil || !strings.HasPrefix(err.Error(), "cannot ") || !k.IsZero() {
			t.Errorf("ParseKey(%q) = %v, %v", s, k, err)
		}
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add("scan:idem:fc903c16bc08bcdbfbcc79c7d1ab181a19617bca675ecd8adc447d37e1231021")
	f.Add("scan:edge:FC903C16BC08BCDBFBCC79C7D1AB181A19617BCA675ECD8ADC447D37E1231021")
	f.Add("scan:idem:")
	f.Fuzz(func(t *testing.T, s string) {
		k, err := idem.ParseKey(s)
		if err != nil {
			if k != (idem.Key{}) {
				t.Errorf("%q: a key with an error", s)
			}
			return
		}
		if k.Kind != idem.Idem && k.Kind != idem.Edge || k.String() != s[:10]+strings.ToLower(s[10:]) {
			t.Errorf("%q is read as %s", s, k)
		}
	})
}

func TestEventID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := window.UTC(rapid.Int64Range(0, 1<<48-2).Draw(t, "t"))
		random := [10]byte(rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "random"))
		other := [10]byte(rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "other"))
		e := idem.NewEventID(at, random)
		if e[6]>>4 != 7 || e[8]>>6 != 2 {
			t.Fatalf("%s: version %d, variant %d, want 7 and 2", e, e[6]>>4, e[8]>>6)
		}
		ms := int64(0)
		for _, b := range e[:6] {
			ms = ms<<8 | int64(b)
		}
		if ms != int64(at) {
			t.Fatalf("%s holds %d ms, want %d", e, ms, at)
		}
		// All other bits are random bits.
		if e[6]&0x0f != random[0]&0x0f || e[7] != random[1] || e[8]&0x3f != random[2]&0x3f || !slices.Equal(e[9:], random[3:]) {
			t.Fatalf("%s does not hold the random bits %x", e, random)
		}
		later := idem.NewEventID(at+1, other)
		if slices.Compare(e[:], later[:]) >= 0 || e.String() >= later.String() {
			t.Fatalf("%s, a millisecond later %s: not in order", e, later)
		}
		back, err := idem.ParseEventID(e.String())
		if err != nil || back != e {
			t.Fatalf("%s is read as %s, %v", e, back, err)
		}
		text, _ := e.MarshalText()
		var u idem.EventID
		if err := u.UnmarshalText(text); err != nil || u != e || string(text) != e.String() {
			t.Fatalf("%s as text: %s, %v", e, text, err)
		}
	})
	if got, want := idem.NewEventID(0x0123456789ab, [10]byte{0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7}).String(), "01234567-89ab-7fff-bf01-020304050607"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func FuzzParseEventID(f *testing.F) {
	f.Add("019aceee-0000-7000-8000-000000000001")
	f.Add("019ACEEE-0000-7000-8000-00000000000F")
	f.Add("019aceee00007000800000000000000000001")
	f.Fuzz(func(t *testing.T, s string) {
		e, err := idem.ParseEventID(s)
		if err != nil {
			if !e.IsZero() || !strings.HasPrefix(err.Error(), "cannot ") {
				t.Errorf("%q: %s, %v", s, e, err)
			}
			return
		}
		if e.String() != strings.ToLower(s) {
			t.Errorf("%q is read as %s", s, e)
		}
	})
}
