package host

import (
	"context"
	"runtime/pprof"
	"runtime/trace"
)

// RegionLabel is the label under which CPU profiles have the names of regions.
const RegionLabel = "region"

// Region begins a region of Go's execution trace; CPU profiles have its name as a
// label of their samples.
func (p *Platform) Region(ctx context.Context, name string) (context.Context, func()) {
	inside := pprof.WithLabels(ctx, pprof.Labels(RegionLabel, name))
	pprof.SetGoroutineLabels(inside)
	r := trace.StartRegion(inside, name)
	return inside, func() {
		r.End()
		pprof.SetGoroutineLabels(ctx)
	}
}
