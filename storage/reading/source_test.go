package reading

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// noise returns bytes that all differ from their neighbours.
func noise(n int) []byte {
	out := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	if _, err := r.Read(out); err != nil {
		panic(err)
	}
	return out
}

// put writes a file.
func put(t testing.TB, s blob.Store, name string, data []byte) {
	t.Helper()
	must.Get(blob.WriteAll(context.Background(), s, name, data, nil))(t)
}

// scene builds a checkpoint from tensors with their places, values and files.
type scene struct {
	md     meta.Metadata
	files  []storage.File
	chunks map[string][]Place
	values map[string][]byte
}

func (s *scene) file(t testing.TB, store blob.Store, name string, data []byte) {
	t.Helper()
	put(t, store, name, data)
	s.files = append(s.files, storage.File{Name: name, Size: int64(len(data)), Unsummed: true})
}

// tensor adds a tensor of one chunk.
func (s *scene) tensor(fqn string, d tensor.DType, shape []int64, at Place) {
	s.sharded(fqn, d, shape, []tensor.Box{tensor.Whole(shape)}, []Place{at})
}

func (s *scene) sharded(fqn string, d tensor.DType, shape []int64, boxes []tensor.Box, at []Place) {
	e := meta.Entry{FQN: fqn, Tensor: &meta.Tensor{Properties: meta.Properties{DType: d}, Shape: shape, Chunks: boxes}}
	for _, c := range at {
		loc := meta.Location{}
		if c.Region != nil {
			loc = meta.Location{File: c.Region.File, Offset: c.Region.Offset, Length: c.Region.End - c.Region.Offset}
		}
		e.Tensor.Locs = append(e.Tensor.Locs, loc)
	}
	if s.chunks == nil {
		s.chunks = map[string][]Place{}
	}
	s.chunks[fqn] = at
	s.md.Entries = append(s.md.Entries, e)
}

func (s *scene) value(fqn, file string, data []byte) {
	if s.values == nil {
		s.values = map[string][]byte{}
	}
	s.values[fqn] = data
	s.md.Entries = append(s.md.Entries, meta.Entry{FQN: fqn, Bytes: &meta.Bytes{
		Codec: "raw", Size: int64(len(data)), Loc: meta.Location{File: file, Length: int64(len(data))},
	}})
}

func (s *scene) source() *Source {
	slices.SortFunc(s.md.Entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	return &Source{
		Metadata: &s.md, Files: s.files,
		Place: func(_ context.Context, e *meta.Entry, i int) (Place, error) { return s.chunks[e.FQN][i], nil },
		Value: func(_ context.Context, e *meta.Entry) (string, []byte, error) {
			if v, ok := s.values[e.FQN]; ok {
				return "raw", v, nil
			}
			return "", nil, fmt.Errorf("%w: no such value", storage.ErrCorrupt)
		},
	}
}

// target receives tensors and values, into tensors of its own.
type target struct {
	t  testing.TB
	to map[*plan.ReadItem]*tensor.Tensor

	mu     sync.Mutex
	done   map[*plan.ReadItem]int
	values map[string]string
}

func newTarget(t testing.TB) *target {
	return &target{t: t, to: map[*plan.ReadItem]*tensor.Tensor{}, done: map[*plan.ReadItem]int{}, values: map[string]string{}}
}

func (g *target) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) { return g.to[it], nil }

func (g *target) CommitTensor(it *plan.ReadItem, x *tensor.Tensor) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done[it]++
	if x != g.to[it] {
		g.t.Errorf("%v was committed with another tensor", it.Source)
	}
	return nil
}

func (g *target) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done[it]++
	g.values[it.Source.FQN] = codec + ":" + string(data)
	return nil
}

// want adds the read of a box of a chunk to a plan.
func want(p *plan.LoadPlan, fqn string, chunk, box tensor.Box) {
	at := meta.Index{FQN: fqn, Offset: chunk.Offsets}
	p.Items = append(p.Items, plan.ReadItem{
		Kind: plan.KindTensor, Source: at, Dest: at, SourceOffsets: box.Offsets, DestOffsets: make([]int64, box.Dims()), Lengths: box.Sizes,
	})
}

// fill gives every item of a plan a contiguous tensor of a dtype.
func (g *target) fill(p *plan.LoadPlan, d tensor.DType) {
	for i := range p.Items {
		x, err := tensor.New(d, p.Items[i].Lengths)
		if err != nil {
			g.t.Fatal(err)
		}
		g.to[&p.Items[i]] = x.Lossy()
	}
}

// read reads a plan from a checkpoint.
func read(t testing.TB, c *Checkpoint, p *plan.LoadPlan, dst storage.Receiver, o storage.ReadOptions) (storage.ReadStats, error) {
	t.Helper()
	md := must.Get(c.Metadata(t.Context()))(t)
	return c.Read(t.Context(), md, p, dst, o)
}

// one returns a checkpoint with a single tensor "x" in a file of the given
// bytes.
func one(t testing.TB, d tensor.DType, shape []int64, r Region, data []byte) (*Checkpoint, *mem.Store) {
	t.Helper()
	store := new(mem.Store)
	var s scene
	s.file(t, store, "data", data)
	r.File = "data"
	s.tensor("x", d, shape, Place{Region: &r})
	return Open(store, s.source()), store
}
