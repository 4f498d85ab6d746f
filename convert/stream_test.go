package convert

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// saveRows saves a matrix, cut by columns over three ranks.
func saveRows(t testing.TB, s blob.Store, x *tensor.Tensor) {
	t.Helper()
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}) }}
	states := make([]plan.State, 3)
	for r := range states {
		states[r] = plan.State{"x": storagetest.Cut(t, storagetest.Along(1, 3), x, r)}
	}
	must.Do(t, storagetest.Save(context.Background(), p, storagetest.Storage("20260314t150926-00000001", 1, 3), states...))
}

// planned opens the checkpoint in s and plans its conversion to whole tensors.
func planned(t testing.TB, s blob.Store, o Options) *Job {
	t.Helper()
	c := must.Get(native.Format{}.Open(context.Background(), s))(t)
	t.Cleanup(func() { c.Close() })
	o.Merge = true
	j := must.Get(Plan(context.Background(), c, &o))(t)
	return j
}

// Reads of a stream may begin and end anywhere, also within elements.
func TestStreamReadsAnyInterval(t *testing.T) {
	x := storagetest.Filled(t, tensor.Complex128, []int64{9, 7}, 1)
	want := x.Contents()
	s := &mem.Store{Name: "source"}
	saveRows(t, s, x)
	j := planned(t, s, Options{})
	src := newSource(t.Context(), j)
	defer src.close()
	st := &stream{content: newContent(src, j.entries[0], tensor.Whole(x.Shape()))}
	deep.Check(t, func(t *rapid.T) {
		lo := rapid.IntRange(0, len(want)).Draw(t, "from")
		p := make([]byte, rapid.IntRange(0, len(want)-lo).Draw(t, "length"))
		if err := st.ReadAt(context.Background(), p, int64(lo)); err != nil || !bytes.Equal(p, want[lo:lo+len(p)]) {
			t.Errorf("ReadAt(%d bytes, %d) = %v, or wrong bytes", len(p), lo, err)
		}
	})
	for _, c := range [][2]int64{{-1, 1}, {0, int64(len(want)) + 1}, {int64(len(want)) + 1, 0}} {
		if err := st.ReadAt(t.Context(), make([]byte, c[1]), c[0]); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("ReadAt(%d bytes, %d) = %v; want %v", c[1], c[0], err, tensor.ErrShape)
		}
	}
}

