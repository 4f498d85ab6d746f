//go:build !nomemfd

package stage

import (
	"errors"
	"math"
	"os"
	"testing"

	"golang.org/x/sys/unix"

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

// A new file is of zeros, has no name, is for its owner only, and is all allocated.
func TestNewFile(t *testing.T) {
	f, mem, err := NewFile(20_000)
	must.Do(t, err)
	defer f.Close()
	defer Unmap(mem)
	var stat unix.Stat_t
	must.Do(t, unix.Fstat(int(f.Fd()), &stat))
	if len(mem) != 20_480 || mem[0] != 0 || stat.Nlink != 0 || stat.Mode&0o777 != 0o600 || stat.Blocks*512 < 20_480 {
		t.Errorf("%d bytes, %d names, mode %o, %d blocks", len(mem), stat.Nlink, stat.Mode, stat.Blocks)
	}
	other := must.Get(MapFile(f))(t)
	defer Unmap(other)
	if mem[7] = 1; other[7] != 1 {
		t.Error("the mappings do not share memory")
	}
	if _, _, err := NewFile(math.MaxInt64); !errors.Is(err, ErrArena) {
		t.Errorf("NewFile of too many bytes = %v; want ErrArena", err)
	}
}
