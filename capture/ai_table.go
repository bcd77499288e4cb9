package capture

// aiInfo is what the GS1 General Specifications (figure 3.2-1) and the GS1 Syntax Dictionary, release
// 2026-01-27, say of one application identifier.
type aiInfo struct {
	ai, title string
	set       uint8 // class that every character of the value has
	num       uint8 // digits that the value begins with, for mixed values
	min, max  uint8 // length of the value
	key       uint8 // number of leading digits with a check digit at their end, 0 if none
	flags     aiFlags
	check     checkID
	field     fieldID
	ex        []string // AIs that must not stand beside it; "310n" is a family
	quals     []string // a Digital Link primary key's qualifiers: alternatives, each in order, comma separated

	excluded []uint16 // ex, resolved, both ways
}

type aiFlags uint8

const (
	fixed   aiFlags = 1 << iota // predefined length: no separator follows
	attr                        // may stand in a Digital Link's query
	person                      // may identify a person: refused
	gtinKey                     // the key is a GTIN, which must not be all zeros
	dlKey                       // a Digital Link primary key
)

// fieldID says which field of a Scan an element fills.
type fieldID uint8

const (
	noField fieldID = iota
	fieldGTIN
	fieldITIP
	fieldLot
	fieldSerial
	fieldExpiry
	fieldExpiryTime
)

const (
	maxAIs   = 576
	aiWords  = maxAIs / 64
	noAI     = 0
	maxAILen = 4
)

// aiSet is a set of positions in the table.
type aiSet [aiWords]uint64

func (s *aiSet) has(i uint16) bool { return s[i/64]&(1<<(i%64)) != 0 }
func (s *aiSet) add(i uint16)      { s[i/64] |= 1 << (i % 64) }

// aiTable finds an AI by its digits: the first two give its length, the digits its position in list.
type aiTable struct {
	list  [maxAIs]aiInfo // from 1
	n     int
	size  [100]uint8
	two   [100]uint16
	three [1000]uint16
	four  [10000]uint16
}

var ais = buildAIs()

// find returns the AI that text begins with. size is how many digits an AI with these first two has, 0
// if there is none; i is noAI if the digits name no AI.
func (t *aiTable) find(text []byte) (i uint16, size int) {
	if len(text) < 2 {
		return noAI, 0
	}
	a, b := text[0]-'0', text[1]-'0'
	if a > 9 || b > 9 {
		return noAI, 0
	}
	n := int(a)*10 + int(b)
	size = int(t.size[n])
	switch size {
	case 0:
		return noAI, 0
	case 2:
		return t.two[n], 2
	}
	if len(text) < size {
		return noAI, size
	}
	for _, c := range text[2:size] {
		if c-'0' > 9 {
			return noAI, size
		}
		n = n*10 + int(c-'0')
	}
	if size == 3 {
		return t.three[n], 3
	}
	return t.four[n], 4
}

// exact returns the AI that text is, or noAI.
func (t *aiTable) exact(text []byte) uint16 {
	if i, size := t.find(text); size == len(text) {
		return i
	}
	return noAI
}

func buildAIs() (t aiTable) {
	for _, row := range aiRows {
		for _, info := range expand(row) {
			t.n++
			t.list[t.n] = info
			n := 0
			for _, c := range []byte(info.ai) {
				n = n*10 + int(c-'0')
			}
			t.size[two([]byte(info.ai))] = uint8(len(info.ai))
			switch len(info.ai) {
			case 2:
				t.two[n] = uint16(t.n)
			case 3:
				t.three[n] = uint16(t.n)
			case 4:
				t.four[n] = uint16(t.n)
			}
		}
	}
	for i := 1; i <= t.n; i++ {
		for _, pattern := range t.list[i].ex {
			for j := 1; j <= t.n; j++ {
				if i != j && aiMatches(t.list[j].ai, pattern) {
					t.exclude(i, j)
					t.exclude(j, i)
				}
			}
		}
	}
	return t
}

func (t *aiTable) exclude(i, j int) {
	for _, k := range t.list[i].excluded {
		if int(k) == j {
			return
		}
	}
	t.list[i].excluded = append(t.list[i].excluded, uint16(j))
}

// aiMatches compares with a pattern in which n stands for any digit.
func aiMatches(ai, pattern string) bool {
	if len(ai) != len(pattern) {
		return false
	}
	for i := range len(ai) {
		if pattern[i] != 'n' && pattern[i] != ai[i] {
			return false
		}
	}
	return true
}

// expand turns a row for a range, written "3100-3105", into its AIs.
func expand(row aiInfo) []aiInfo {
	if len(row.ai) <= maxAILen {
		return []aiInfo{row}
	}
	half := len(row.ai) / 2
	from, to := row.ai[:half], row.ai[half+1:]
	var out []aiInfo
	for d := from[half-1]; d <= to[half-1]; d++ {
		row.ai = from[:half-1] + string(d)
		out = append(out, row)
	}
	return out
}
