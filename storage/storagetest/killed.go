package storagetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
)

// The environment of a process that saves: where, how, and before which operation
// of the store it is killed.
const (
	childEnv  = "CAIRN_TEST_SAVE"
	howEnv    = "CAIRN_TEST_SAVE_HOW"
	killAtEnv = "CAIRN_TEST_KILL_AT"
)

// RunAsChild is for the beginning of TestMain. In a process that RunKilled has
// started it calls save and ends the process, which is killed on the way.
func RunAsChild(save func(t testing.TB, s blob.Store, how string) error) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		return
	}
	n, _ := strconv.ParseInt(os.Getenv(killAtEnv), 10, 64)
	s, err := file.Open(dir, &file.Options{NoSync: true})
	if err != nil {
		panic(err)
	}
	var ops atomic.Int64
	kill := fault.Rule{Match: func(string) bool {
		if ops.Add(1) == n {
			me, _ := os.FindProcess(os.Getpid())
			_ = me.Kill()
			select {}
		}
		return false
	}}
	var t testing.T
	if err := save(&t, fault.New(s, kill), os.Getenv(howEnv)); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// RunKilled saves in dir as another process, which is killed before operation n
// of the store. It reports whether the process was killed: else it had fewer
// operations.
func RunKilled(t testing.TB, dir, how string, n int) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir, howEnv+"="+how, fmt.Sprintf("%s=%d", killAtEnv, n), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	ee, ok := errors.AsType[*exec.ExitError](err)
	if err != nil && (!ok || ee.ExitCode() != -1) {
		t.Fatalf("the child = %v:\n%s", err, out)
	}
	return err != nil
}

// OnDisk returns the names of all files in dir, also those that are no objects.
func OnDisk(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
