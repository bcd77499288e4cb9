package cli

import (
	"context"
	"testing"
	"time"

	"scanonce/internal/sim"
)

// How long the packets of one scan of an SSI scanner may be apart is what its table says: by the default these would
// be one scan.
func TestRetryIntervalOfSSI(t *testing.T) {
	path := t.TempDir() + "/ssi"
	r := startAgentWith(t, "[[scanner]]\nid = \"SSI\"\nframing = \"ssi\"\nretry_interval = \"1ms\"\npath = \""+path+"\"\n")
	s, err := sim.Plug("SSI", path, sim.Framing{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), agentTime)
	defer cancel()
	send := func(status byte, data string) {
		t.Helper()
		p := append([]byte{byte(5 + len(data)), 0xf3, 0, status, 0x1b}, data...) // DECODE_DATA
		sum := uint16(0)
		for _, b := range p {
			sum -= uint16(b)
		}
		if err := s.Write(append(p, byte(sum>>8), byte(sum))); err != nil {
			t.Fatal(err)
		}
		const ack = 6 // bytes of CMD_ACK
		if got, err := s.Feedback(ctx, ack); err != nil {
			t.Fatalf("%q is not answered: % x, %v", data, got, err)
		}
	}
	send(2, "PART") // and goes on in the next packet
	<-time.After(10 * time.Millisecond)
	send(0, "OTHER")
	out, _ := call(t, exitOK, "--socket", r.socket, "--json", "status")
	if f, ok := objects(t, out)[0]["frames"].(map[string]any); !ok || f["frames"] != 2.0 || f["not_accepted"] != 1.0 {
		t.Errorf("the half and the other scan: %s", out)
	}
}
