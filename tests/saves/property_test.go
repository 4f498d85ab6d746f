package saves

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// property: whatever is saved, by however many ranks, cut in whatever way, is
// the same when other ranks, cut in another way, load it.
func TestSaveLoadProperty(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		store := drawStore(rt)
		job := drawJob(rt, t)
		err := inproc.Run(t.Context(), job.saveRanks, func(ctx context.Context, g group.Group) error {
			_, err := cairn.Save(ctx, store, job.toSave(t, g.Rank()), &cairn.SaveOptions{
				Group: g, FilesPerRank: job.files, BufferBytes: job.saveBuffer, Step: new(int64(3)),
			})
			return err
		})
		if err != nil {
			rt.Fatalf("Save: %v", err)
		}
		err = inproc.Run(t.Context(), job.loadRanks, func(ctx context.Context, g group.Group) error {
			state := job.toLoad(t, g.Rank())
			_, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{
				Group: g, BufferBytes: job.loadBuffer, Parallel: job.parallel, RejectUnexpected: true, Cast: tensor.CastAny,
			})
			if err != nil {
				return err
			}
			return job.check(t, g.Rank(), state)
		})
		if err != nil {
			rt.Fatalf("Load: %v", err)
		}
		job.checkWhole(rt, t, store)
	})
}

// dearStore is a store with dear requests.
type dearStore struct{ blob.Store }

func (dearStore) ReadGap() int64 { return 20_000 }

func drawStore(t *rapid.T) blob.Store {
	if rapid.Bool().Draw(t, "dear requests") {
		return dearStore{new(mem.Store)}
	}
	return new(mem.Store)
}

// job is a checkpoint with the ranks and options that save and load it.
type job struct {
	saveRanks, loadRanks   int
	files, parallel        int
	saveBuffer, loadBuffer int64
	tensors                []drawnTensor
	values                 []drawnValue
}

// drawnTensor is one tensor, with its place in the state and its cuts.
type drawnTensor struct {
	path       meta.Path
	whole      *tensor.Tensor
	from, to   shard.Layout // nil: every rank has all of it, as a plain tensor
	loadDType  tensor.DType
	fromLayout memory
	toLayout   memory
}

// memory is how a tensor lies in memory.
type memory string

const (
	plain      memory = "plain"
	transposed memory = "transposed"
	strided    memory = "strided"
)

type drawnValue struct {
	path  meta.Path
	value any
}

func drawJob(rt *rapid.T, t *testing.T) *job {
	j := &job{
		saveRanks:  rapid.IntRange(1, 4).Draw(rt, "save ranks"),
		loadRanks:  rapid.IntRange(1, 4).Draw(rt, "load ranks"),
		files:      rapid.IntRange(0, 3).Draw(rt, "files"),
		parallel:   rapid.IntRange(0, 3).Draw(rt, "parallel"),
		saveBuffer: rapid.SampledFrom([]int64{0, 1, 600 << 10, 3 << 20}).Draw(rt, "save buffer"),
		loadBuffer: rapid.SampledFrom([]int64{0, 1, 100 << 10, 3 << 20}).Draw(rt, "load buffer"),
	}
	for i := range rapid.IntRange(1, 6).Draw(rt, "tensors") {
		j.tensors = append(j.tensors, j.drawTensor(rt, t, i))
	}
	for i := range rapid.IntRange(0, 5).Draw(rt, "values") {
		j.values = append(j.values, drawnValue{drawPath(rt, fmt.Sprint("v", i)), drawValue(rt)})
	}
	return j
}

func (j *job) drawTensor(rt *rapid.T, t *testing.T, i int) drawnTensor {
	d := rapid.SampledFrom(tensor.DTypes()).Draw(rt, "dtype")
	x := drawnTensor{path: drawPath(rt, fmt.Sprint("t", i)), loadDType: d}
	x.whole = storagetest.Filled(t, d, drawShape(rt, d), byte(i))
	x.from = drawLayout(rt, x.whole.Shape(), j.saveRanks)
	x.to = drawLayout(rt, x.whole.Shape(), j.loadRanks)
	if rapid.IntRange(0, 2).Draw(rt, "cast") == 0 {
		x.loadDType = rapid.SampledFrom(tensor.DTypes()).Draw(rt, "as")
	}
	x.fromLayout = rapid.SampledFrom([]memory{plain, transposed, strided}).Draw(rt, "from memory")
	x.toLayout = rapid.SampledFrom([]memory{plain, transposed, strided}).Draw(rt, "to memory")
	return x
}

