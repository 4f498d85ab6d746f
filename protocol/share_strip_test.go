package protocol_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// boxes is a tensor of which a rank wants some boxes.
type boxes struct {
	shape []int64
	dtype tensor.DType
	boxes []tensor.Box
	parts []*tensor.Tensor
}

func (b *boxes) GlobalShape() []int64               { return b.shape }
func (b *boxes) DType() tensor.DType                { return b.dtype }
func (b *boxes) Boxes() []tensor.Box                { return b.boxes }
func (b *boxes) Part(i int) (*tensor.Tensor, error) { return b.parts[i], nil }

func newBoxes(t *rapid.T, d tensor.DType, shape []int64, all ...tensor.Box) *boxes {
	b := &boxes{shape: shape, dtype: d, boxes: all}
	for _, box := range all {
		b.parts = append(b.parts, must.Get(tensor.New(d, box.Sizes))(t))
	}
	return b
}

// Ranks that want different columns of a tensor read each byte once, and get the same
// elements as without sharing.
func TestShareStrips(tt *testing.T) {
	deep.Check(tt, func(t *rapid.T) {
		format := rapid.SampledFrom([]storage.Format{native.Format{}, hf.Format{}}).Draw(t, "format")
		shape := []int64{rapid.Int64Range(1, 90).Draw(t, "rows"), rapid.Int64Range(1, 3).Draw(t, "middle"), rapid.Int64Range(300, 2000).Draw(t, "columns")}
		store := new(mem.Store)
		saved := storagetest.Filled(tt, tensor.Float32, shape, 3)
		_, err := protocol.Save(t.Context(), protocol.RankSave{
			Group: inproc.New(1)[0], Planner: new(plan.DefaultSave), Writer: must.Get(format.NewWriter(store, storage.WriteOptions{}))(t),
			State: plan.State{"w": saved}, Storage: meta.Storage{SaveID: "one", Time: time.Unix(1e9, 0), WorldSize: 1},
		})
		must.Do(t, err)

		ranks := rapid.IntRange(2, 5).Draw(t, "ranks")
		apart := rapid.Bool().Draw(t, "apart") // the ranks divide the columns
		memory := rapid.SampledFrom([]int64{0, 1, 100_000}).Draw(t, "memory")
		wanted := make([]*boxes, ranks)
		for r := range wanted {
			lo, hi := shape[2]*int64(r)/int64(ranks), shape[2]*int64(r+1)/int64(ranks)
			if !apart {
				lo = rapid.Int64Range(0, shape[2]-1).Draw(t, "lo")
				hi = rapid.Int64Range(lo+1, shape[2]).Draw(t, "hi")
			}
			d := rapid.SampledFrom([]tensor.DType{tensor.Float32, tensor.Float64}).Draw(t, "dtype")
			wanted[r] = newBoxes(t, d, shape, tensor.Box{Offsets: []int64{0, 0, lo}, Sizes: []int64{shape[0], shape[1], hi - lo}})
		}
		reports, errs := make([]*protocol.LoadReport, ranks), make([]error, ranks)
		var wg sync.WaitGroup
		for _, g := range inproc.New(ranks) {
			wg.Go(func() {
				r := g.Rank()
				c, err := formats.Open(t.Context(), store, nil)
				if err == nil {
					reports[r], err = protocol.Load(t.Context(), protocol.RankLoad{
						Group: g, Planner: new(plan.DefaultLoad), Reader: storage.ReaderOf(c, storage.ReadOptions{}),
						State: plan.State{"w": wanted[r]}, Share: true, BufferBytes: memory,
					})
				}
				if errs[r] = err; err != nil {
					g.Leave(err)
				}
			})
		}
		wg.Wait()
		must.Do(t, errors.Join(errs...))
		for r, w := range wanted {
			want := must.Get(saved.Narrow(w.boxes[0]))(t)
			if got := must.Get(tensor.Cast(want, w.dtype))(t); !tensor.Equal(w.parts[0], got) {
				t.Fatalf("rank %d has other elements", r)
			}
			need := w.boxes[0].Volume() * 4
			if got := reports[r].Local; got.Needed != need || got.Read+got.Received < need {
				t.Fatalf("rank %d needed %d bytes: %+v", r, need, got)
			}
		}
		bytes := shape[0] * shape[1] * shape[2] * 4
		if total := reports[0].Total; apart && bytes >= 64<<10 && total.Read > bytes {
			t.Fatalf("%d of %d bytes were read: %+v", total.Read, bytes, total)
		}
	})
}

// Ranks of different hosts do not read for each other.
func TestShareAmongHosts(t *testing.T) {
	s := new(mem.Store)
	saveReplicas(t, s)
	read := func(host func(rank int) string) int64 {
		reports, errs := make([]*protocol.LoadReport, world), make([]error, world)
		var wg sync.WaitGroup
		for _, g := range inproc.New(world) {
			wg.Go(func() {
				job := shareJob(t, g, s)
				job.Host = host(g.Rank())
				if reports[g.Rank()], errs[g.Rank()] = protocol.Load(t.Context(), job); errs[g.Rank()] == nil {
					errs[g.Rank()] = checkReplica(t, job.State, g.Rank())
				}
			})
		}
		wg.Wait()
		must.Do(t, errors.Join(errs...))
		return reports[0].Total.Received
	}
	one := read(func(int) string { return "a" })
	two := read(func(rank int) string { return fmt.Sprint(rank / 2) })
	each := read(func(rank int) string { return fmt.Sprint(rank) })
	if each != 0 || two == 0 || two >= one {
		t.Errorf("received on one host %d bytes, on two %d, on one for each rank %d", one, two, each)
	}
}
