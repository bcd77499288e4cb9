//go:build usbrig

package guest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The machine's own lines, as internal/rig lays them.
const (
	monitorLine = "/dev/ttyS1"
	// farLines are the scanner's ends of the USB serial adapters line0 and line1.
	farLine0 = "/dev/ttyS2"
	farLine1 = "/dev/ttyS4"
)

// qemu is the monitor of the machine that the tests run in.
type qemu struct {
	t    testing.TB
	file *os.File
	in   *bufio.Reader
}

func openQEMU(t testing.TB) *qemu {
	t.Helper()
	q := &qemu{t: t, file: openLine(t, monitorLine)}
	q.in = bufio.NewReader(q.file)
	// The line has echoed a part of QEMU's greeting, perhaps, before it was made raw; this ends what QEMU makes of it.
	sendTo(t, q.file, "\xff")
	q.call("qmp_capabilities", nil)
	return q
}

// openLine opens a serial port of the machine for the rest of the test.
func openLine(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	makeRaw(t, f)
	return f
}

// call is one command of QMP, the QEMU Machine Protocol; events in between are passed over.
func (q *qemu) call(command string, arguments any) error {
	q.t.Helper()
	id := fmt.Sprintf("%s-%s", q.t.Name(), command)
	msg, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments, "id": id})
	if err != nil {
		q.t.Fatal(err)
	}
	if arguments == nil {
		msg, _ = json.Marshal(map[string]any{"execute": command, "id": id})
	}
	sendTo(q.t, q.file, string(msg)+"\n")
	q.file.SetReadDeadline(time.Now().Add(patience))
	for {
		line, err := q.in.ReadBytes('\n')
		if err != nil {
			q.t.Fatalf("the monitor: %v", err)
		}
		var answer struct {
			ID    string `json:"id"`
			Error *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if json.Unmarshal(line, &answer) != nil || answer.ID != id {
			continue // a greeting, an event, or what was cut off by an earlier test's closing
		}
		if answer.Error != nil {
			return fmt.Errorf("%s: %s", command, answer.Error.Desc)
		}
		return nil
	}
}

// add plugs in a device of QEMU's. A line that has just lost its adapter may still be in use for a moment.
func (q *qemu) add(driver, id string, more map[string]string) {
	q.t.Helper()
	args := map[string]string{"driver": driver, "id": id}
	for k, v := range more {
		args[k] = v
	}
	eventually(q.t, "QEMU takes "+id, func() bool {
		err := q.call("device_add", args)
		if err != nil && !strings.Contains(err.Error(), "in use") && !strings.Contains(err.Error(), "Duplicate") {
			q.t.Fatal(err)
		}
		return err == nil
	})
}

// del unplugs a device of QEMU's.
func (q *qemu) del(id string) {
	q.t.Helper()
	if err := q.call("device_del", map[string]string{"id": id}); err != nil {
		q.t.Fatal(err)
	}
}
