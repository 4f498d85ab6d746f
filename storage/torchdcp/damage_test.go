package torchdcp_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// flip damages a byte of a file.
func flip(t testing.TB, s blob.Store, file string, at int64) {
	t.Helper()
	must.Do(t, fault.Damage(t.Context(), s, file, func(b []byte) []byte { b[at] ^= 1; return b }))
}

// A byte of a tensor that has changed is noticed by a load of all of the tensor, and by a
// load of some columns of it.
func TestLoadDetectsDamage(t *testing.T) {
	s := new(mem.Store)
	x := storagetest.Filled(t, tensor.Float32, []int64{40, 5000}, 1)
	must.Do(t, storagetest.Save(t.Context(), plain.At(s), storagetest.Storage("x", 1, 1), plan.State{"x": x}))
	load := func(b tensor.Box) error {
		to := must.Get(shard.Empty(shard.Boxes(map[int]tensor.Box{0: b}), tensor.Float32, x.Shape(), 0))(t)
		return storagetest.Load(t.Context(), plain.At(s), plan.State{"x": to})
	}
	if err := load(tensor.Whole(x.Shape())); err != nil {
		t.Fatalf("Load before the damage = %v", err)
	}
	ck, md := open(t, s, torchdcp.Format{})
	defer ck.Close()
	loc := md.Entries[0].Tensor.Locs[0]
	flip(t, s, loc.File, loc.Offset+loc.Length/2)
	for claim, b := range map[string]tensor.Box{
		"all":          tensor.Whole(x.Shape()),
		"some columns": {Offsets: []int64{0, 0}, Sizes: []int64{40, 100}},
		"one element":  {Offsets: []int64{0, 0}, Sizes: []int64{1, 1}},
	} {
		if err := load(b); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), loc.File) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%s: Load = %v; want %v, with file and name", claim, err, storage.ErrCorrupt)
		}
	}
}

// Verify reads small records together and each once, and still tells which of
// them are damaged.
func TestVerifyReadsSmallRecordsTogether(t *testing.T) {
	s, state := fault.New(new(mem.Store)), plan.State{}
	for i := range 300 {
		state[fmt.Sprintf("t%03d", i)] = storagetest.Filled(t, tensor.Float32, []int64{4}, byte(i))
	}
	must.Do(t, storagetest.Save(t.Context(), plain.At(s), storagetest.Storage("x", 1, 1), state))
	ck, md := open(t, s, torchdcp.Format{})
	defer ck.Close()
	before := len(s.Ops())
	rep, err := ck.Verify(t.Context(), nil)
	if err != nil || len(rep.Problems) > 0 || rep.Chunks != 300 {
		t.Fatalf("Verify = %+v, %v; want 300 chunks and no problem", rep, err)
	}
	if ops := s.Ops()[before:]; ops.Count(fault.Open) > 10 || ops.Count(fault.Read) > 10 {
		t.Errorf("%d opens and %d reads for 300 records; want at most 10", ops.Count(fault.Open), ops.Count(fault.Read))
	}
	for _, n := range []int{7, 200} {
		loc := md.Entries[n].Tensor.Locs[0]
		flip(t, s, loc.File, loc.Offset+6) // a flag of the first record
	}
	rep = must.Get(ck.Verify(t.Context(), nil))(t)
	var names []string
	for _, p := range rep.Problems {
		names = append(names, p.FQN)
	}
	slices.Sort(names)
	if want := []string{"t007", "t200"}; !slices.Equal(slices.Compact(names), want) {
		t.Errorf("Verify reports %+v; want problems of %v", rep.Problems, want)
	}
}

// A damaged tensor inside of a value is noticed, too.
func TestValuesDetectDamage(t *testing.T) {
	s := new(mem.Store)
	v := value.Tuple{"text", storagetest.Filled(t, tensor.Float32, []int64{4000}, 1)}
	must.Do(t, storagetest.Save(t.Context(), plain.At(s), storagetest.Storage("x", 1, 1), plan.State{"v": v}))
	_, md := open(t, s, torchdcp.Format{})
	loc := md.Entries[0].Bytes.Loc
	flip(t, s, loc.File, loc.Offset+loc.Length/2)
	if err := storagetest.Load(t.Context(), plain.At(s), plan.State{"v": nil}); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("Load = %v; want %v", err, storage.ErrCorrupt)
	}
}

// spoiled undoes stream.zstd, and changes one byte of the result.
func spoiled(at int64) torchdcp.Transform {
	return func(_ string, stored io.Reader) (io.ReadCloser, error) {
		d, err := zstd.NewReader(stored, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return &spoiler{d.IOReadCloser(), at}, nil
	}
}

type spoiler struct {
	io.ReadCloser
	left int64 // bytes before the one that is changed
}

func (s *spoiler) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if s.left >= 0 && s.left < int64(n) {
		p[s.left] ^= 1
	}
	s.left -= int64(n)
	return n, err
}

// The result of a transformation is compared with the checksum of the record inside.
func TestTransformedRecordsDetectDamage(t *testing.T) {
	s, _ := own(t, "zstd")
	for _, c := range []struct {
		at   int64
		rows int64
		want error
	}{{100_000, 300, storage.ErrCorrupt}, {100_000, 100, nil}, {-1, 300, nil}} {
		o := torchdcp.Format{Transforms: map[string]torchdcp.Transform{"stream.zstd": spoiled(c.at)}}
		place := storagetest.Place{Reader: func() storage.Reader { return storage.NewReader(o.Open, s, storage.ReadOptions{}) }}
		rows := tensor.Box{Offsets: []int64{0, 0}, Sizes: []int64{c.rows, 1000}}
		to, err := shard.Empty(shard.Boxes(map[int]tensor.Box{0: rows}), tensor.Float32, []int64{300, 1000}, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = storagetest.Load(t.Context(), place, plan.State{"long": to})
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), `"long"`) {
			t.Errorf("byte %d is spoiled: Load of %d rows = %v; want %v", c.at, c.rows, err, c.want)
		}
	}
}

// One file that is gone is one problem, however many names it holds.
func TestVerifyReportsMissingFileOnce(t *testing.T) {
	s := storagetest.CopyFixture(t, "torch-2.14/shard0-3", "__1_0.distcp")
	ck, md := open(t, s, torchdcp.Format{})
	defer ck.Close()
	rep, err := ck.Verify(t.Context(), nil)
	if err != nil || len(rep.Problems) != 1 {
		t.Fatalf("Verify = %+v, %v; want one problem", rep, err)
	}
	p := rep.Problems[0]
	if p.File != "__1_0.distcp" || p.FQN != "" || len(p.FQNs) < 3 || len(md.Entries) < 3 {
		t.Errorf("problem = %+v; want the file and its names", p)
	}
	if rep.Unsummed != 0 {
		t.Errorf("%d bytes without a checksum; want 0", rep.Unsummed)
	}
}
