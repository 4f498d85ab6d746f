package host_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
)

func TestOpenByName(t *testing.T) {
	p, err := platform.Open(strings.ToUpper(host.Name), inproc.New(3)[2], host.Factory())
	must.Do(t, err)
	if p.Name() != host.Name || p.World().Rank() != 2 || p.World().Size() != 3 {
		t.Errorf("Open = %s, rank %d of %d; want rank 2 of 3", p.Name(), p.World().Rank(), p.World().Size())
	}
}

func TestOpenUnknownNameListsKnownNames(t *testing.T) {
	p, err := platform.Open("mindspore", nil, host.Factory())
	if !errors.Is(err, platform.ErrUnknown) || p != nil {
		t.Fatalf("Open = %v, %v; want ErrUnknown", p, err)
	}
	for _, want := range []string{"mindspore", "host"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Open = %q; want it to say %s", err, want)
		}
	}
}

func TestOpenByEnvironment(t *testing.T) {
	open := func() (platform.Platform, error) {
		return platform.Open(platform.NameFromEnv(host.Name), nil, host.Factory())
	}
	t.Setenv(platform.Variable, "")
	if p, err := open(); err != nil || p.Name() != host.Name || p.World().Size() != 1 {
		t.Errorf("Open without a name = %v, %v; want a single rank of the default", p, err)
	}
	t.Setenv(platform.Variable, "torch")
	if p, err := open(); !errors.Is(err, platform.ErrUnknown) || p != nil {
		t.Errorf("Open of torch = %v, %v; want ErrUnknown", p, err)
	}
}