// A slow source is read ahead. Pieces that are read ahead in vain do no harm.
func TestReadAhead(t *testing.T) {
	x := storagetest.Filled(t, tensor.Float32, []int64{1024, 1024}, 1)
	want := x.Contents()
	s := &mem.Store{Name: "source"}
	saveRows(t, s, x)
	watched := fault.New(s)
	j := planned(t, watched, Options{Memory: 32 << 20})
	src := newSource(t.Context(), j)
	src.slow.Store(true)
	st := &stream{content: newContent(src, j.entries[0], tensor.Whole(x.Shape()))}
	step := int64(minUnit)
	for _, off := range []int64{0, step, 2 * step, 8 * step, 9 * step, 3 * step, 15 * step} {
		p := make([]byte, step)
		src.slow.Store(true)
		if err := st.ReadAt(t.Context(), p, off); err != nil || !bytes.Equal(p, want[off:off+step]) {
			t.Errorf("ReadAt(%d) = %v, or wrong bytes", off, err)
		}
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
	src.close()
	checkReturned(t, src)
}

// checkReturned fails unless all buffers of a source are free.
func checkReturned(t *testing.T, s *source) {
	t.Helper()
	for i := range s.ahead.Count() {
		if s.ahead.TryGet() == nil {
			t.Errorf("only %d buffers are free", i)
			return
		}
	}
}

// An error of a read ahead is returned by the ReadAt that needs the piece.
func TestReadAheadReturnsErrors(t *testing.T) {
	x := storagetest.Filled(t, tensor.Float32, []int64{1024, 1024}, 1)
	s := &mem.Store{Name: "source"}
	saveRows(t, s, x)
	why := errors.New("the line is dead")
	broken := fault.New(s, fault.Rule{On: fault.Read, Match: func(n string) bool { return n[len(n)-1] == 's' }, Nth: 12, Times: -1, Do: fault.Fail(why)})
	j := planned(t, broken, Options{Memory: 32 << 20})
	src := newSource(t.Context(), j)
	st := &stream{content: newContent(src, j.entries[0], tensor.Whole(x.Shape()))}
	var err error
	for off := int64(0); off < x.NumBytes() && err == nil; off += minUnit {
		src.slow.Store(true)
		err = st.ReadAt(t.Context(), make([]byte, minUnit), off)
	}
	if !errors.Is(err, why) {
		t.Errorf("ReadAt = %v; want %v", err, why)
	}
	st.Close()
	src.close()
	checkReturned(t, src)
}

// Buffers stay within Options.Memory for checkpoints of any size.
func TestBuffersStayWithinMemory(t *testing.T) {
	s := &mem.Store{Name: "source"}
	state := plan.State{"large": storagetest.Filled(t, tensor.Float32, []int64{2600, 2048}, 1)}
	for i := range 500 {
		state[fmt.Sprintf("small.%04d", i)] = storagetest.Filled(t, tensor.Float32, []int64{256}, byte(i))
	}
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}) }}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("20260314t150926-00000001", 1, 1), state))
	for claim, o := range map[string]Options{
		"as it is": {}, "over ranks": {WorldSize: 8}, "cast": {DType: []string{"bfloat16"}, Merge: true},
	} {
		t.Run(claim, func(t *testing.T) {
			c := must.Get(native.Format{}.Open(t.Context(), s))(t)
			defer c.Close()
			o.Memory, o.Parallel = minMemory, 16 // more than there is memory for
			j := must.Get(Plan(t.Context(), c, &o))(t)
			work.ResetPeak()
			before := work.Stats().Lent
			dst := &mem.Store{Name: "target"}
			to := &Target{NewWriter: func(n int64) (storage.Writer, error) {
				return native.Format{}.NewWriter(dst, storage.WriteOptions{BufferBytes: n})
			}}
			if _, err := Run(t.Context(), j, to); err != nil {
				t.Fatal(err)
			}
			if peak := work.Stats().Peak - before; peak > minMemory {
				t.Errorf("%d bytes of buffers at a time; want at most %d", peak, minMemory)
			}
			if left := work.Stats().Lent - before; left != 0 {
				t.Errorf("%d bytes of buffers were not given back", left)
			}
		})
	}
}

// Small tensors of a batch have the right bytes, in any order of reads and with little
// memory.
func TestBatches(t *testing.T) {
	s := &mem.Store{Name: "source"}
	state := plan.State{}
	for i := range 300 {
		d := []tensor.DType{tensor.Float32, tensor.Uint8, tensor.Int64}[i%3]
		state[fmt.Sprintf("t%03d", i)] = storagetest.Filled(t, d, []int64{int64(i), 50}, byte(i))
	}
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}) }}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("20260314t150926-00000001", 1, 1), state))
	j := planned(t, s, Options{Memory: minMemory})
	src := newSource(t.Context(), j)
	src.ahead = aheadPool(2 * minUnit)
	plans := localPlans(j.entries, j.ranks)
	bs := newBatches(src, j, plans)
	items := plans[0].Items
	for k := range items {
		it := &items[k*7%len(items)] // 7 does not divide 300
		st := bs.open(j.find(it.FQN()), it)
		want := state[it.FQN()].(*tensor.Tensor).Contents()
		got := make([]byte, len(want))
		half := len(got) / 2
		err := errors.Join(st.ReadAt(t.Context(), got[:half], 0), st.ReadAt(t.Context(), got[half:], int64(half)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, or wrong bytes", it.FQN(), err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
	src.close()
	bs.close()
	checkReturned(t, src)
}
