package native

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// forge writes a checkpoint of these entries and files, with valid checksums.
func forge(t testing.TB, entries []meta.Entry, files ...storage.File) blob.Store {
	t.Helper()
	s := new(mem.Store)
	must.Do(t, Commit(context.Background(), s, &meta.Metadata{Entries: entries, Storage: storagetest.Storage("f", 1, 1)}, files))
	return s
}

func chunkAt(shape []int64, file string, offset int64, boxes ...tensor.Box) meta.Entry {
	e := meta.Entry{FQN: "x", Tensor: &meta.Tensor{Shape: shape, Chunks: boxes}}
	e.Tensor.DType = tensor.Uint8
	for _, b := range boxes {
		e.Tensor.Locs = append(e.Tensor.Locs, meta.Location{
			File: file, Offset: offset, Length: b.Volume(), Sums: make([]uint32, Sums(b.Sizes, 1)),
		})
	}
	return e
}

func TestOpenRefusesForgedMetadata(t *testing.T) {
	const name = "f-r00000-0.safetensors"
	huge := int64(1) << 37
	for what, s := range map[string]blob.Store{
		"a file that the record does not name": forge(t, []meta.Entry{chunkAt([]int64{4}, name, 0, tensor.Whole([]int64{4}))}),
		"bytes behind the end of the file": forge(t,
			[]meta.Entry{chunkAt([]int64{4}, name, 5, tensor.Whole([]int64{4}))}, storage.File{Name: name, Size: 8}),
		"a tensor without chunks": forge(t, []meta.Entry{chunkAt([]int64{1 << 45}, name, 0)}),
		"too few chunks": forge(t,
			[]meta.Entry{chunkAt([]int64{1 << 45}, name, 0, tensor.Box{Offsets: []int64{0}, Sizes: []int64{4}})}, storage.File{Name: name, Size: 8}),
		"a chunk twice": forge(t,
			[]meta.Entry{chunkAt([]int64{4}, name, 0, tensor.Whole([]int64{4}), tensor.Whole([]int64{4}))}, storage.File{Name: name, Size: 8}),
		"a tensor of many gibibytes in a file that is not there": forge(t,
			[]meta.Entry{chunkAt([]int64{huge}, name, 0, tensor.Whole([]int64{huge}))}, storage.File{Name: name, Size: huge}),
		"a value of many gibibytes in a file that is not there": forge(t,
			[]meta.Entry{{FQN: "x", Bytes: &meta.Bytes{Codec: "raw", Size: huge, Loc: meta.Location{
				File: name, Length: huge, Sums: make([]uint32, huge/stripeBytes),
			}}}}, storage.File{Name: name, Size: huge}),
	} {
		if _, err := storage.NewReader(Format{}.Open, s, storage.ReadOptions{}).ReadMetadata(t.Context()); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("%s: ReadMetadata = %v; want %v", what, err, storage.ErrCorrupt)
		}
		checkNotHeld(t, s, what)
	}
}

// checkNotHeld fails unless looking the entry x up, or asking for its files,
// refuses it.
func checkNotHeld(t *testing.T, s blob.Store, what string) {
	t.Helper()
	c, err := Format{}.Open(t.Context(), s)
	if err != nil {
		t.Errorf("%s: Open = %v", what, err)
		return
	}
	defer c.Close()
	e, _, err := c.Find(t.Context(), "x")
	if err == nil {
		err = c.CheckHeld(t.Context(), e)
	}
	if !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("%s: Find and CheckHeld = %v; want %v", what, err, storage.ErrCorrupt)
	}
}

func TestCheckHeldOfSoundEntries(t *testing.T) {
	s := new(mem.Store)
	state := plan.State{"x": storagetest.Filled(t, tensor.Uint8, []int64{2 << 20}, 1), "v": make([]byte, 2<<20), "i": 1}
	must.Do(t, save(t, s, "id", state, nil))
	c := must.Get(Format{}.Open(t.Context(), s))(t)
	defer c.Close()
	for name := range state {
		e, ok, err := c.Find(t.Context(), name)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := c.CheckHeld(t.Context(), e); err != nil {
			t.Errorf("CheckHeld(%s) = %v; want nil", name, err)
		}
	}
}

func TestVerifyReportsProblems(t *testing.T) {
	const name = "f-r00000-0.safetensors"
	b := tensor.Whole([]int64{4})
	e, f := chunkAt([]int64{4}, name, 0, b), chunkAt([]int64{4}, name, 2, b)
	f.FQN = "y"
	s := forge(t, []meta.Entry{e, f}, storage.File{Name: name, Size: 8})
	must.Get(blob.WriteAll(t.Context(), s, name, make([]byte, 8), nil))(t)
	c := must.Get(Format{}.Open(t.Context(), s))(t)
	defer c.Close()
	rep := must.Get(c.Verify(t.Context(), nil))(t)
	var all strings.Builder
	for _, p := range rep.Problems {
		fmt.Fprintf(&all, "%s: %q: %s\n", p.File, p.FQN, p.Text)
	}
	for _, want := range []string{`"y": its bytes overlap the bytes of "x"`, "its checksum is", "invalid safetensors header"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("problems lack %q:\n%s", want, &all)
		}
	}
	if rep.Files != 2 || rep.Chunks != 2 || rep.Bytes != c.TotalBytes() {
		t.Errorf("report = %+v; want 2 files, 2 chunks, %d bytes", rep, c.TotalBytes())
	}
}

func TestVerifyCountsAgree(t *testing.T) {
	s := new(mem.Store)
	must.Do(t, save(t, s, "s", tiny(t), nil))
	rec := must.Get(readRecord(t.Context(), s))(t)
	rec.Totals.Chunks++
	b := must.Get(encodeRecord(rec))(t)
	must.Get(blob.WriteAll(t.Context(), s, recordName, b, nil))(t)
	checkFound(t, s, "a record that counts one chunk more")
}

// Empty tensors have no bytes, so they do not overlap other tensors at any offset.
func TestVerifyOfEmptyTensors(t *testing.T) {
	s := new(mem.Store)
	state := plan.State{
		"a": storagetest.Filled(t, tensor.Int8, []int64{5}, 1), "b": storagetest.Filled(t, tensor.Float64, []int64{0, 3}, 1),
		"c": storagetest.Filled(t, tensor.Float64, []int64{2, 0}, 1), "d": storagetest.Filled(t, tensor.Int8, []int64{0}, 1),
	}
	must.Do(t, save(t, s, "s", state, nil))
	checkWhole(t, s)
	remove(t, s, recordName)
	if _, err := Repair(t.Context(), s, nil); err != nil {
		t.Errorf("Repair = %v", err)
	}
	checkWhole(t, s)
}
