package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

const gs = "\x1d"

// Item is one bottle as its label shows it.
type Item struct {
	NDC    string // hyphenated, as a directory lists it
	GTIN   string // 14 digits
	Serial string // "" on a linear code
	Expiry string // YYMMDD, "" on a linear code
	Lot    string // "" on a linear code
	Data   string // as a scanner sends it, with its AIM identifier, without framing
}

// Workload makes items as they pass over a pharmacy counter: most carry the DataMatrix that the DSCSA
// (21 U.S.C. 360eee) asks for, some only a UPC-A. Items of one workload differ in what their labels say, so
// that each is a movement of its own whatever the window.
type Workload struct {
	rnd     *rand.Rand
	serials map[string]bool
	ndcs    map[string]bool
}

// NewWorkload makes a workload; equal seeds give equal items.
func NewWorkload(seed uint64) *Workload {
	return &Workload{
		rnd:     rand.New(rand.NewPCG(seed, 0x5ca9)),
		serials: map[string]bool{},
		ndcs:    map[string]bool{},
	}
}

// labelers are the first segments of the three layouts of an NDC-10.
var labelers = [...]struct {
	code          string
	product, pack int // digits of the other segments
}{
	{"0093", 4, 2}, {"0378", 4, 2}, {"0406", 4, 2}, {"0904", 4, 2},
	{"68180", 3, 2}, {"65862", 3, 2}, {"16714", 3, 2}, {"60505", 3, 2},
	{"59762", 4, 1}, {"49884", 4, 1}, {"33342", 4, 1}, {"50090", 4, 1},
}

// lotLetters leave out what is taken for a digit.
const lotLetters = "ABCDEFGHJKLMNPRSTUVWXYZ"

// oneLinearIn is how many items there are to one with a linear code only.
const oneLinearIn = 5

// Next returns the next item.
func (w *Workload) Next() Item {
	if w.rnd.IntN(oneLinearIn) == 0 {
		return w.upc()
	}
	return w.dataMatrix()
}

// upc returns a UPC-A as readers send it under ]E0: thirteen digits, the first a zero. Nothing but the
// package tells such items apart.
func (w *Workload) upc() Item {
	ndc, gtin := w.product()
	return Item{NDC: ndc, GTIN: gtin, Data: "]E0" + gtin[1:]}
}

func (w *Workload) dataMatrix() Item {
	ndc, gtin := w.product()
	it := Item{
		NDC:    ndc,
		GTIN:   gtin,
		Expiry: fmt.Sprintf("%02d%02d%02d", 28+w.rnd.IntN(4), 1+w.rnd.IntN(12), 1+w.rnd.IntN(28)),
		Lot:    fmt.Sprintf("%c%04d", lotLetters[w.rnd.IntN(len(lotLetters))], w.rnd.IntN(10000)),
	}
	for it.Serial == "" || w.serials[it.Serial] {
		it.Serial = fmt.Sprintf("SN%010d", w.rnd.Int64N(1e10))
	}
	w.serials[it.Serial] = true
	it.Data = "]d2" + "01" + it.GTIN + "21" + it.Serial + gs + "17" + it.Expiry + "10" + it.Lot
	return it
}

// product makes up a package that no item of this workload has yet.
func (w *Workload) product() (ndc, gtin string) {
	for ndc == "" || w.ndcs[ndc] {
		l := labelers[w.rnd.IntN(len(labelers))]
		ndc = fmt.Sprintf("%s-%0*d-%0*d", l.code, l.product, w.rnd.IntN(pow10(l.product)), l.pack, w.rnd.IntN(pow10(l.pack)))
	}
	w.ndcs[ndc] = true
	return ndc, GTIN(0, strings.ReplaceAll(ndc, "-", ""))
}

func pow10(n int) int {
	p := 1
	for range n {
		p *= 10
	}
	return p
}

// GTIN returns the GTIN-14 of a package: the indicator digit, 03 for a US drug, the NDC's ten digits and
// the check digit (GS1 General Specifications, 7.9).
func GTIN(indicator int, ndc10 string) string {
	body := fmt.Sprintf("%d03%s", indicator, ndc10)
	return body + string(CheckDigit(body))
}

// CheckDigit returns the GS1 modulo 10 check digit that follows digits: weights 3 and 1 from the right.
func CheckDigit(digits string) byte {
	sum, weight := 0, 3
	for i := len(digits) - 1; i >= 0; i-- {
		sum += int(digits[i]-'0') * weight
		weight = 4 - weight
	}
	return byte('0' + (10-sum%10)%10)
}

// Step is one transmission of a run.
type Step struct {
	After      time.Duration // from the transmission before
	Data       string        // without framing
	Retransmit bool          // the label was sent before: this is no movement of its own
	Straddle   bool          // typed just behind a window boundary, its first transmission just before it
	NDC        string        // hyphenated, "" if not known
}

// Steps makes n movements of which some are sent again at once, as by a bouncing trigger, some of those over
// a window boundary. Movements have no After of their own: the pace is the caller's.
func (w *Workload) Steps(n, retransmits, straddles int) ([]Step, error) {
	switch {
	case n < 1:
		return nil, fmt.Errorf("cannot simulate %d scans: write 1 or more", n)
	case retransmits < 0 || retransmits > n:
		return nil, fmt.Errorf("cannot send %d of %d scans again: write 0 to %d retransmits", retransmits, n, n)
	case straddles < 0 || straddles > retransmits:
		return nil, fmt.Errorf("cannot send %d of %d retransmits over a boundary: write 0 to %d straddles", straddles, retransmits, retransmits)
	}
	again := make([]bool, n)
	for _, i := range w.rnd.Perm(n)[:retransmits] {
		again[i] = true
	}
	var steps []Step
	for i := range n {
		it := w.Next()
		steps = append(steps, Step{Data: it.Data, NDC: it.NDC})
		if again[i] {
			steps = append(steps, Step{
				After: time.Duration(50+w.rnd.IntN(351)) * time.Millisecond,
				Data:  it.Data, NDC: it.NDC, Retransmit: true, Straddle: straddles > 0,
			})
			straddles = max(0, straddles-1)
		}
	}
	return steps, nil
}

// Printable shows a message with its control characters as their names, for people.
func Printable(data string) string {
	var b strings.Builder
	for _, r := range []byte(data) {
		switch {
		case r == gs[0]:
			b.WriteString("<GS>")
		case r < 0x20 || r > 0x7e:
			fmt.Fprintf(&b, "<%02X>", r)
		default:
			b.WriteByte(r)
		}
	}
	return b.String()
}
