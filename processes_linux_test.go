package cairn_test

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
	modes["process"] = func(c int64) *cairn.StagerOptions {
		return &cairn.StagerOptions{Ceiling: c, Process: &saver.Options{}}
	}
	pause = stopSavers
	resume = func(t *testing.T) { signalSavers(t, syscall.SIGCONT) }
	waitSavers = waitNoSavers
}

// savers returns the saver processes of this process.
func savers(t *testing.T) []int {
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
	for deadline := time.Now().Add(3 * time.Minute); len(savers(t)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("saver processes %v are left", savers(t))
		}
	}
}

// stopSavers keeps the saver processes of this process from running.
func stopSavers(t *testing.T) {
	t.Helper()
	for _, pid := range savers(t) {
		tcptest.Stop(t, pid)
	}
}

// signalSavers sends a signal to the saver processes of this process.
func signalSavers(t *testing.T, s syscall.Signal) {
	t.Helper()
	for _, pid := range savers(t) {
		must.Do(t, syscall.Kill(pid, s))
	}
}
