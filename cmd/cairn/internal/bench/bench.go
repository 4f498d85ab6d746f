// Package bench measures cairn against its floor: the same bytes moved by plain
// system calls, in the same run. It asserts nothing; it returns figures for a
// command to print. What each figure means is in docs/benchmarks.md.
package bench

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// timed returns how long fn took.
func timed(fn func() error) (time.Duration, error) {
	start := time.Now()
	err := fn()
	return time.Since(start), err
}

// gbs returns bytes in d as 10^9 bytes a second.
func gbs(bytes int64, d time.Duration) float64 {
	return float64(bytes) / 1e9 / d.Seconds()
}

// resetPeakRSS makes PeakRSS begin anew, where the system can.
func resetPeakRSS() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// PeakRSS returns the largest resident memory this process has had, or 0 where
// the system does not tell.
func PeakRSS() int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kb << 10
		}
	}
	return 0
}
