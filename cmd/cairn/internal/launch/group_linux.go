package launch

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// ownGroup returns the attributes of a process that leads a process group and is
// killed when this process ends.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// groupAlive reports whether a group has a process that has not ended. Zombies
// count as ended: in some containers the first process never waits for them.
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

// isEnding reports whether a process has ended or is about to. Its sockets are
// closed shortly before, which other ranks may notice first.
func isEnding(pid int) bool {
	const exiting = 4 // PF_EXITING in the kernel
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		// It was waited for, maybe since the file was opened.
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
	}
	f := statFields(b)
	if len(f) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(string(f[6]), 10, 64)
	return f[0][0] == 'Z' || f[0][0] == 'X' || err == nil && flags&exiting != 0
}

// statFields returns the fields after the name of a process, which may contain
// any character: "pid (name) state ppid pgrp session tty tpgid flags …".
func statFields(b []byte) [][]byte { return bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]) }

// parseStat returns the state and the group of a process.
func parseStat(b []byte) (state byte, group int) {
	f := statFields(b)
	if len(f) < 3 {
		return 0, 0
	}
	group, err := strconv.Atoi(string(f[2]))
	if err != nil {
		return 0, 0
	}
	return f[0][0], group
}
