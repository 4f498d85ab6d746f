package mem_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestStore(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Store { return new(mem.Store) })
}

// The announced size of an object is not allocated.
func TestHugeSizeTakesNoMemory(t *testing.T) {
	s := new(mem.Store)
	w := must.Get(s.Create(t.Context(), "x", &blob.CreateOptions{Size: 1 << 62}))(t)
	if err := w.WriteAt(t.Context(), []byte("end"), 1<<62-3); err != nil {
		t.Errorf("WriteAt(1<<62-3) = %v; want nil", err)
	}
	if _, err := w.Commit(t.Context()); !errors.Is(err, blob.ErrRange) {
		t.Errorf("Commit with a hole = %v; want ErrRange", err)
	}
}

func TestReadersKeepOldBytes(t *testing.T) {
	s := new(mem.Store)
	put := func(data string) {
		t.Helper()
		if _, err := blob.WriteAll(t.Context(), s, "x", []byte(data), nil); err != nil {
			t.Fatal(err)
		}
	}
	put("old")
	r := must.Get(s.Open(t.Context(), "x"))(t)
	defer r.Close()
	put("new")
	must.Do(t, s.Remove(t.Context(), "x"))
	p := make([]byte, 3)
	if err := r.ReadAt(t.Context(), p, 0); err != nil || string(p) != "old" {
		t.Errorf("ReadAt = %q, %v; want old", p, err)
	}
}

func TestStringNamesTheStore(t *testing.T) {
	s := &mem.Store{Name: "run"}
	if s.String() != "mem://run" || new(mem.Store).String() != "mem://" {
		t.Errorf("String = %q; want mem:// and the name", s)
	}
}
