package capture

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"scanonce/device"
)

// licences are made up, in the layouts of several issuers and of all versions of the standard.
func licences() map[string]string {
	fields := func(sep string, lines ...string) string { return strings.Join(lines, sep) }
	out := map[string]string{
		"before 2000, FS":     "@\n\x1c\rANSI 6360050101DL00270153ZS01800009DLDAQ902233445\nDAASAMPLE,ZORA,QUILL\nDAG77 MADEUP LANE\nDAICOLUMBIA\nDAJSC\nDAK29201     \nDBA20120101\nDBB19600101\r\x1d",
		"version 1":           "@\n\x1e\rANSI 6360000102DL00390187ZV02260031DLDAQT55512345\nDAASAMPLE,ZORA,QUILL\nDAG77 MADEUP LANE\nDAIRICHMOND\nDAJVA\nDAK232200000  \nDBB19600101\rZVZVAUNK\r",
		"AAMVA for ANSI":      "@\n\x1c\rAAMVA36000102DL00280190DLDAQT55512345\nDABSAMPLE\nDACZORA\nDBB19600101\r",
		"LF and RS the other": "@\x1e\n\rANSI 636001040002DL00410392ZN04330047DLDCANONE\nDCBNONE\nDAQ555123456\nDCSSAMPLE\nDCTZORA QUILL\nDBB01011960\rZNZNAMDY1\r",
		"several subfiles":    "@\n\x1e\rANSI 636026080103DL00510288ZA03390015ID03540040DLDAQD55512345\nDCSSAMPLE\nDACZORA\rZAZAAN\nZABN\rIDDAQD55512345\nDBB01011960\r",
	}
	for v := 2; v <= 10; v++ {
		out[fmt.Sprintf("version %d", v)] = fmt.Sprintf("@\n\x1e\rANSI 636014%02d0002DL00410278ZC03190008DL", v) + fields("\n",
			"DAQY5551234", "DCSSAMPLE", "DDEN", "DACZORA", "DDFN", "DADQUILL", "DBB01011960", "DAG77 MADEUP LANE", "DAH", "DAISACRAMENTO", "DAJCA", "DAK958140000  ", "DCF01/01/202055512/ABFD/30", "DCGUSA") + "\rZCZCABRO\nZCBBLK\nZCC\nZCD\r"
	}
	return out
}

// frames cuts what a device sends as its framing does; it comes in pieces of some bytes.
func frames(t testing.TB, framing device.Framing, sent string, piece int) []string {
	t.Helper()
	f, err := device.NewFramer(framing)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for p := range slices.Chunk([]byte(sent), piece) {
		for len(p) > 0 {
			m, n, ok := f.Next(p)
			if p = p[n:]; ok {
				if m.Fault != "" {
					t.Fatalf("%s: %s", framing, m.Fault)
				}
				out = append(out, string(m.Data))
			}
		}
	}
	return out
}

// sentBy is what a device with a framing sends of data.
func sentBy(framing device.Framing, data string) string {
	switch framing {
	case device.LF:
		return data + "\n"
	case device.CRLF:
		return data + "\r\n"
	case device.STXETX, device.ACKNAK:
		return "\x02" + data + "\x03"
	}
	return data + "\r"
}

// In every framing and at every speed all frames of a document are dropped, one of them begins it, and what
// is scanned next passes.
func TestNoFrameOfADocumentPasses(t *testing.T) {
	next := []string{"300937214106", "]E00300937214106", "]d201003009372141061727113010ALOT", "0100300937214106" + "17271130", hibcText("+A999TESTPRD11"), "SCANONCE-MODE-RETURN", "02300937214106", "020100300937214106" + "17271130"}
	for name, text := range licences() {
		for _, framing := range device.Framings() {
			for _, id := range []string{"", "]L2", "]L0"} {
				for _, perByte := range []time.Duration{0, 87 * time.Microsecond, time.Millisecond, 16 * time.Millisecond, 33 * time.Millisecond} {
					for piece := 1; piece <= 64; piece += 21 {
						var b Burst
						now, opened := time.Hour, 0
						for i, data := range frames(t, framing, sentBy(framing, id+text), piece) {
							now += time.Duration(len(data)+1) * perByte
							if !b.Absorb([]byte(data), now) {
								t.Fatalf("%s, %s, %v a byte: frame %d %q passed", name, framing, perByte, i, data)
							}
							if b.Opened() {
								opened++
							}
						}
						if opened != 1 {
							t.Fatalf("%s, %s, %v a byte: told %d times", name, framing, perByte, opened)
						}
						for _, scan := range next {
							if c := b; c.Absorb([]byte(scan), now+time.Millisecond) {
								t.Fatalf("%s, %s: %q behind it was swallowed", name, framing, scan)
							}
						}
						for _, scan := range []string{"SHELF 12", "R1234567020001", "1234567,0123456"} {
							if c := b; c.Absorb([]byte(scan), now+burstSilence+time.Duration(len(scan)+1)*burstPerByte) {
								t.Fatalf("%s, %s: %q a moment later was swallowed", name, framing, scan)
							}
						}
					}
				}
			}
		}
	}
}

