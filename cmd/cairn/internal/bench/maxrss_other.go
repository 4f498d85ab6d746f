//go:build !unix

package bench

import (
	"os"
	"time"
)

// maxRSS returns 0: it is unknown on this system.
func maxRSS(*os.ProcessState) int64 { return 0 }

// cpuTime returns 0: it is unknown on this system.
func cpuTime() time.Duration { return 0 }
