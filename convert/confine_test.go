package convert

import (
	"math"
	"runtime/debug"
	"testing"
)

func TestConfineLimitsAndUndoes(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for claim, c := range map[string]struct {
		limit   int64
		percent int
		lower   bool
	}{
		"without a limit":                  {math.MaxInt64, 100, true},
		"with a lower one":                 {1 << 20, 10, false},
		"with the percentage switched off": {1 << 20, -1, false},
	} {
		debug.SetMemoryLimit(c.limit)
		debug.SetGCPercent(c.percent)
		undo := (&Job{opts: Options{Memory: 64 << 20}}).Confine()
		limit, percent := settings()
		if (limit < c.limit) != c.lower || c.lower && limit < 64<<20 {
			t.Errorf("%s: limit %d; want one below %d: %v", claim, limit, c.limit, c.lower)
		}
		if (percent < c.percent) != c.lower || c.lower && percent < 1 {
			t.Errorf("%s: %d percent; want less than %d: %v", claim, percent, c.percent, c.lower)
		}
		undo()
		if limit, percent := settings(); limit != c.limit || percent != c.percent {
			t.Errorf("%s: %d and %d percent after undo; want %d and %d percent", claim, limit, percent, c.limit, c.percent)
		}
	}
}

// settings returns the settings of the garbage collector.
func settings() (limit int64, percent int) {
	percent = debug.SetGCPercent(100)
	debug.SetGCPercent(percent)
	return debug.SetMemoryLimit(-1), percent
}
