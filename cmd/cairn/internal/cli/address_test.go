package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// cairnOK runs a command that must succeed, and returns its output.
func cairnOK(t *testing.T, line string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	if got := Main(t.Context(), strings.Fields(line), &out, &errOut); got != 0 {
		t.Fatalf("cairn %s: exit code %d: %s", line, got, errOut.String())
	}
	return out.String()
}

// TestCommandsTakeURLs runs the commands on checkpoints that are not in a file system.
func TestCommandsTakeURLs(t *testing.T) {
	dir := t.TempDir()
	cairnOK(t, "demo --dir mem://urls/run/step-1 --size 64KiB --ranks 2 --quiet")
	cairnOK(t, "convert mem://urls/run/step-1 mem://urls/run/step-2 --to native")
	for _, c := range [][2]string{
		{"ls mem://urls/run/step-1", "model.norm.weight"},
		{"ls mem://urls/run/step-1/cairn.json", "model.norm.weight"},
		{"inspect mem://urls/run/step-1 --json", "mem://urls/run/step-1"},
		{"verify mem://urls/run/step-1", "ok"},
		{"digest mem://urls/run/step-2 model", "model.norm.weight"},
		{"stats mem://urls/run/step-2 model.norm.weight", "model.norm.weight"},
		{"cat mem://urls/run/step-2 step", ""},
		{"diff mem://urls/run/step-1 mem://urls/run/step-2", ""},
		{"repair mem://urls/run/step-2", "nothing to repair"},
		{"latest mem://urls/run", "mem://urls/run/step-"},
		{"latest mem://urls/run --json --wait", `"path": "mem://urls/run/step-`},
		{"clean mem://urls/run", "0 files removed"},
		{"convert mem://urls/run/step-2 mem://urls/dcp --to dcp --world-size 2", ""},
		{"verify mem://urls/dcp/.metadata", "ok"},
		{"convert mem://urls/run/step-2 mem://urls/one/model.safetensors --skip-objects", ""},
		{"merge mem://urls/dcp " + filepath.Join(dir, "merged"), ""},
		{"convert mem://urls/run/step-2 " + filepath.Join(dir, "a") + " --to hf --skip-objects", ""},
	} {
		if got := cairnOK(t, c[0]); !strings.Contains(got, c[1]) {
			t.Errorf("cairn %s printed %q; want %q in it", c[0], got, c[1])
		}
	}
	cairnOK(t, "convert mem://urls/run/step-2 mem://urls/one/m.pt")
	for _, line := range []string{"ls mem://urls/one/m.pt", "ls mem://urls/one/model.safetensors", "verify " + filepath.Join(dir, "merged")} {
		cairnOK(t, line)
	}
}

// TestCleanOfURL removes the leftovers of a save from a store without locks.
func TestCleanOfURL(t *testing.T) {
	cairnOK(t, "demo --dir mem://left/run/step-1 --size 64KiB --ranks 1 --quiet")
	s := must.Get(blob.OpenAddress(t.Context(), "mem://left/run"))(t)
	const name = "step-2/20261115t101500-00c0ffe1-r00000-0.safetensors"
	if _, err := blob.WriteAll(t.Context(), s, name, []byte("leftover"), nil); err != nil {
		t.Fatal(err)
	}
	if got := cairnOK(t, "clean mem://left/run"); !strings.Contains(got, "mem://left/run/"+name) || !strings.Contains(got, "kept") {
		t.Errorf("clean printed %q; want %s kept", got, name)
	}
	time.Sleep(time.Millisecond)
	cairnOK(t, "clean mem://left/run --older-than 1ns --force")
	if _, err := s.Stat(t.Context(), name); err == nil {
		t.Errorf("%s is still there", name)
	}
	cairnOK(t, "verify mem://left/run/step-1")
}

// TestSecretsOfURLsAreNotPrinted looks for the user and the query of a URL in errors,
// hints and warnings.
func TestSecretsOfURLsAreNotPrinted(t *testing.T) {
	for _, line := range []string{
		"ls mem://user:hush@none/x?key=hush", "ls gopher://user:hush@none/x?key=hush", "latest mem://none/run?key=hush", "clean gopher://none/run?key=hush",
		"convert mem://none/x?key=hush mem://none/y.safetensors?key=hush", "verify mem://none/%zz?key=hush", "repair mem://none/x?key=hush --json",
	} {
		var out, errOut bytes.Buffer
		if got := Main(t.Context(), strings.Fields(line), &out, &errOut); got == 0 {
			t.Errorf("cairn %s succeeded", line)
		}
		if text := out.String() + errOut.String(); strings.Contains(text, "hush") || !strings.Contains(text, "none") {
			t.Errorf("cairn %s printed %q; want the address without its secrets", line, text)
		}
	}
}
