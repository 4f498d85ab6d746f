package platform

import "context"

// Profiler is the capability of platforms whose profiles can be told what is
// going on.
type Profiler interface {
	// Region begins a region of that name and returns a context for what is
	// inside of it and the function that ends it. Regions nest; that which began
	// last ends first, in the goroutine that began it. It is safe for concurrent
	// use.
	Region(ctx context.Context, name string) (context.Context, func())
}

// Region begins a region where p is a [Profiler], and nothing otherwise.
func Region(ctx context.Context, p Platform, name string) (context.Context, func()) {
	prof, err := As[Profiler](p)
	if err != nil {
		return ctx, func() {}
	}
	return prof.Region(ctx, name)
}
