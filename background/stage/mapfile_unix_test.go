//go:build unix && (!linux || nomemfd)

package stage

import (
	"errors"
	"os"
	"testing"
)

func TestMapFileWithoutName(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	if _, err := MapFile(f); !errors.Is(err, ErrArena) {
		t.Errorf("MapFile of a file with a name = %v; want ErrArena", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	mem, err := MapFile(f)
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(mem)
	mem[5] = 77
	got := make([]byte, 1)
	if _, err := f.ReadAt(got, 5); err != nil || got[0] != 77 {
		t.Errorf("the file has %v, %v; want 77", got, err)
	}
	if err := f.Truncate(5000); err != nil {
		t.Fatal(err)
	}
	if _, err := MapFile(f); !errors.Is(err, ErrArena) {
		t.Errorf("MapFile of 5000 bytes = %v; want ErrArena", err)
	}
}
