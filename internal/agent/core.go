package agent

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// forbidCores sees to it that no core file is written, by whatever the agent dies: it would hold what was
// scanned. The limit is for files; a process that is not dumpable gives nothing to a handler that the kernel
// pipes cores to either, and its memory cannot be read by the same user's other processes. What Go prints of a
// panic are addresses and the panic's value, and values of payloads do not print.
func forbidCores(log *slog.Logger) {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil { // systemd's LimitCORE=0 has done it
		log.Warn("cannot limit core files", "error", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		log.Warn("cannot forbid core dumps", "error", err)
	}
}
