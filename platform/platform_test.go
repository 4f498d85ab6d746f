package platform_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/platform/platformtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bare is a platform that has the core alone, and of that no more than it must:
// groups, and AllGather.
type bare struct {
	platform.Gathered
	h *host.Platform
}

// bareGroup hides what the host's groups can do beside.
type bareGroup struct{ platform.Group }

func newBare(world group.Group) platform.Platform {
	b := &bare{h: host.New(world)}
	b.Gathered = platform.OverAllGather(gatherer{b.h})
	return b
}

// gatherer is the AllGather of a bare platform.
type gatherer struct{ h *host.Platform }

func (a gatherer) AllGather(ctx context.Context, g platform.Group, v []byte) ([][]byte, error) {
	return a.h.AllGather(ctx, inside(g), v)
}

func inside(g platform.Group) platform.Group {
	if b, ok := g.(bareGroup); ok {
		return b.Group
	}
	return nil
}

func wrap(g platform.Group, err error) (platform.Group, error) {
	if g == nil || err != nil {
		return nil, err
	}
	return bareGroup{g}, nil
}

func (b *bare) Name() string          { return "bare" }
func (b *bare) World() platform.Group { return bareGroup{b.h.World()} }

func (b *bare) New(ctx context.Context, ranks []int) (platform.Group, error) {
	return wrap(b.h.New(ctx, ranks))
}

func (b *bare) Split(ctx context.Context, g platform.Group, parts [][]int) (platform.Group, error) {
	return wrap(b.h.Split(ctx, inside(g), parts))
}

func (b *bare) Lookup(ranks []int) (platform.Group, bool) {
	g, ok := b.h.Lookup(ranks)
	if !ok {
		return nil, false
	}
	return bareGroup{g}, true
}

func (b *bare) Adopt(gs ...platform.Group) error {
	for _, g := range gs {
		if err := b.h.Adopt(inside(g)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bare) Close(ctx context.Context, g platform.Group) error { return b.h.Close(ctx, inside(g)) }

func TestCoreOverAllGatherAlone(t *testing.T) {
	open := func(_ *testing.T, n int) []platform.Platform {
		ps := make([]platform.Platform, n)
		for r, g := range inproc.New(n) {
			ps[r] = newBare(g)
		}
		return ps
	}
	platformtest.Run(t, open, nil)
}

func TestAsFindsCapabilitiesThroughWrappers(t *testing.T) {
	inner := host.New(nil)
	if got, err := platform.As[platform.Allocator](wrapper{wrapper{inner}}); err != nil || got != platform.Allocator(inner) {
		t.Errorf("As[Allocator] = %v, %v; want the wrapped platform's", got, err)
	}
	for _, p := range []platform.Platform{newBare(nil), wrapper{newBare(nil)}} {
		got, err := platform.As[platform.TensorComms](p)
		if got != nil || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "platform bare: platform.TensorComms") {
			t.Errorf("As[TensorComms] = %v, %v; want an error that names both", got, err)
		}
	}
	if _, err := platform.As[platform.Profiler](nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("As of no platform = %v; want ErrUnsupported", err)
	}
}

type wrapper struct{ platform.Platform }

func (w wrapper) Unwrap() platform.Platform { return w.Platform }

// symmetric has memory that all ranks reach; it has one rank.
type symmetric struct{ platform.Platform }

func (symmetric) Symmetric(_ context.Context, _ platform.Group, n int64) ([][]byte, error) {
	return [][]byte{make([]byte, n)}, nil
}

func TestSymmetricMemoryIsFound(t *testing.T) {
	p := symmetric{host.New(nil)}
	s, err := platform.As[platform.SymmetricMemory](p)
	if err != nil {
		t.Fatal(err)
	}
	if mem, err := s.Symmetric(t.Context(), p.World(), 16); err != nil || len(mem) != 1 || len(mem[0]) != 16 {
		t.Errorf("Symmetric = %v, %v; want 16 bytes of one rank", mem, err)
	}
}

func TestOpenUsesTheFactoryOfTheName(t *testing.T) {
	gpu := errors.New("gpu")
	list := []platform.Factory{host.Factory(), {Name: "gpu", New: func(group.Group) (platform.Platform, error) { return nil, gpu }}}
	for name, want := range map[string]error{"host": nil, "HOST": nil, "Gpu": gpu} {
		if p, err := platform.Open(name, nil, list...); !errors.Is(err, want) || want == nil && p.Name() != "host" {
			t.Errorf("Open(%q) = %v, %v; want %v", name, p, err, want)
		}
	}
	for _, name := range []string{"", "torch", "hos"} {
		_, err := platform.Open(name, nil, list...)
		if !errors.Is(err, platform.ErrUnknown) || !strings.Contains(err.Error(), "host, gpu") {
			t.Errorf("Open(%q) = %v; want ErrUnknown and the known names", name, err)
		}
	}
}

func TestNameFromEnv(t *testing.T) {
	t.Setenv(platform.Variable, "")
	if got := platform.NameFromEnv("host"); got != "host" {
		t.Errorf("NameFromEnv = %q; want the fallback", got)
	}
	t.Setenv(platform.Variable, "gpu")
	if got := platform.NameFromEnv("host"); got != "gpu" {
		t.Errorf("NameFromEnv = %q; want gpu", got)
	}
}

func TestRegionOfAPlatformWithoutProfiler(t *testing.T) {
	ctx, end := platform.Region(t.Context(), newBare(nil), "step")
	end()
	if ctx != t.Context() {
		t.Error("Region changed the context; want it as it was")
	}
}
