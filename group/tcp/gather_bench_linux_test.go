package tcp_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group/tcp"
)

// BenchmarkGather146KiB gathers values that are too large to travel with the call, as the
// plans of a save are. cpu-ms/op is the processor time of all ranks.
func BenchmarkGather146KiB(b *testing.B) {
	v := make([]byte, 146<<10)
	for _, n := range []int{8, 256} {
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			var before time.Duration
			bench(b, n, func(ctx context.Context, g *tcp.Group) error {
				if g.Rank() == 0 && before == 0 {
					before = processorTime()
				}
				_, err := g.Gather(ctx, 0, v)
				return err
			})
			b.ReportMetric(float64(processorTime()-before)/1e6/float64(b.N), "cpu-ms/op")
		})
	}
}

// processorTime returns the time that this process has spent on processors.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
