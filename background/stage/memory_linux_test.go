//go:build !nomemfd

package stage

import (
	"errors"
	"os"
	"testing"
)

func TestMapFileRefusesFilesThatCanShrink(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	if _, err := MapFile(f); !errors.Is(err, ErrArena) {
		t.Errorf("MapFile of a plain file = %v; want ErrArena", err)
	}
	a, err := NewShared(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	mem, err := MapFile(a.File())
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(mem)
	a.mem[5] = 77
	if mem[5] != 77 {
		t.Error("the mappings do not share memory")
	}
	if err := a.File().Truncate(0); err == nil {
		t.Error("the file of an arena can shrink")
	}
}
