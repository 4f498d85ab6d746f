package platform_test

import (
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

// bare is a platform that has the core alone.
type bare struct{ platform.Platform }

func (bare) Name() string { return "bare" }

// bareGroup hides the host's group.
type bareGroup struct{ platform.Group }

func newBare(world group.Group) platform.Platform { return bare{host.New(world)} }

func TestCoreWithoutCapabilities(t *testing.T) {
	open := func(_ *testing.T, n int) []platform.Platform {
		ps := make([]platform.Platform, n)
		for r, g := range inproc.New(n) {
			ps[r] = newBare(g)
		}
		return ps
	}
	platformtest.Run(t, open, nil)
}

func TestCommRefuses(t *testing.T) {
	if g, err := platform.Comm(nil); !errors.Is(err, group.ErrInvalid) || g != nil {
		t.Errorf("Comm of no group = %v, %v; want ErrInvalid", g, err)
	}
	if g, err := platform.Comm(bareGroup{host.New(nil).World()}); !errors.Is(err, errors.ErrUnsupported) || g != nil {
		t.Errorf("Comm of a group without Unwrap = %v, %v; want ErrUnsupported", g, err)
	}
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

func TestRegionWithoutProfiler(t *testing.T) {
	ctx, end := platform.Region(t.Context(), newBare(nil), "step")
	end()
	if ctx != t.Context() {
		t.Error("Region changed the context; want it as it was")
	}
}

func TestExecutorsHaveNames(t *testing.T) {
	for e, want := range map[platform.Executor]string{
		platform.Goroutine: "goroutine", platform.Process: "process", 0: "unknown executor",
	} {
		if got := e.String(); got != want {
			t.Errorf("String = %q; want %q", got, want)
		}
	}
}
