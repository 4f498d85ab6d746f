package saver

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestDescriptors(t *testing.T) {
	for text, want := range map[string][2]uintptr{"1": {3, 4}, "7,9": {7, 9}, "9,7": {9, 7}} {
		sock, arena, err := descriptors(text)
		if err != nil || sock != want[0] || arena != want[1] {
			t.Errorf("descriptors(%q) = %d, %d, %v; want %v", text, sock, arena, err, want)
		}
	}
	for _, text := range []string{"", "2", "yes", "7", "7,", ",9", "7,7", "-1,3", "7,9,11", "7, 9", "7,99999999999"} {
		if _, _, err := descriptors(text); !errors.Is(err, ErrMessage) {
			t.Errorf("descriptors(%q) = %v; want ErrMessage", text, err)
		}
	}
}

// A program that is started as a saver without a trainer ends with an error.
func TestMainWithoutATrainer(t *testing.T) {
	self := must.Get(os.Executable())(t)
	null := must.Get(os.Open(os.DevNull))(t)
	defer null.Close()
	for claim, start := range map[string]func(c *exec.Cmd){
		"no descriptors":         func(c *exec.Cmd) { c.Env = append(os.Environ(), variable+"=1000,1001") },
		"descriptors of no kind": func(c *exec.Cmd) { c.Env, c.ExtraFiles = append(os.Environ(), variable+"=1"), []*os.File{null, null} },
		"another value":          func(c *exec.Cmd) { c.Env = append(os.Environ(), variable+"=yes") },
	} {
		cmd := exec.CommandContext(t.Context(), self, "-test.run", "^$")
		start(cmd)
		out, err := cmd.CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != 1 || !strings.HasPrefix(string(out), "cairn saver: ") || strings.Contains(string(out), "panic") {
			t.Errorf("%s: %v\n%s", claim, err, out)
		}
	}
}
