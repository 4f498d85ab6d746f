//go:build interop

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

// testCase is one claim. It is tried with every PyTorch that has the features in needs.
type testCase struct {
	name string
	// needs are features that some PyTorchs lack, in the words of py/about.py. Empty: every
	// PyTorch will do.
	needs string
	// slow is a case that runs if tests are deep.
	slow bool
	run  func(r *rig)
}

// cases are all claims, in the order of the report.
func cases() []testCase {
	var all []testCase
	for _, group := range [][]testCase{fromTorch, fromRanks, intoTorch, intoRanks, intoFiles, refusals, training, dropIn, edges, examples, frameworks, accelerated, withTRL, plugins, serving, megatron, megatronByCairn, torchtitan, verl, deepspeeds, own, unitTests(), types} {
		all = append(all, group...)
	}
	if !deep.On() {
		all = slices.DeleteFunc(all, func(c testCase) bool { return c.slow })
	}
	return all
}

// table has the outcomes.
var table report

// The table comes last, after all messages about failures.
func TestMain(m *testing.M) {
	code := m.Run()
	fmt.Print(&table)
	os.Exit(code)
}

func TestInterop(t *testing.T) {
	targets := strings.Fields(os.Getenv("CAIRN_INTEROP_TORCH"))
	if len(targets) == 0 {
		skipAll(t)
		return
	}
	program := program(t)
	for _, target := range targets {
		py := start(t, target, program)
		column := table.add(py.about)
		t.Run("torch-"+py.about.Torch, func(t *testing.T) {
			for _, c := range cases() {
				t.Run(c.title(), func(t *testing.T) {
					if c.needs != "" && !py.has(c.needs) {
						column.set(c.name, absent)
						t.Skipf("PyTorch %s at %s has no %s", py.about.Torch, target, c.needs)
					}
					defer func() {
						column.set(c.name, outcome(t.Failed()))
						if t.Skipped() {
							column.set(c.name, absent)
						}
					}()
					c.run(newRig(t, py, program))
				})
			}
		})
		py.stop()
	}
}

// title is the name of a case as a test.
func (c testCase) title() string { return strings.ReplaceAll(c.name, " ", "-") }

// skipAll lists all cases as skipped.
func skipAll(t *testing.T) {
	for _, c := range cases() {
		t.Run(c.title(), func(t *testing.T) {
			t.Skip("no PyTorch: TORCH=PYTHON names one, make interop sets one up")
		})
	}
}

// program returns the path of the cairn that is tested: $CAIRN, or one that it builds.
func program(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("CAIRN"); p != "" {
		return p
	}
	p := filepath.Join(t.TempDir(), "cairn")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-tags=nocloud", "-o", p, "github.com/cairn-ckpt/cairn/cmd/cairn")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return p
}
