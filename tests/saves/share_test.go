package saves

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// sharer is how a rank of a shared load differs from the others.
type sharer struct {
	asks, mute bool // it sets Share; its group has no messages
	job        *job // the tensors that it loads, in dtypes and memory of its own
}

func drawSharer(rt *rapid.T, j *job) sharer {
	own := *j
	own.tensors = slices.Clone(j.tensors)
	for i := range own.tensors {
		x := &own.tensors[i]
		x.loadDType = rapid.SampledFrom([]tensor.DType{x.whole.DType(), x.loadDType, tensor.Float32}).Draw(rt, "as")
		x.toLayout = rapid.SampledFrom([]memory{plain, transposed, strided}).Draw(rt, "memory")
	}
	return sharer{rapid.IntRange(0, 4).Draw(rt, "asks") > 0, rapid.IntRange(0, 6).Draw(rt, "mute") == 0, &own}
}

// property: whoever takes part, and however the ranks' states lie in memory, a
// load that is shared ends like one that is not, and reads no more of the blocks that hold
// the requested bytes.
func TestShareLoadsSameState(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		store := drawStore(rt)
		job := drawJob(rt, t)
		job.loadRanks = rapid.IntRange(2, 5).Draw(rt, "ranks")
		for i := range job.tensors { // the layouts drawn are for another number
			job.tensors[i].to = drawLayout(rt, job.tensors[i].whole.Shape(), job.loadRanks)
			if rapid.Bool().Draw(rt, "replicated") {
				job.tensors[i].to = nil
			}
		}
		ranks := make([]sharer, job.loadRanks)
		for r := range ranks {
			ranks[r] = drawSharer(rt, job)
		}
		must.Do(rt, shareJob(t, store, job, ranks))
	})
}

// Memory for one piece alone makes a rank read in several calls. On a store with dear
// requests, each call also reads the holes between its pieces, which here are the pieces of
// the other call: the load reads some bytes twice.
func TestShareSeveralReads(t *testing.T) {
	j := &job{saveRanks: 1, loadRanks: 2, loadBuffer: 1}
	for i, x := range []drawnTensor{
		{loadDType: tensor.Float32, whole: storagetest.Filled(t, tensor.Float32, nil, 0)},
		{loadDType: tensor.Float32, whole: storagetest.Filled(t, tensor.Float32, nil, 1), to: shard.FlatEven(2)},
		{loadDType: tensor.Float64, whole: storagetest.Filled(t, tensor.Float64, []int64{2}, 2), to: storagetest.Along(0, 2)},
		{loadDType: tensor.Float64, whole: storagetest.Filled(t, tensor.Float64, nil, 3)},
	} {
		x.path, x.fromLayout, x.toLayout = meta.Path{meta.Key(fmt.Sprint("t", i))}, plain, plain
		j.tensors = append(j.tensors, x)
	}
	other := *j
	other.tensors = slices.Clone(j.tensors)
	other.tensors[0].loadDType = tensor.Float64 // is read into memory of its own
	if err := shareJob(t, dearStore{new(mem.Store)}, j, []sharer{{true, false, j}, {true, false, &other}}); err != nil {
		t.Error(err)
	}
}

// shareJob saves a job and loads it with and without sharing. It returns how the
// shared load is worse.
func shareJob(t *testing.T, store blob.Store, j *job, ranks []sharer) error {
	err := inproc.Run(t.Context(), j.saveRanks, func(ctx context.Context, g group.Group) error {
		_, err := cairn.Save(ctx, store, j.toSave(t, g.Rank()), &cairn.SaveOptions{Group: g, FilesPerRank: j.files})
		return err
	})
	if err != nil {
		return fmt.Errorf("Save: %w", err)
	}
	var stats [2]storage.ReadStats // without sharing and with
	for i, share := range []bool{false, true} {
		err := inproc.Run(t.Context(), j.loadRanks, func(ctx context.Context, g group.Group) error {
			me := ranks[g.Rank()]
			state := me.job.toLoad(t, g.Rank())
			o := &cairn.LoadOptions{Group: g, Share: share && me.asks, BufferBytes: j.loadBuffer, Parallel: j.parallel, RejectUnexpected: true, Cast: tensor.CastAny}
			if me.mute {
				o.Group = struct{ group.Group }{g}
			}
			rep, err := cairn.Load(ctx, store, state, o)
			if err != nil {
				return err
			}
			if g.Rank() == 0 {
				stats[i] = rep.Total
			}
			return me.job.check(t, g.Rank(), state)
		})
		if err != nil {
			return fmt.Errorf("Load, share %v: %w", share, err)
		}
	}
	alone, shared := stats[0], stats[1]
	if shared.Rounded-shared.Received > alone.Rounded || shared.Needed != alone.Needed || alone.Received != 0 || shared.Received > shared.Needed {
		return fmt.Errorf("shared %+v; alone %+v", shared, alone)
	}
	// Calls of a load with little memory may read the same holes.
	if _, dear := store.(dearStore); (!dear || j.loadBuffer == 0) && shared.Read > alone.Read {
		return fmt.Errorf("shared %+v; alone %+v", shared, alone)
	}
	return nil
}

// patterned quickly returns a tensor. Its bytes repeat after 4,099 of them; for the seed 0,
// they are zeros.
func patterned(t testing.TB, d tensor.DType, shape []int64, seed byte) *tensor.Tensor {
	x := must.Get(tensor.New(d, shape))(t)
	b, _ := x.Bytes()
	if seed == 0 {
		return x
	}
	for i := range min(len(b), 4099) {
		b[i] = byte(i>>8) ^ byte(i)*seed
	}
	for n := 4099; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
	return x
}