// drawPath returns a place in a nested state that ends with a name of its own.
func drawPath(t *rapid.T, last string) meta.Path {
	steps := []meta.Step{meta.Key(last)}
	odd := []string{"m", "a.b", "c/d", `q"uo\te`, "ünï☃", "__metadata__", "__cairn__/0", " "}
	for range rapid.IntRange(0, 2).Draw(t, "depth") {
		steps = append(steps, meta.Key(rapid.SampledFrom(odd).Draw(t, "key")))
	}
	if len(steps) > 1 && rapid.Bool().Draw(t, "in a list") {
		steps[0] = meta.Key("list " + last) // a list of its own, so that positions do not collide
		steps = slices.Insert(steps, 0, meta.Key(last), meta.Pos(rapid.IntRange(0, 2).Draw(t, "pos")))
	}
	slices.Reverse(steps)
	return steps
}

// drawShape returns a shape of up to some hundred kilobytes: mostly small, some
// with rows that are long enough to be checksummed in parts.
func drawShape(t *rapid.T, d tensor.DType) []int64 {
	shape := make([]int64, rapid.IntRange(0, 3).Draw(t, "dims"))
	left := int64(200_000 / d.Size())
	long := rapid.IntRange(0, 3).Draw(t, "long")
	for i := range shape {
		most := min(left, 7)
		if i == long {
			most = min(left, 9000)
		}
		least := int64(1)
		if rapid.IntRange(0, 30).Draw(t, "empty") == 0 {
			least = 0
		}
		shape[i] = rapid.Int64Range(least, max(least, most)).Draw(t, "size")
		left /= max(1, shape[i])
	}
	return shape
}

// drawLayout returns a way to cut a tensor over ranks, or nil.
func drawLayout(t *rapid.T, shape []int64, ranks int) shard.Layout {
	kind := rapid.SampledFrom([]string{"none", "shard", "permuted", "flat", "one rank", "grid", "strided"}).Draw(t, "layout")
	if len(shape) == 0 && kind != "one rank" && kind != "flat" {
		kind = "none"
	}
	dim := func() int { return rapid.IntRange(0, len(shape)-1).Draw(t, "dim") }
	order := func() []int {
		all := make([]int, ranks)
		for r := range all {
			all[r] = r
		}
		return rapid.Permutation(all).Draw(t, "order of ranks")
	}
	switch kind {
	case "shard":
		return storagetest.Along(dim(), ranks)
	case "permuted":
		return shard.Placed{Mesh: shard.Mesh{Shape: []int{ranks}, Ranks: order()}, Placements: []shard.Placement{shard.Shard(dim())}}
	case "flat":
		return shard.FlatEven(ranks)
	case "one rank":
		return shard.Boxes(map[int]tensor.Box{rapid.IntRange(0, ranks-1).Draw(t, "rank"): tensor.Whole(shape)})
	case "grid":
		if ranks == 4 {
			second := rapid.SampledFrom([]shard.Placement{shard.Replicate(), shard.Shard(dim())}).Draw(t, "placement")
			return shard.Placed{Mesh: shard.Mesh{Shape: []int{2, 2}, Ranks: order()}, Placements: []shard.Placement{shard.Shard(dim()), second}}
		}
	case "strided":
		return shard.Placed{Mesh: shard.Mesh{Shape: []int{ranks}}, Placements: []shard.Placement{shard.StridedShard(dim(), 2)}}
	}
	return nil
}

func drawValue(t *rapid.T) any {
	return rapid.SampledFrom([]any{
		nil, true, int64(-5), 2.5, "text", "", []byte{}, []byte{1, 2}, []any{int64(1), "x", nil},
		bytes.Repeat([]byte{7}, 16<<10), bytes.Repeat([]byte{8}, 16<<10+1), bytes.Repeat([]byte{9}, 70_000),
		strings.Repeat("☃", 9000),
	}).Draw(t, "value")
}

// lying returns a tensor of zeros that lies in memory as m says.
func (m memory) lying(t testing.TB, d tensor.DType, shape []int64) *tensor.Tensor {
	n := len(shape)
	switch {
	case m == transposed && n >= 2:
		swapped := slices.Clone(shape)
		swapped[0], swapped[n-1] = swapped[n-1], swapped[0]
		return must.Get(must.Get(tensor.New(d, swapped))(t).Transpose(0, n-1))(t)
	case m == strided && n >= 1:
		wide := slices.Clone(shape)
		wide[n-1] *= 3
		return must.Get(must.Get(tensor.New(d, wide))(t).Slice(n-1, 0, wide[n-1], 3))(t)
	}
	return must.Get(tensor.New(d, shape))(t)
}

