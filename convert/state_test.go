package convert_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(lockEnv); path != "" {
		holdLock(path)
		return
	}
	storagetest.RunAsChild(crashes)
	goleak.VerifyTestMain(m)
}

// nativeAt is a place for native checkpoints.
func nativeAt(s blob.Store) storagetest.Place {
	return storagetest.Place{
		Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}) },
		Reader: func() storage.Reader { return storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{}) },
	}
}

// sample returns the part of one rank of a state with values of many kinds.
func sample(t testing.TB, rank, ranks int) plan.State {
	cut := func(d tensor.DType, dim int, seed byte, shape ...int64) any {
		return storagetest.Cut(t, storagetest.Along(dim, ranks), storagetest.Filled(t, d, shape, seed), rank)
	}
	var layers []any
	for i := range 3 {
		layers = append(layers, map[string]any{
			"w": cut(tensor.Float32, 0, byte(i), 10, 12), "m": cut(tensor.BFloat16, 1, byte(i+50), 6, 9),
		})
	}
	s := plan.State{
		"model": map[string]any{
			"layers": layers, "norm": storagetest.Filled(t, tensor.Float32, []int64{7}, 9),
			"empty": storagetest.Filled(t, tensor.Float32, []int64{0, 3}, 0), "ids": storagetest.Filled(t, tensor.Int64, []int64{5}, 1),
			"scale": storagetest.Filled(t, tensor.Float64, nil, 3),
		},
		"step": 7, "name": "run", "blob": make([]byte, 100_000), "betas": []float64{0.9, 0.95},
	}
	return s
}

// saved returns a store with a native checkpoint of the sample, written by that number
// of ranks.
func saved(t testing.TB, ranks int) *mem.Store {
	t.Helper()
	s := &mem.Store{Name: "source"}
	states := make([]plan.State, ranks)
	for r := range states {
		states[r] = sample(t, r, ranks)
	}
	save(t, s, states...)
	return s
}

func save(t testing.TB, s blob.Store, states ...plan.State) {
	t.Helper()
	must.Do(t, storagetest.Save(context.Background(), nativeAt(s), storagetest.Storage("20260314t150926-00000001", 42, len(states)), states...))
}

// open opens the checkpoint of any format in s until the test ends.
func open(t testing.TB, s blob.Store) storage.Checkpoint {
	t.Helper()
	c := must.Get(formats.Open(context.Background(), s, nil))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// opened is open with the methods that read tensors and values.
func opened(t testing.TB, s blob.Store) *cairn.Checkpoint {
	t.Helper()
	return cairn.NewCheckpoint(s, open(t, s))
}

// toNative is a target of the native format in s. It has a journal if staged.
func toNative(s blob.Store, staged bool) *convert.Target {
	t := &convert.Target{Format: "native", NewWriter: func(n int64) (storage.Writer, error) {
		return native.Format{}.NewWriter(s, storage.WriteOptions{BufferBytes: n})
	}}
	if staged {
		t.Staging = s
	}
	return t
}

// converted converts the checkpoint in src to a new store.
func converted(t testing.TB, src blob.Store, o *convert.Options) (*mem.Store, *convert.Report) {
	t.Helper()
	dst := &mem.Store{Name: "target"}
	rep := must.Get(run(context.Background(), open(t, src), o, toNative(dst, true)))(t)
	return dst, rep
}

func run(ctx context.Context, src storage.Checkpoint, o *convert.Options, to *convert.Target) (*convert.Report, error) {
	job, err := convert.Plan(ctx, src, o)
	if err != nil {
		return nil, err
	}
	return convert.Run(ctx, job, to)
}

// digests returns the digests of all that a native checkpoint holds.
func digests(t testing.TB, s blob.Store) map[string]inspect.Digest {
	t.Helper()
	c := opened(t, s)
	md := must.Get(c.Metadata(t.Context()))(t)
	out := must.Get(inspect.Digests(context.Background(), c, inspect.Select(md), nil))(t)
	return out
}

// chunks returns the chunks of each tensor, as text.
func chunks(t testing.TB, s blob.Store) map[string]string {
	t.Helper()
	md := must.Get(open(t, s).Metadata(context.Background()))(t)
	out := map[string]string{}
	for _, e := range md.Entries {
		if e.Tensor != nil {
			out[e.FQN] = fmt.Sprint(e.Tensor.Chunks)
		}
	}
	return out
}

// verify checks every byte of a native checkpoint.
func verify(t testing.TB, s blob.Store) {
	t.Helper()
	rep, err := open(t, s).Verify(context.Background(), nil)
	if err != nil || len(rep.Problems) > 0 {
		t.Errorf("Verify = %+v, %v; want no problems", rep, err)
	}
}
