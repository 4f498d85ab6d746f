//go:build unix && (!linux || nomemfd)

package stage

import (
	"errors"
	"os"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestMapFileWithoutName(t *testing.T) {
	f := must.Get(os.CreateTemp(t.TempDir(), ""))(t)
	defer f.Close()
	must.Do(t, f.Truncate(1<<20))
	if _, err := MapFile(f); !errors.Is(err, ErrArena) {
		t.Errorf("MapFile of a file with a name = %v; want ErrArena", err)
	}
	must.Do(t, os.Remove(f.Name()))
	mem := must.Get(MapFile(f))(t)
	defer Unmap(mem)
	mem[5] = 77
	got := make([]byte, 1)
	if _, err := f.ReadAt(got, 5); err != nil || got[0] != 77 {
		t.Errorf("the file has %v, %v; want 77", got, err)
	}
	must.Do(t, f.Truncate(5000))
	if _, err := MapFile(f); !errors.Is(err, ErrArena) {
		t.Errorf("MapFile of 5000 bytes = %v; want ErrArena", err)
	}
}
