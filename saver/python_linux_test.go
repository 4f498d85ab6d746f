package saver

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestClientInPython runs a client that knows nothing but docs/saver.md.
func TestClientInPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	if err := exec.Command(python, "-c", "import os; os.memfd_create").Run(); err != nil {
		t.Skip("this python3 has no memfd_create")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	out, err := exec.CommandContext(t.Context(), python, "testdata/client.py", self, folder).CombinedOutput()
	if err != nil || string(out) != "saved and loaded\n" {
		t.Errorf("the client: %v\n%s", err, out)
	}
	log, err := os.ReadFile(folder + ".log")
	if err != nil || !strings.Contains(string(log), `msg="save: done" rank=0 save_id=python-1`) {
		t.Errorf("the log of the saver has no outcome: %v\n%s", err, log)
	}
}
