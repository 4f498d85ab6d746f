package formats_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The forms of hf with several files.
const (
	hfIndex       = "hf with an index"
	hfDistributed = "hf distributed"
)

func stateOf(t testing.TB, seed byte) plan.State {
	return plan.State{"v": storagetest.Filled(t, tensor.Float32, []int64{64}, seed), "w": storagetest.Filled(t, tensor.Float32, []int64{64}, seed)}
}

// formatOf returns the format of a form.
func formatOf(form string) string {
	if form == hfIndex || form == hfDistributed {
		return formats.HF
	}
	return form
}

func newSaving(t testing.TB, s blob.Store, format, id string) *storagetest.Saving {
	o := formats.Options{Distributed: format == hfDistributed}
	if format == formats.Torch {
		o.File = "model.pt"
	}
	if format == hfIndex {
		o.Shards = 2
	}
	f := must.Get(formats.ByName(formatOf(format), &o))(t)
	p := storagetest.Place{Writer: func() storage.Writer {
		w := must.Get(f.NewWriter(s, storage.WriteOptions{}))(t)
		return w
	}}
	return storagetest.NewSaving(p, storagetest.Storage(id, 1, 1), 1)
}

// If a checkpoint is replaced while it is opened or read, the new one is opened or the
// error is ErrChanged.
func TestReplacedAtEveryOperation(t *testing.T) {
	for _, format := range []string{formats.Native, formats.TorchDCP, formats.Hyper, formats.HF, hfIndex, hfDistributed, formats.Torch} {
		t.Run(format, func(t *testing.T) {
			changed := 0
			for n := int64(1); ; n++ {
				inner := new(mem.Store)
				replace := func(id string, seed byte) {
					must.Do(t, newSaving(t, inner, format, id).Run(t.Context(), []plan.State{stateOf(t, seed)}))
				}
				replace("first", 1)
				var ops atomic.Int64
				s := fault.New(inner, fault.Rule{Match: func(string) bool {
					if ops.Add(1) == n {
						replace(fmt.Sprint("second-", n), byte(n))
					}
					return false
				}})
				err := openAndRead(t, s, format)
				if err != nil && (!errors.Is(err, storage.ErrChanged) || errors.Is(err, storage.ErrCorrupt)) {
					t.Errorf("replaced before operation %d: %v; want %v or nothing", n, err, storage.ErrChanged)
				}
				if err != nil {
					changed++
				}
				if ops.Load() < n {
					break
				}
			}
			if changed == 0 {
				t.Error("no error says that the checkpoint was replaced")
			}
		})
	}
}

// openAndRead opens a checkpoint, reads all of it, and verifies it.
func openAndRead(t *testing.T, s blob.Store, format string) error {
	t.Helper()
	f := must.Get(formats.ByName(formatOf(format), nil))(t)
	c, err := f.Open(t.Context(), s)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer c.Close()
	p := storagetest.Place{Reader: func() storage.Reader { return storage.ReaderOf(c, storage.ReadOptions{}) }}
	got := plan.State{"v": storagetest.Filled(t, tensor.Float32, []int64{64}, 0), "w": storagetest.Filled(t, tensor.Float32, []int64{64}, 0)}
	if err := storagetest.Load(t.Context(), p, got); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if !tensor.Equal(got["v"].(*tensor.Tensor), got["w"].(*tensor.Tensor)) {
		t.Error("the tensors are of two checkpoints")
	}
	rep, err := c.Verify(t.Context(), nil)
	if err == nil && len(rep.Problems) > 0 {
		err = fmt.Errorf("%w: %+v", storage.ErrCorrupt, rep.Problems)
	}
	if err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	return nil
}
