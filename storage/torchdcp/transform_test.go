package torchdcp_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// unrotate undoes the transformation of testdata/generate.py.
func unrotate(version string, r io.Reader) (io.ReadCloser, error) {
	if version != "2.1" {
		return nil, torchdcp.ErrTransform
	}
	return io.NopCloser(rotated{r}), nil
}

type rotated struct{ r io.Reader }

func (r rotated) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	for i := range p[:n] {
		p[i] -= 13
	}
	return n, err
}

var transforms = torchdcp.Format{Transforms: map[string]torchdcp.Transform{"stream.rot13@example.com": unrotate}}

// own returns a checkpoint of testdata, and its items.
func own(t *testing.T, name string) (blob.Store, map[string]storagetest.Item) {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join("testdata", name, "expected.json")))(t)
	var doc struct{ Items map[string]storagetest.Item }
	must.Do(t, json.Unmarshal(b, &doc))
	s := must.Get(file.Open(filepath.Join("testdata", name, "ckpt"), nil))(t)
	return s, doc.Items
}

// Transformations are undone from the file inwards, however many there are, and
// the records of long ago are read.
func TestTransformedAndLegacyRecords(t *testing.T) {
	for _, name := range []string{"zstd", "rot13-zstd", "legacy"} {
		t.Run(name, func(t *testing.T) {
			s, want := own(t, name)
			ck, _ := open(t, s, transforms)
			storagetest.CheckItems(t, ck, want)
			rep, err := ck.Verify(t.Context(), nil)
			if err != nil || len(rep.Problems) > 0 {
				t.Errorf("Verify = %+v, %v; want no problems", rep, err)
			}
		})
	}
}

// Any box of a compressed chunk equals the same box of the whole chunk, into memory of any
// strides and type, within any budget.
func TestBoxesOfCompressedChunks(t *testing.T) {
	s, _ := own(t, "zstd")
	ck, _ := open(t, s, torchdcp.Format{})
	all := storagetest.LoadAll(t, ck)
	for name, boxes := range map[string][]tensor.Box{
		"long": {
			{Offsets: []int64{17, 0}, Sizes: []int64{200, 1000}}, {Offsets: []int64{0, 999}, Sizes: []int64{300, 1}},
			{Offsets: []int64{299, 3}, Sizes: []int64{1, 5}}, {Offsets: []int64{5, 5}, Sizes: []int64{0, 2}},
		},
		"cube":   {{Offsets: []int64{3, 1, 29}, Sizes: []int64{40, 2, 1}}, {Offsets: []int64{0, 0, 0}, Sizes: []int64{50, 4, 30}}},
		"turned": {{Offsets: []int64{2, 1}, Sizes: []int64{7, 3}}},
		"scalar": {{Offsets: []int64{}, Sizes: []int64{}}},
	} {
		for _, b := range boxes {
			checkBox(t, s, name, all[name].(*tensor.Tensor), b)
		}
	}
}

func checkBox(t *testing.T, s blob.Store, name string, whole *tensor.Tensor, b tensor.Box) {
	t.Helper()
	want := must.Get(tensor.New(tensor.Float64, b.Sizes))(t)
	part := must.Get(whole.Narrow(b))(t)
	must.Do(t, tensor.Convert(want, part, tensor.CastAny))
	for _, budget := range []int64{1, 0} {
		got := must.Get(shard.Empty(shard.Boxes(map[int]tensor.Box{0: b}), tensor.Float64, whole.Shape(), 0))(t)
		place := storagetest.Setup{Format: torchdcp.Format{}, Read: storage.ReadOptions{BufferBytes: budget, Parallel: 2}}.At(s)
		if err := storagetest.Load(t.Context(), place, plan.State{name: got}); err != nil {
			t.Fatalf("%s %v: Load = %v", name, b, err)
		}
		if !tensor.Equal(got.Local(), want) {
			t.Errorf("%s %v: other elements than in the whole", name, b)
		}
	}
}

func TestUnknownTransformsAreRefused(t *testing.T) {
	s, _ := own(t, "rot13-zstd")
	for name, f := range map[string]torchdcp.Format{
		"unknown": {},
		"another version": {Transforms: map[string]torchdcp.Transform{
			"stream.rot13@example.com": func(version string, r io.Reader) (io.ReadCloser, error) { return unrotate(version+".9", r) },
		}},
	} {
		ck, err := f.Open(t.Context(), s)
		if err != nil {
			t.Fatalf("%s: Open = %v; want the rest to be seen", name, err)
		}
		e, _, err := ck.Find(t.Context(), "long")
		if err != nil {
			t.Fatal(err)
		}
		if err := ck.CheckHeld(t.Context(), e); !errors.Is(err, torchdcp.ErrTransform) || !errors.Is(err, storage.ErrVersion) {
			t.Errorf("%s: CheckHeld = %v; want %v", name, err, torchdcp.ErrTransform)
		}
		if _, err := ck.Verify(t.Context(), nil); !errors.Is(err, torchdcp.ErrTransform) {
			t.Errorf("%s: Verify = %v; want %v", name, err, torchdcp.ErrTransform)
		}
	}
}

// Damage of compressed bytes is damage of the checkpoint, a store that fails is
// not.
func TestDamagedCompressedChunks(t *testing.T) {
	from, _ := own(t, "zstd")
	ck, _ := open(t, from, torchdcp.Format{})
	e, _, err := ck.Find(t.Context(), "long")
	if err != nil {
		t.Fatal(err)
	}
	loc := e.Tensor.Locs[0]
	for name, edit := range map[string]func(b []byte) []byte{
		"no frame":    func(b []byte) []byte { b[loc.Offset] ^= 1; return b },
		"in the data": func(b []byte) []byte { copy(b[loc.Offset+loc.Length/2:], slices.Repeat([]byte{0xff}, 64)); return b },
		"cut":         func(b []byte) []byte { return b[:loc.Offset+loc.Length/2] },
	} {
		s := storagetest.CopyOf(t, from)
		must.Do(t, fault.Damage(t.Context(), s, loc.File, edit))
		if err := loadLong(t, s, e); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("%s: Load = %v; want %v", name, err, storage.ErrCorrupt)
		}
	}
	broken := errors.New("broken")
	s := fault.New(storagetest.CopyOf(t, from), fault.Rule{On: fault.Read, Match: fault.Named(loc.File), Times: -1, Do: fault.Fail(broken)})
	if err := loadLong(t, s, e); !errors.Is(err, broken) || errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("a store that fails: Load = %v; want %v", err, broken)
	}
}

func loadLong(t *testing.T, s blob.Store, e *meta.Entry) error {
	t.Helper()
	x := must.Get(tensor.New(e.Tensor.DType, e.Tensor.Shape))(t)
	return storagetest.Load(t.Context(), plain.At(s), plan.State{"long": x})
}
