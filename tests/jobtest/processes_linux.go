package jobtest

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func init() {
	Modes["process"] = func(c int64) *cairn.StagerOptions {
		return &cairn.StagerOptions{Ceiling: c, Process: &saver.Options{}}
	}
	Pause = StopSavers
	Resume = func(t *testing.T) { SignalSavers(t, syscall.SIGCONT) }
	WaitSavers = waitNoSavers
}

// Savers returns the saver processes of this process.
func Savers(t *testing.T) []int {
	t.Helper()
	var out []int
	stats := must.Get(filepath.Glob("/proc/[0-9]*/stat"))(t)
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// The fields after the name of the program: state, parent.
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if f[1] == strconv.Itoa(os.Getpid()) && f[0] != "Z" {
			out = append(out, pid)
		}
	}
	return out
}

// waitNoSavers waits until this process has no saver processes.
func waitNoSavers(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); len(Savers(t)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("saver processes %v are left", Savers(t))
		}
	}
}

// StopSavers keeps the saver processes of this process from running.
func StopSavers(t *testing.T) {
	t.Helper()
	for _, pid := range Savers(t) {
		tcptest.Stop(t, pid)
	}
}

// SignalSavers sends a signal to the saver processes of this process.
func SignalSavers(t *testing.T, s syscall.Signal) {
	t.Helper()
	for _, pid := range Savers(t) {
		must.Do(t, syscall.Kill(pid, s))
	}
}