// share returns rank's share of a tensor, whole and zero if there is no
// layout, in memory as m says.
func share(t testing.TB, l shard.Layout, d tensor.DType, shape []int64, rank int, m memory) (any, *tensor.Tensor) {
	if l == nil {
		x := m.lying(t, d, shape)
		return x, x
	}
	local := must.Get(l.LocalShape(shape, rank))(t)
	if _, flat := l.(shard.Flat); flat {
		m = plain // its parts are views only of contiguous memory
	}
	x := m.lying(t, d, local)
	s := must.Get(shard.New(l, shape, rank, x))(t)
	return s, x
}

// fill copies a whole tensor's elements into a share of it.
func fill(t testing.TB, v any, whole *tensor.Tensor) {
	t.Helper()
	s, ok := v.(*shard.Tensor)
	if !ok {
		must.Do(t, tensor.Convert(v.(*tensor.Tensor), whole, tensor.CastAny))
		return
	}
	for i, b := range s.Boxes() {
		part := must.Get(s.Part(i))(t)
		must.Do(t, tensor.Convert(part, must.Get(whole.Narrow(b))(t), tensor.CastAny))
	}
}

func place(t testing.TB, s cairn.State, path meta.Path, v any) {
	t.Helper()
	must.Do(t, plan.Place(s, path, v))
}

// toSave returns the state that a rank saves.
func (j *job) toSave(t testing.TB, rank int) cairn.State {
	s := cairn.State{fmt.Sprint("rank ", rank): int64(rank)}
	for _, x := range j.tensors {
		v, _ := share(t, x.from, x.whole.DType(), x.whole.Shape(), rank, x.fromLayout)
		fill(t, v, x.whole)
		place(t, s, x.path, v)
	}
	for _, v := range j.values {
		placeValue(t, s, v.path, v.value)
	}
	return s
}

// placeValue is place for values that may be nil, which Place takes for a gap.
func placeValue(t testing.TB, s cairn.State, path meta.Path, v any) {
	t.Helper()
	if v == nil {
		v = (*struct{})(nil)
	}
	place(t, s, path, v)
}

// toLoad returns the blank state that a rank loads into.
func (j *job) toLoad(t testing.TB, rank int) cairn.State {
	s := cairn.State{}
	for r := range j.saveRanks {
		if r%j.loadRanks == rank {
			s[fmt.Sprint("rank ", r)] = nil
		}
	}
	for _, x := range j.tensors {
		v, _ := share(t, x.to, x.loadDType, x.whole.Shape(), rank, x.toLayout)
		place(t, s, x.path, v)
	}
	for _, v := range j.values {
		place(t, s, v.path, "blank")
	}
	return s
}

// check compares the state that a rank loaded with the expected one.
func (j *job) check(t testing.TB, rank int, state cairn.State) error {
	for _, x := range j.tensors {
		want, local := share(t, x.to, x.loadDType, x.whole.Shape(), rank, plain)
		fill(t, want, x.whole)
		got := at(state, x.path)
		if s, ok := got.(*shard.Tensor); ok {
			got = s.Local()
		}
		if !tensor.Equal(got.(*tensor.Tensor), local) {
			return fmt.Errorf("%q: other elements than were saved", x.path.FQN())
		}
	}
	for _, v := range j.values {
		if diff := cmp.Diff(v.value, at(state, v.path), cmp.Comparer(bytes.Equal)); diff != "" {
			return fmt.Errorf("%q (-want +got):\n%.500s", v.path.FQN(), diff)
		}
	}
	return nil
}

// at returns the value at a path.
func at(v any, path meta.Path) any {
	for _, s := range path {
		if s.List {
			v = v.([]any)[s.Pos]
		} else {
			v = v.(map[string]any)[s.Key]
		}
	}
	return v
}

// checkWhole reads the checkpoint without a job.
func (j *job) checkWhole(rt *rapid.T, t *testing.T, store blob.Store) {
	c := must.Get(cairn.Open(t.Context(), store))(rt)
	defer c.Close()
	if rep, err := c.Verify(t.Context(), nil); err != nil {
		rt.Fatalf("Verify = %+v, %v", rep, err)
	}
	state, _, err := cairn.LoadNew(t.Context(), store, nil)
	if err != nil {
		rt.Fatalf("LoadNew = %v", err)
	}
	for _, x := range j.tensors {
		if got := at(state, x.path).(*tensor.Tensor); !tensor.Equal(got, x.whole) {
			rt.Errorf("LoadNew: %q: other elements than were saved", x.path.FQN())
		}
		got, err := c.ReadTensor(t.Context(), x.path.FQN())
		if err != nil || !tensor.Equal(got, x.whole) {
			rt.Errorf("ReadTensor(%q) = %v, %v; want what was saved", x.path.FQN(), got, err)
		}
	}
}
