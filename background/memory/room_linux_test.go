package memory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// The memory of spare files is free for the next save.
func TestSpareFilesAreRoom(t *testing.T) {
	root := ram.Root(filepath.Join(t.TempDir(), "memory"))
	must.Do(t, os.Mkdir(string(root), 0o700))
	j := &Job{Run: "llama", Root: root, Host: "h", Hosts: []ram.Host{{ID: "h", Name: "n1"}}}
	store := must.Get(root.OpenLocal(j.Run))(t)
	must.Do(t, store.KeepSpares())
	const size = 1 << 20
	for _, name := range []string{"step-1/a", "step-2/a"} {
		must.Get(blob.WriteAll(t.Context(), store, name, make([]byte, size), nil))(t)
	}
	before := must.Get(j.space())(t)
	must.Do(t, store.Remove(t.Context(), "step-1/a"))
	after := must.Get(j.space())(t)
	if before.Held != 2*size || after.Held != size || store.SpareBytes() != size {
		t.Errorf("the run has %d bytes, and %d after a removal that leaves %d spare ones; want %d, %d and %d",
			before.Held, after.Held, store.SpareBytes(), 2*size, size, size)
	}

	s := space{Held: 10, Free: 20, Group: cgroup{Limit: 50, Used: 30}}
	s.reuse(4)
	if want := (space{Held: 6, Free: 24, Group: cgroup{Limit: 50, Used: 26}}); s != want {
		t.Errorf("reuse = %+v; want %+v", s, want)
	}
}
