//go:build !unix

package bench

import (
	"os"
	"time"
)

// cpuTime returns 0: it is unknown on this system.
func cpuTime() time.Duration { return 0 }

// peakOf returns 0: the memory of a process that has ended is unknown here.
func peakOf(*os.ProcessState) int64 { return 0 }
