//go:build interop

package interop

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// testCase is one claim. It is tried with every PyTorch that has what it needs.
type testCase struct {
	name string
	// needs is what not every PyTorch has, in the words of py/about.py. Empty:
	// all of them do.
	needs string
	run   func(r *rig)
}

// cases are all claims, in the order of the report.
func cases() []testCase {
	var all []testCase
	for _, group := range [][]testCase{fromTorch, fromRanks, intoTorch, intoRanks, intoFiles, refusals, training, dropIn, edges, examples, frameworks, own} {
		all = append(all, group...)
	}
	return all
}

// table is what came of them.
var table report

// The table comes last, behind all that is said of what failed.
func TestMain(m *testing.M) {
	code := m.Run()
	fmt.Print(&table)
	os.Exit(code)
}

func TestInterop(t *testing.T) {
	targets := strings.Fields(os.Getenv("CAIRN_INTEROP_TORCH"))
	if len(targets) == 0 {
		t.Fatal("CAIRN_INTEROP_TORCH names no PyTorch; run the tests with make interop")
	}
	program := program(t)
	for _, target := range targets {
		py := start(t, target, program)
		column := table.add(py.about)
		t.Run("torch-"+py.about.Torch, func(t *testing.T) {
			for _, c := range cases() {
				t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
					if c.needs != "" && !py.has(c.needs) {
						column.set(c.name, absent)
						return
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

// program returns the path of the cairn that is tested.
func program(t *testing.T) string {
	t.Helper()
	p := os.Getenv("CAIRN")
	if p == "" {
		t.Fatal("CAIRN does not name the program; run the tests with make interop")
	}
	return p
}
