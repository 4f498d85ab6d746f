//go:build unix

package bench

import (
	"os"
	"runtime"
	"syscall"
	"time"
)

// cpuTime returns the processor time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peakOf returns the largest resident memory of a process that has ended.
func peakOf(p *os.ProcessState) int64 {
	u, ok := p.SysUsage().(*syscall.Rusage)
	switch {
	case !ok:
		return 0
	case runtime.GOOS == "darwin": // which counts bytes
		return int64(u.Maxrss)
	}
	return int64(u.Maxrss) << 10
}
