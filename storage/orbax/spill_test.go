package orbax_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/tensor"
)

// strips reads an array in strips of columns, as a conversion of stacked layers does, and compares
// each with the elements.
func strips(t *testing.T, ck storage.Checkpoint, w *written, width int64) {
	t.Helper()
	all := must.Get(tensor.FromBytes(tensor.Float32, w.shape, w.data))(t)
	for col := int64(0); col < w.shape[1]; col += width {
		b := tensor.Box{Offsets: []int64{0, col}, Sizes: []int64{w.shape[0], width}}
		if got := readPart(t, ck, "w", b).Contents(); !bytes.Equal(got, must.Get(all.Narrow(b))(t).Contents()) {
			t.Fatalf("the elements of %v differ", b)
		}
	}
}

// Strips of an array that is larger than the memory for pages read and decompress a chunk at most twice,
// also if each strip needs a part of every page.
func TestStripsReadOnce(t *testing.T) {
	w := newWritten(t, []int64{4096, 4096}, []int64{4096, 4096}, nil, true, false)
	s := &watched{Store: new(mem.Store)}
	writeOCDBT(t, s, w.values)
	for width, most := range map[int64]int{512: 1, 2048: 2} { // a thin strip goes to the file at once
		ck := must.Get(orbax.Format{}.Open(t.Context(), s))(t)
		s.take()
		for range 2 {
			strips(t, ck, w, width)
		}
		if got, chunk := s.take(), int64(len(w.values["w/0.0"])); got > int64(most)*chunk {
			t.Errorf("strips of %d columns read %d bytes; want at most %d times the %d of the chunk", width, got, most, chunk)
		}
		must.Do(t, ck.Close())
	}
}

// Strips of arrays in every form have the right elements.
func TestStrips(t *testing.T) {
	for name, w := range kinds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := new(mem.Store)
			writeOCDBT(t, s, w.values)
			ck := must.Get(orbax.Format{}.Open(t.Context(), s))(t)
			defer ck.Close()
			strips(t, ck, w, 320)
		})
	}
}

// Without a folder for the temporary file, strips are right too, and no file stays behind.
func TestStripsWithoutRoom(t *testing.T) {
	dir := t.TempDir()
	for _, tmp := range []string{dir, filepath.Join(dir, "missing")} {
		t.Setenv("TMPDIR", tmp)
		w := newWritten(t, []int64{1024, 2560}, []int64{1024, 2560}, nil, true, false)
		s := new(mem.Store)
		writeOCDBT(t, s, w.values)
		ck := must.Get(orbax.Format{}.Open(t.Context(), s))(t)
		strips(t, ck, w, 320)
		must.Do(t, ck.Close())
		if left := must.Get(os.ReadDir(dir))(t); len(left) > 0 {
			t.Errorf("%v stays in the folder", left)
		}
	}
}
