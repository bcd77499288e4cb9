package device

// FeedbackOf returns what a family of scanners is sent for its tones, by the name of the profile. What a public source
// does not tell is empty.
func FeedbackOf(profile string) (f Feedback, ok bool) {
	f, ok = feedbacks()[profile]
	return f, ok
}

// FeedbackProfiles are the names of the profiles.
func FeedbackProfiles() []string { return []string{"zebra-ssi", "honeywell-host-ack", "datalogic"} }

func feedbacks() map[string]Feedback {
	return map[string]Feedback{
		// BEEP, opcode E6 (Zebra DS8108 Product Reference Guide, table 5-1), in a packet of SSI. Codes: 0 one short high
		// beep, 1 two, 6 two short low ones (Symbol MK1000 Product Reference Guide, table 5-8). The scanner answers it.
		"zebra-ssi": {Good: ssiPacket(ssiBeep, 0), Duplicate: ssiPacket(ssiBeep, 1), Reject: ssiPacket(ssiBeep, 6)},
		// Host ACK (Honeywell Xenon 1900GHD User's Guide, page 3-38; Honeywell 2020 User's Guide, pages 2-12 and 2-13): the
		// scanner is silent until it gets an escape string, which a comma ends; 7 tells success, 8 failure, 5 and 4 are a
		// medium and a low tone. Without any within 10 s it beeps three times, and sends nothing again.
		"honeywell-host-ack": {Good: []byte("\x1b7,"), Duplicate: []byte("\x1b5\x1b4,"), Reject: []byte("\x1b8,")},
		// A good-read beep (Datalogic QD 2300 reference manual, host commands); no public source names another tone.
		"datalogic": {Good: []byte{0x01}},
	}
}

// Or is f, and what it lacks as in other.
func (f Feedback) Or(other Feedback) Feedback {
	for _, x := range []struct{ mine, theirs *[]byte }{{&f.Good, &other.Good}, {&f.Duplicate, &other.Duplicate}, {&f.Reject, &other.Reject}} {
		if len(*x.mine) == 0 {
			*x.mine = *x.theirs
		}
	}
	return f
}
