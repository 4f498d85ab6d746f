package convert

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestConfineLimitsAndUndoes(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	for claim, c := range map[string]struct {
		set   int64
		lower bool
	}{"without a limit": {math.MaxInt64, true}, "with a lower one": {1 << 20, false}} {
		debug.SetMemoryLimit(c.set)
		undo := (&Job{opts: Options{Memory: 64 << 20}}).Confine()
		got := debug.SetMemoryLimit(-1)
		if (got < c.set) != c.lower || c.lower && got < 64<<20 {
			t.Errorf("%s: limit %d; want one below %d: %v", claim, got, c.set, c.lower)
		}
		if undo(); debug.SetMemoryLimit(-1) != c.set {
			t.Errorf("%s: the limit was not restored", claim)
		}
	}
}
