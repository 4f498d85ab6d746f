package saver

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// setPriority lowers the priority of this process, if it is a process group of its own. If the
// system refuses, it is only less polite.
func setPriority(niceness int) {
	if unix.Getpgrp() != os.Getpid() {
		return // the trainer may be in this group
	}
	_ = unix.Setpriority(unix.PRIO_PGRP, 0, niceness)
	_ = os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(niceness)), 0)
}

// nameProcess gives this process a name of its own in ps and top, where it looks like a
// second trainer otherwise. If the system refuses, the process keeps its name.
func nameProcess() { _ = os.WriteFile("/proc/self/comm", []byte(processName), 0) }
