// Package host is the platform of CPU memory: the ranks of any [group.Group],
// tensors of package tensor, collectives of package collective, safetensors
// files, Go's own profiles. It knows no device and no way for ranks to meet,
// which is the group's. The contract is that of [platform.Platform] and of the
// capabilities that [Platform] names.
package host

import (
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Name is what the platform is called.
const Name = "host"

// Platform is one rank of the platform. Collective methods on one group are for
// one goroutine at a time, all others for any.
type Platform struct {
	world *Group

	mu    sync.Mutex
	known map[string]*Group // by key; guarded by mu
}

var (
	_ platform.Platform    = (*Platform)(nil)
	_ platform.TensorComms = (*Platform)(nil)
	_ platform.Allocator   = (*Platform)(nil)
	_ platform.TensorFiles = (*Platform)(nil)
	_ platform.Profiler    = (*Platform)(nil)
)

// Factory makes host platforms, for [platform.Choose].
func Factory() platform.Factory {
	return platform.Factory{Name: Name, New: func(world group.Group) (platform.Platform, error) { return New(world), nil }}
}

// New returns the platform whose ranks are those of world; nil is [group.Solo].
// It is the platform's from then on: it is left by [Platform.Close].
func New(world group.Group) *Platform {
	if world == nil {
		world = group.Solo()
	}
	ranks := make([]int, world.Size())
	for r := range ranks {
		ranks[r] = r
	}
	p := &Platform{known: map[string]*Group{}}
	p.world = p.newGroup(world, ranks, worldID)
	p.remember(p.world)
	return p
}

// Name returns "host".
func (p *Platform) Name() string { return Name }

// String returns which rank of the platform this is, as in "host platform, rank 1
// of 4".
func (p *Platform) String() string {
	return fmt.Sprintf("%s platform, rank %d of %d", Name, p.world.Rank(), p.world.Size())
}

// Empty returns a tensor of zeros.
func (p *Platform) Empty(d tensor.DType, shape []int64) (*tensor.Tensor, error) {
	return tensor.New(d, shape)
}
