package claimstate

import (
	"fmt"
	"slices"
	"strings"
)

// Node is a claim's place in adjudication.
type Node string

// The nodes. The first six are passed in this order.
const (
	Ingested            Node = "INGESTED"
	Normalized          Node = "NORMALIZED"
	TaxonomyResolved    Node = "TAXONOMY_RESOLVED"
	EligibilityVerified Node = "ELIGIBILITY_VERIFIED"
	PricingCalculated   Node = "PRICING_CALCULATED"
	PAEvaluated         Node = "PA_EVALUATED"
	PAPended            Node = "PA_PENDED" // waits for a prior authorization
	ResponseDispatched  Node = "RESPONSE_DISPATCHED"
)

// transitions are the moves that need no reject code. With one, any node but the last moves to it too.
var transitions = map[Node][]Node{
	Ingested:            {Normalized},
	Normalized:          {TaxonomyResolved},
	TaxonomyResolved:    {EligibilityVerified},
	EligibilityVerified: {PricingCalculated},
	PricingCalculated:   {PAEvaluated},
	PAEvaluated:         {ResponseDispatched, PAPended},
	PAPended:            {PAEvaluated},
	ResponseDispatched:  {},
}

// Valid says that n is a node.
func (n Node) Valid() bool { _, ok := transitions[n]; return ok }

// legal returns an *IllegalMoveError.
func legal(from, to Node, reject string) error {
	illegal := func(why string) error { return &IllegalMoveError{From: from, To: to, Why: why} }
	switch {
	case !from.Valid() || !to.Valid():
		return illegal("one of them is no node")
	case from == ResponseDispatched:
		return illegal("the response is out")
	case reject != "" && to != ResponseDispatched && to != PAPended:
		return illegal("a reject code goes with RESPONSE_DISPATCHED and PA_PENDED only")
	case slices.Contains(transitions[from], to), to == ResponseDispatched && reject != "":
		return nil
	case to == ResponseDispatched:
		return illegal("before PA_EVALUATED it needs a reject code, and so it does from PA_PENDED")
	}
	return illegal("a claim goes from node to node, without skips and not back")
}

// IllegalMoveError says that adjudication has no such move. No store was asked.
type IllegalMoveError struct {
	From, To Node
	Why      string
}

func (e *IllegalMoveError) Error() string {
	from := ""
	if e.From != "" {
		from = " from " + e.From.printable()
	}
	return fmt.Sprintf("cannot move a claim%s to %s: %s", from, e.To.printable(), e.Why)
}

// printable keeps what is no node out of messages: it may be anything.
func (n Node) printable() string {
	if n.Valid() {
		return string(n)
	}
	return "[no node]"
}

// InvalidError says that a value must not reach a store. It does not hold the value.
type InvalidError struct {
	Field string
	Why   string
}

func (e *InvalidError) Error() string { return fmt.Sprintf("cannot keep this %s: %s", e.Field, e.Why) }

// The forms below are read by hand, as they are at every call: regular expressions take a tenth of its time.

// only says that s is 1 to most characters of a kind.
func only(s string, most int, kind func(c byte) bool) bool {
	for i := range len(s) {
		if !kind(s[i]) {
			return false
		}
	}
	return s != "" && len(s) <= most
}

func digit(c byte) bool    { return c >= '0' && c <= '9' }
func capital(c byte) bool  { return c >= 'A' && c <= 'Z' }
func small(c byte) bool    { return c >= 'a' && c <= 'z' }
func hexDigit(c byte) bool { return digit(c) || c >= 'a' && c <= 'f' }

// Token stands for a prescription number (402-D2) under the facility's secret: "rx1.", 8 hex digits that name
// the secret, ".", 32 hex digits.
type Token string

// Validate returns an *InvalidError for anything else, a number itself above all.
func (t Token) Validate() error {
	if len(t) != 45 || t[:4] != "rx1." || t[12] != '.' || !only(string(t[4:12]), 8, hexDigit) || !only(string(t[13:]), 32, hexDigit) {
		return &InvalidError{"rx_ref_token", "it is no token of the form rx1.<8 hex>.<32 hex>; a number or a name does not belong here"}
	}
	return nil
}

// Cost is an amount of money as decimal text, the form of 409-D9 (s9(6)v99): at most six digits, a point, two
// digits, perhaps a minus sign. Equal amounts are equal text. It is never a float.
type Cost string

// Validate returns an *InvalidError for text of another form.
func (c Cost) Validate() error {
	whole, cents, _ := strings.Cut(strings.TrimPrefix(string(c), "-"), ".")
	if !only(whole, 6, digit) || whole[0] == '0' && whole != "0" || len(cents) != 2 || !only(cents, 2, digit) || c == "-0.00" {
		return &InvalidError{"ingredient_cost", `it is no amount like "42.10": at most six digits, a point and two digits`}
	}
	return nil
}

func checkReject(code string) error {
	if !only(code, 3, func(c byte) bool { return digit(c) || capital(c) }) {
		return &InvalidError{"reject_code", "it is not 1 to 3 digits or capital letters, as 511-FB is"}
	}
	return nil
}

// The most digits that a number from outside has: 302-C2 has at most 20 characters, 402-D2 12. What is longer may be a
// hash in which letters are rare.
const numberDigits = 20

// bareNumber says that s is a number, perhaps with separators in it.
func bareNumber(s string) bool {
	digits := 0
	for i := range len(s) {
		switch {
		case digit(s[i]):
			digits++
		case s[i] != '-' && s[i] != '_':
			return false
		}
	}
	return digits > 0 && digits <= numberDigits
}

// cardID says that s is 1 to 3 letters and at least 8 digits behind them, as the ids of insurance cards are.
func cardID(s string) bool {
	letters := 0
	for letters < len(s) && (capital(s[letters]) || small(s[letters])) {
		letters++
	}
	number := s[letters:]
	return letters >= 1 && letters <= 3 && len(number) >= 8 && only(number, numberDigits, digit)
}

// checkID also refuses what may be a prescription or cardholder number.
func checkID(field, id string) error {
	switch {
	case !only(id, 64, func(c byte) bool { return digit(c) || capital(c) || small(c) || c == '_' || c == '-' }):
		return &InvalidError{field, "it is not 1 to 64 of A-Z a-z 0-9 _ -"}
	case bareNumber(id):
		return &InvalidError{field, "it is a bare number; a number from outside does not belong here"}
	case cardID(id):
		return &InvalidError{field, "it looks like the id of a card (302-C2); a number from outside does not belong here"}
	}
	return nil
}

// check finds what a store cannot have been given by this package.
func (s *State) check() error {
	err := checkID("correlation_id", s.CorrelationID)
	if err == nil {
		err = s.RxRefToken.Validate()
	}
	if err == nil {
		err = s.IngredientCost.Validate()
	}
	if err == nil && s.RejectCode != "" {
		err = checkReject(s.RejectCode)
	}
	if err == nil {
		err = checkID("op_id", s.OpID)
	}
	switch {
	case err != nil:
	case !s.Node.Valid():
		err = &InvalidError{"fsm_node", "it is no node"}
	case s.Version < FirstVersion:
		err = &InvalidError{"version", "it is below 1"}
	}
	return err
}
