// Package deep says how much the tests do. Rounds of properties, steps at which a process
// crashes, and soaks are few and short by default, and many and long in "make test DEEP=1".
package deep

import (
	"cmp"
	"flag"
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// On reports whether tests do all that they can: the variable DEEP is set. It is called while tests
// run, so that "go test" does not take the result of tests that did little for another one.
func On() bool { return os.Getenv("DEEP") != "" }

// Rounds returns how often a test repeats something.
func Rounds(few, many int) int {
	if On() {
		return many
	}
	return few
}

// checks is the number of random cases of a property. The flag -rapid.checks replaces it.
const checks = 25

func init() {
	if !On() {
		if err := flag.Set("rapid.checks", strconv.Itoa(checks)); err != nil {
			panic(err)
		}
	}
}

// Check tests a property with random cases.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	if !On() && testing.Verbose() {
		t.Logf("%d random cases; DEEP=1 tries more", checks)
	}
	rapid.Check(t, property)
}

// firstSteps are always tried.
const firstSteps = 3

// Steps yields the steps at which a test lets something go wrong, from the first one on, until
// the caller stops because there are no more. If tests do little, it leaves out steps after the
// first ones, and more of them the further it comes: other steps in each run.
func Steps[N int | int64]() iter.Seq[N] {
	return func(yield func(N) bool) {
		for n := N(1); yield(n); n++ {
			if n >= firstSteps && !On() {
				n += rand.N(2 + n/2)
			}
		}
	}
}

// Try reports whether a test lets something go wrong at a step, for tests that come to every step.
func Try(step int) bool { return On() || step <= firstSteps || rand.IntN(5) == 0 }

// Soak returns how long a soak goes on: the variable SOAK, few by default, or many.
func Soak(t testing.TB, few, many time.Duration) time.Duration {
	t.Helper()
	if text := os.Getenv("SOAK"); text != "" {
		length, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		return length
	}
	if On() {
		return many
	}
	return few
}

// Seed returns the seed of a random test, which it logs: the variable SEED, or another one in
// each run.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), strconv.FormatUint(rand.Uint64(), 10)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("to repeat: SEED=%d", seed)
	return seed
}
