package saver

import (
	"os"

	"golang.org/x/sys/unix"
)

// niceness is how far training comes before saves: with equal demand it gets three
// quarters of a processor.
const niceness = 5

// yieldToTrainer lowers the priority of this process, if it is a process group of its
// own. If the system refuses, saves are only less polite.
func yieldToTrainer() {
	if unix.Getpgrp() != os.Getpid() {
		return // the trainer may be in this group
	}
	_ = unix.Setpriority(unix.PRIO_PGRP, 0, niceness)
	_ = os.WriteFile("/proc/self/autogroup", []byte("5"), 0)
}

// nameProcess gives this process a name of its own in ps and top, where it looks like a
// second trainer otherwise. If the system refuses, the process keeps its name.
func nameProcess() { _ = os.WriteFile("/proc/self/comm", []byte(processName), 0) }
