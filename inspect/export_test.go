package inspect

import (
	"runtime"
	"testing"
)

// SmallSlabs makes slabs small during a test, so that small tensors have several.
func SmallSlabs(t testing.TB) { set(t, &slabBytes, 512<<10) }

// SetHeat sets how much a heat map reads at once, and the size of the blocks that formats
// read, during a test.
func SetHeat(t testing.TB, slab, block int64) {
	set(t, &heatSlab, slab)
	set(t, &heatBlock, block)
}

// SetDigestBytes sets the memory of Digests during a test.
func SetDigestBytes(t testing.TB, n int64) { set(t, &digestBytes, n) }

func set(t testing.TB, v *int64, n int64) {
	old := *v
	*v = n
	t.Cleanup(func() { *v = old })
}

// SetWorkers sets the number of workers during a test, at least two.
func SetWorkers(t testing.TB, n int) {
	old := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

// EqualValues is equalValues for tests.
var EqualValues = equalValues
