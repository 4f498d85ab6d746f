//go:build !unix

package bench

import (
	"os"
	"time"
)

// maxRSS is not known here.
func maxRSS(*os.ProcessState) int64 { return 0 }

// cpuTime is not known here.
func cpuTime() time.Duration { return 0 }
