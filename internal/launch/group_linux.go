package launch

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// ownGroup returns how processes are started: each as the leader of a group, and
// killed when this process ends.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// groupAlive reports whether a group has a process that has not ended. Those
// that nobody waits for, as in containers whose first process does not, count as
// ended.
func groupAlive(group int) bool {
	if !groupHeld(group) {
		return false
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return true
	}
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		if state, pgrp := parseStat(b); pgrp == group && state != 'Z' && state != 'X' {
			return true
		}
	}
	return false
}

// parseStat returns the state and the group of a process: "pid (name) S ppid
// pgrp …", where the name may hold anything.
func parseStat(b []byte) (state byte, group int) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 3 {
		return 0, 0
	}
	group, err := strconv.Atoi(string(f[2]))
	if err != nil {
		return 0, 0
	}
	return f[0][0], group
}