// A message that breaks off within a document leaves a rest that says nothing of what it is.
func TestTheRestOfABrokenLineIsDropped(t *testing.T) {
	lines := strings.FieldsFunc(licence, func(c rune) bool { return c == '\r' || c == '\n' })
	for i := 2; i < len(lines); i++ {
		for cut := 1; cut < len(lines[i]); cut++ {
			var b Burst
			now := time.Hour
			for _, line := range lines[:i] {
				now += time.Duration(len(line)) * time.Millisecond
				if !b.Absorb([]byte(line), now) {
					t.Fatalf("%q passed", line)
				}
			}
			b.Broken(cut, now+time.Duration(cut)*time.Millisecond)
			now += 2 * time.Second // the silence that broke it
			if c := b; c.Absorb([]byte("]E00300937214106"), now) {
				t.Fatalf("a drug carrier's frame behind half of %q was swallowed", lines[i])
			}
			if rest := lines[i][cut:]; !b.Absorb([]byte(rest), now) {
				t.Fatalf("%q, the rest of %q, passed", rest, lines[i])
			}
			if b.Absorb([]byte("SHELF 12"), now+time.Second) {
				t.Fatalf("the next scan behind the rest of %q was swallowed", lines[i])
			}
		}
	}
	// Without a document a broken message changes nothing.
	var b Burst
	b.Broken(20, time.Minute)
	if b.Absorb([]byte("SHELF 12"), time.Minute+time.Millisecond) {
		t.Error("a scan behind a broken one was swallowed")
	}
}

// A device that passes on the reports of one long scan one by one shatters a document at every 56th byte.
func TestReportsOfADocumentAreDropped(t *testing.T) {
	for name, text := range licences() {
		for _, size := range []int{56, 62} {
			var b Burst
			now := time.Hour
			for p := range slices.Chunk([]byte(text), size) {
				now += 8 * time.Millisecond
				if !b.Absorb(p, now) {
					t.Fatalf("%s: report %q passed", name, p)
				}
			}
			if b.Absorb([]byte("]E00300937214106"), now+8*time.Millisecond) {
				t.Fatalf("%s: the next scan was swallowed", name)
			}
		}
	}
}

func TestEachDocumentBeginsOnce(t *testing.T) {
	var b Burst
	now := time.Hour
	for i := range 3 {
		opened := 0
		for _, line := range strings.FieldsFunc(licence, func(c rune) bool { return c == '\r' || c == '\n' }) {
			now += time.Duration(len(line)) * time.Millisecond
			if !b.Absorb([]byte(line), now) {
				t.Fatalf("%q passed", line)
			}
			if b.Opened() {
				opened++
			}
		}
		if opened != 1 {
			t.Errorf("document %d is told %d times", i, opened)
		}
		now += 2 * time.Second
	}
}

// What is read of a card's magnetic stripe is a document as well.
func TestMagneticStripes(t *testing.T) {
	for _, track := range []string{"%CASACRAMENTO^SAMPLE$ZORA$QUILL^77 MADEUP LANE^?", ";636014055512345=200119600101?", "%B4111111111111111^SAMPLE/ZORA^2512101000000?", ";4111111111111111=25121010000?"} {
		if _, r := decode(t, track+"\r"); r.Kind != IDDocument {
			t.Errorf("%q: %v", track, r)
		}
		var b Burst
		if !b.Absorb([]byte(track), time.Hour) || !b.Opened() || !b.Absorb([]byte("#\"958140000 C M600"), time.Hour+20*time.Millisecond) {
			t.Errorf("%q passed, or the track behind it", track)
		}
	}
	for _, in := range []string{"%A1207", ";12", "%^", "%?^", ";1234567=", "]C0;A12345678="} {
		if _, r := decode(t, in); r.Kind == IDDocument {
			t.Errorf("%q is taken for a card", in)
		}
	}
}

func TestSymbology(t *testing.T) {
	for in, want := range map[string]string{"]L2@\n": "]L2", "\x02]L0@\x1e": "]L0", "02]L2@": "]L2", "@\n\x1e\rANSI 636000": "", "": "", "]L": "", "]Jo Smith": "", "]\x001": "", "]12": "", "4": ""} {
		if got := Symbology([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
