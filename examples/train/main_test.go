package main_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The program is built, and "cairn run" starts its ranks.
func TestRanksAreProcesses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	build := func(pkg string) string {
		program := filepath.Join(dir, filepath.Base(pkg)+".exe") // a name for every system
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, pkg).CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		return program
	}
	folder := filepath.Join(dir, "checkpoint")
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, build("github.com/cairn-ckpt/cairn/cmd/cairn"), "run", "-n", "4", "--",
		build("github.com/cairn-ckpt/cairn/examples/train"), "-checkpoint", folder)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	got := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	slices.Sort(got)
	var want []string
	for r := range 4 {
		want = append(want, fmt.Sprintf("[%d] step 1 grad [1.5 1] part [[0 %d]+[4 1]] is [0 1 2 3]", r, r))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +printed\n%s", d)
	}
	checkSaved(t, folder)
}

// checkSaved checks what the ranks have saved, in one process.
func checkSaved(t *testing.T, folder string) {
	t.Helper()
	store, err := file.Open(folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := tensor.New(tensor.Float32, []int64{4, 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cairn.Load(t.Context(), store, cairn.State{"w": w}, nil); err != nil {
		t.Fatal(err)
	}
	got, err := tensor.Values[float32](w)
	if err != nil {
		t.Fatal(err)
	}
	want := []float32{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("w: -want +saved\n%s", d)
	}
}
