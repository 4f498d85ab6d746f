package inproc

import (
	"context"
	"testing"
)

// Some ranks may be ahead of others by failed calls. The memory that these calls keep for the
// late ranks must be freed once the late ranks have passed.
func TestFailedCallsAreForgottenOnceAllHavePassed(t *testing.T) {
	gs := New(3)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	const calls = 50
	texts := make([]string, calls)
	for i := range calls {
		texts[i] = gs[1].Barrier(ended).Error()
	}
	for _, g := range []*Group{gs[0], gs[2]} {
		for i := range calls {
			if err := g.Barrier(t.Context()); err == nil || err.Error() != texts[i] {
				t.Fatalf("rank %d, call %d = %v; want %s", g.Rank(), i, err, texts[i])
			}
		}
	}
	h := gs[0].hub
	if len(h.calls) != 0 || len(h.world.active) != 0 {
		t.Errorf("hub keeps %d calls, the world %d active groups; want none", len(h.calls), len(h.world.active))
	}
}
