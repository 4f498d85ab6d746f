package all_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/all"
)

func TestEveryPlatformOpens(t *testing.T) {
	for _, f := range all.Factories() {
		p, err := all.Open(strings.ToUpper(f.Name), inproc.New(3)[2])
		if err != nil {
			t.Fatalf("Open(%s) = %v", f.Name, err)
		}
		if p.Name() != f.Name || p.World().Rank() != 2 || p.World().Size() != 3 {
			t.Errorf("Open(%s) = %s, rank %d of %d; want rank 2 of 3", f.Name, p.Name(), p.World().Rank(), p.World().Size())
		}
	}
}

func TestUnknownNameListsTheKnown(t *testing.T) {
	p, err := all.Open("mindspore", nil)
	if !errors.Is(err, platform.ErrUnknown) || p != nil {
		t.Fatalf("Open = %v, %v; want ErrUnknown", p, err)
	}
	for _, want := range []string{"mindspore", "host"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Open = %q; want it to say %s", err, want)
		}
	}
}

func TestFromEnv(t *testing.T) {
	t.Setenv(platform.Variable, "")
	if p, err := all.FromEnv(nil); err != nil || p.Name() != all.Default || p.World().Size() != 1 {
		t.Errorf("FromEnv without a name = %v, %v; want a single rank of the default", p, err)
	}
	t.Setenv(platform.Variable, "torch")
	if p, err := all.FromEnv(nil); !errors.Is(err, platform.ErrUnknown) || p != nil {
		t.Errorf("FromEnv of torch = %v, %v; want ErrUnknown", p, err)
	}
}
