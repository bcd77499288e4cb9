package capture

import (
	"strconv"
	"strings"

	"scanonce/window"
)

// Verb is what a command barcode asks for.
type Verb uint8

// The verbs.
const (
	CommandNone Verb = iota
	CommandMode
	CommandQuantity
	CommandSameAgain
)

// Command is a command barcode: SCANONCE-MODE-<TYPE>, SCANONCE-QTY-<1…9999> or SCANONCE-SAMEAGAIN, in
// upper-case letters, digits and hyphens so that every symbology can carry it, Code 39 included.
type Command struct {
	Verb     Verb
	Type     window.ScanType // of CommandMode
	Quantity int             // of CommandQuantity
}

const (
	commandPrefix    = "SCANONCE-"
	commandMode      = commandPrefix + "MODE-"
	commandQuantity  = commandPrefix + "QTY-"
	commandSameAgain = commandPrefix + "SAMEAGAIN"
)

// MaxQuantity is the largest quantity of a command or a scan.
const MaxQuantity = 9999

// String is the text of the barcode; "" for no command.
func (c Command) String() string {
	switch c.Verb {
	case CommandMode:
		return commandMode + strings.ToUpper(c.Type.String())
	case CommandQuantity:
		return commandQuantity + strconv.Itoa(c.Quantity)
	case CommandSameAgain:
		return commandSameAgain
	}
	return ""
}

// Commands lists what a command sheet holds: a mode for each scan type, same again, and the quantities.
func Commands(quantities ...int) []Command {
	var all []Command
	for _, t := range window.ScanTypes() {
		all = append(all, Command{Verb: CommandMode, Type: t})
	}
	all = append(all, Command{Verb: CommandSameAgain})
	for _, n := range quantities {
		all = append(all, Command{Verb: CommandQuantity, Quantity: n})
	}
	return all
}

// Title names the command for people, "" for no command.
func (c Command) Title() string {
	switch c.Verb {
	case CommandMode:
		name := c.Type.String()
		return strings.ToUpper(name[:1]) + name[1:]
	case CommandQuantity:
		return "Quantity " + strconv.Itoa(c.Quantity)
	case CommandSameAgain:
		return "Same again"
	}
	return ""
}

// Meaning is one sentence on what scanning the command does, "" for no command.
func (c Command) Meaning() string {
	switch c.Verb {
	case CommandMode:
		return modeMeanings[c.Type]
	case CommandQuantity:
		if c.Quantity == 1 {
			return "The next item scanned counts once; takes back a quantity scanned before."
		}
		return "The next item scanned counts " + strconv.Itoa(c.Quantity) + " times, then each counts once again."
	case CommandSameAgain:
		return "The scan just told as a duplicate is a further item; without one, the next scan is."
	}
	return ""
}

var modeMeanings = map[window.ScanType]string{
	window.Receive:  "Items scanned from now on have come in.",
	window.Dispense: "Items scanned from now on go out to a patient.",
	window.Waste:    "Items scanned from now on are thrown away.",
	window.Return:   "Items scanned from now on come back or go back.",
	window.Adjust:   "Items scanned from now on correct the stock.",
	window.Transfer: "Items scanned from now on go to or come from another site.",
	window.Count:    "Items scanned from now on are counted on the shelf.",
}

const (
	detailCommand     = "This command barcode is not known: print the command sheet again with this version."
	detailCommandCase = "The command barcode arrived in the wrong case: turn Caps Lock off, or have the scanner send the case as it is."
	detailQuantity    = "The quantity must be 1 to 9999: scan another quantity code."
)

// isCommand says that text belongs to the product, in whatever case.
func isCommand(text []byte) bool {
	return len(text) >= len(commandPrefix) && strings.EqualFold(alias(text[:len(commandPrefix)]), commandPrefix)
}

// parseCommand reads exactly the three forms.
func parseCommand(text string) (Command, Refusal) {
	if rest, ok := strings.CutPrefix(text, commandMode); ok {
		for _, t := range window.ScanTypes() {
			if rest == strings.ToUpper(t.String()) {
				return Command{Verb: CommandMode, Type: t}, Refusal{}
			}
		}
	}
	if rest, ok := strings.CutPrefix(text, commandQuantity); ok {
		n, ok := number([]byte(rest))
		if !ok || n > MaxQuantity || rest[0] == '0' {
			return Command{}, refuse(BadValue, detailQuantity)
		}
		return Command{Verb: CommandQuantity, Quantity: n}, Refusal{}
	}
	if text == commandSameAgain {
		return Command{Verb: CommandSameAgain}, Refusal{}
	}
	if text != strings.ToUpper(text) {
		return Command{}, refuse(BadValue, detailCommandCase)
	}
	return Command{}, refuse(BadValue, detailCommand)
}
