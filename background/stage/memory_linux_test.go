//go:build !nomemfd

package stage

import (
	"errors"
	"os"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestMapFileRefusesFilesThatCanShrink(t *testing.T) {
	f := must.Get(os.CreateTemp(t.TempDir(), ""))(t)
	defer f.Close()
	must.Do(t, f.Truncate(1<<20))
	if _, err := MapFile(f); !errors.Is(err, ErrArena) {
		t.Errorf("MapFile of a plain file = %v; want ErrArena", err)
	}
	a := must.Get(NewShared(1 << 20))(t)
	defer a.Close()
	mem := must.Get(MapFile(a.File()))(t)
	defer Unmap(mem)
	a.mem[5] = 77
	if mem[5] != 77 {
		t.Error("the mappings do not share memory")
	}
	if err := a.File().Truncate(0); err == nil {
		t.Error("the file of an arena can shrink")
	}
}
