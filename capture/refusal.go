package capture

// ErrorKind is why a payload was refused, in the words that events, the audit and decode use.
type ErrorKind string

// The error kinds.
const (
	Empty                ErrorKind = "empty"
	UnsupportedSymbology ErrorKind = "unsupported_symbology"
	UnsupportedFormat    ErrorKind = "unsupported_format"
	IDDocument           ErrorKind = "id_document"
	PHI                  ErrorKind = "phi"
	CheckDigit           ErrorKind = "check_digit"
	CheckChar            ErrorKind = "check_char"
	UnknownAI            ErrorKind = "unknown_ai"
	Truncated            ErrorKind = "truncated"
	BadLength            ErrorKind = "bad_length"
	BadCharset           ErrorKind = "bad_charset"
	ControlChar          ErrorKind = "control_char"
	BadDate              ErrorKind = "bad_date"
	BadValue             ErrorKind = "bad_value"
	DuplicateAI          ErrorKind = "duplicate_ai"
	IllegalPair          ErrorKind = "illegal_pair"
	MissingSeparator     ErrorKind = "missing_separator"
	Ambiguous            ErrorKind = "ambiguous"
	Concatenated         ErrorKind = "concatenated"
	ProgrammingCode      ErrorKind = "programming_code"
	BadNDC               ErrorKind = "bad_ndc"
	BadURI               ErrorKind = "bad_uri"
	BadConfig            ErrorKind = "bad_config"
	TooLong              ErrorKind = "too_long"
)

// Refusal is why Decode refused a payload; the zero value is acceptance. Detail is one fixed sentence for
// the person at the counter: what is wrong and what to do. It holds nothing of the payload.
type Refusal struct {
	Kind   ErrorKind
	Detail string
}

// OK says that the payload was accepted.
func (r Refusal) OK() bool { return r.Kind == "" }

// String is the kind and the sentence, or "" for acceptance.
func (r Refusal) String() string {
	if r.OK() {
		return ""
	}
	return string(r.Kind) + ": " + r.Detail
}

func refuse(k ErrorKind, detail string) Refusal { return Refusal{Kind: k, Detail: detail} }

// DocumentRefused is the refusal of a frame that a Burst has dropped.
func DocumentRefused() Refusal { return refuse(IDDocument, detailID) }
