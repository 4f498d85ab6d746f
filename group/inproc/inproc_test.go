package inproc_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/grouptest"
	"github.com/cairn-ckpt/cairn/group/inproc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(_ *testing.T, n int) []group.Group {
	gs := make([]group.Group, n)
	for r, g := range inproc.New(n) {
		gs[r] = g
	}
	return gs
}

func leave(g group.Group) { g.(*inproc.Group).Leave(nil) }

func TestGroup(t *testing.T) { grouptest.Run(t, open, &grouptest.Options{Leave: leave}) }

// The suite is for groups over sockets too, so it must hold outside a bubble.
func TestGroupInRealTime(t *testing.T) {
	grouptest.Run(t, open, &grouptest.Options{Sizes: []int{3}, Real: true, Reuse: true, Leave: leave})
}
