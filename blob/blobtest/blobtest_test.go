package blobtest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// mutantEnv names the mutant that a copy of this test runs the suite on.
const mutantEnv = "CAIRN_BLOBTEST_MUTANT"

func TestMain(m *testing.M) {
	if mutant := mutants[os.Getenv(mutantEnv)]; mutant != nil {
		suite = mutant
	}
	os.Exit(m.Run())
}

// suite opens the store that TestSuite tests.
var suite = func() blob.Store { return &blobtest.Broken{Store: new(mem.Store)} }

func TestSuite(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Store { return suite() })
}

// TestSuiteDetectsMutants tests that a store that breaks a claim fails the subtest of
// that claim.
func TestSuiteDetectsMutants(t *testing.T) {
	exe := must.Get(os.Executable())(t)
	for claim := range mutants {
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestSuite$/^"+claim+"$")
		cmd.Env = append(os.Environ(), mutantEnv+"="+claim, "GORACE=atexit_sleep_ms=0")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "--- FAIL: TestSuite/"+claim) {
			t.Errorf("the suite on a store that breaks %s: %v; want it to fail\n%s", claim, err, out)
		}
	}
}
