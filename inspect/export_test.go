package inspect

import "testing"

// SmallSlabs makes slabs small for the time of a test, so that small tensors
// have several.
func SmallSlabs(t testing.TB) {
	old := slabBytes
	slabBytes = 512 << 10
	t.Cleanup(func() { slabBytes = old })
}