// replicated returns a state that all ranks have alike: large tensors, and many
// small ones.
func replicated(t testing.TB, seed byte) (s cairn.State, bytes int64) {
	s = cairn.State{
		"embed": patterned(t, tensor.Float32, []int64{8704, 1 << 10}, seed), // 34 MiB: is cut
		"a":     patterned(t, tensor.BFloat16, []int64{1500, 1000}, 3*seed),
		"b":     patterned(t, tensor.BFloat16, []int64{1500, 1000}, 5*seed),
	}
	for i := range 300 {
		s[fmt.Sprint("norm.", i)] = patterned(t, tensor.Float32, []int64{1000}, byte(2*i+1)*seed)
	}
	for _, x := range s {
		bytes += x.(*tensor.Tensor).NumBytes()
	}
	return s, bytes
}

// saveFormats are formats to save in.
var saveFormats = map[string]storage.Format{"native": nil, "torchdcp": torchdcp.Format{}}

// saved returns a store with a model in a format.
func saved(t testing.TB, format string) (*mem.Store, cairn.State, int64) {
	t.Helper()
	store := new(mem.Store)
	state, bytes := replicated(t, 1)
	must.Get(cairn.Save(t.Context(), store, state, &cairn.SaveOptions{Format: saveFormats[format]}))(t)
	return store, state, bytes
}

// loadModel loads the model on one rank, compares it and returns the report.
func loadModel(ctx context.Context, t testing.TB, g group.Group, store blob.Store, want cairn.State, share bool) (*cairn.LoadReport, error) {
	got, _ := replicated(t, 0)
	rep, err := cairn.Load(ctx, store, got, &cairn.LoadOptions{Group: g, Share: share})
	if err != nil {
		return nil, err
	}
	for name, x := range want {
		if !tensor.Equal(x.(*tensor.Tensor), got[name].(*tensor.Tensor)) {
			return nil, fmt.Errorf("%s has other elements", name)
		}
	}
	return rep, nil
}

// Replicas of a model read it once between them, in any format, and in equal parts if
// the format allows large chunks to be cut.
func TestReplicasReadOnce(t *testing.T) {
	const n = 3
	for format := range saveFormats {
		store, want, bytes := saved(t, format)
		var most int64
		var mu sync.Mutex
		jobtest.OnRanks(t, n, func(ctx context.Context, g group.Group) error {
			rep, err := loadModel(ctx, t, g, store, want, true)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			most = max(most, rep.Local.Read)
			if r := rep.Total; r.Read < bytes || r.Read > bytes+bytes/50 || r.Needed != n*bytes || r.Received != (n-1)*bytes {
				return fmt.Errorf("%s: %+v; want %d bytes to be read once", format, r, bytes)
			}
			return nil
		})
		if format == "native" && most > bytes/2 {
			t.Errorf("a rank read %d bytes of %d", most, bytes)
		}
	}
}

// A damaged file is noticed on all ranks, whoever reads it, in any format.
func TestSharedLoadOfADamagedFile(t *testing.T) {
	for format := range saveFormats {
		store, want, _ := saved(t, format)
		for _, name := range storagetest.Names(t, store) {
			if !strings.HasSuffix(name, ".safetensors") && !strings.HasSuffix(name, ".distcp") {
				continue
			}
			storagetest.Flip(t, store, name)
		}
		for r, err := range bubble(t, 3, func(ctx context.Context, g group.Group) error {
			_, err := loadModel(ctx, t, g, store, want, true)
			return err
		}) {
			if !errors.Is(err, cairn.ErrCorrupt) {
				t.Errorf("%s: rank %d returned %v; want %v", format, r, err, cairn.ErrCorrupt)
			}
		}
	}
}

// together runs fn on every rank of a group.
func together[G group.Group](gs []G, fn func(g group.Group) error) error {
	errs := make([]error, len(gs))
	var wg sync.WaitGroup
	for r, g := range gs {
		wg.Go(func() { errs[r] = fn(g) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func TestShareOverTCP(t *testing.T) {
	const n = 3
	store, want, bytes := saved(t, "native")
	gs := tcptest.Meet(t, n, tcptest.ByFile(t, n))
	must.Do(t, together(gs, func(g group.Group) error {
		rep, err := loadModel(t.Context(), t, g, store, want, true)
		if err == nil && (rep.Total.Read > bytes+bytes/50 || rep.Total.Received != (n-1)*bytes) {
			err = fmt.Errorf("%+v; want %d bytes to be read once", rep.Total, bytes)
		}
		return err
	}))
	// Ranks that wait for a rank notice when it goes.
	gone := errors.New("node lost")
	errs := make([]error, n)
	_ = together(gs, func(g group.Group) error {
		o := &cairn.LoadOptions{Group: g, Share: true}
		if g.Rank() == 2 {
			o.Observer = &cairn.Observer{Moved: func(int64) { g.(*tcp.Group).Leave(gone) }}
		}
		got, _ := replicated(t, 0)
		_, errs[g.Rank()] = cairn.Load(t.Context(), store, got, o)
		return nil
	})
	for r, err := range errs {
		if !errors.Is(err, group.ErrGone) {
			t.Errorf("rank %d returned %v; want %v", r, err, group.ErrGone)
		}
	}
}
