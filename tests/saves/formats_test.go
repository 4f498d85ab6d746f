package saves

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A checkpoint that its format has opened, with options of its own, is read like
// any other.
func TestNewCheckpoint(t *testing.T) {
	c := storagetest.Fixtures(t, "torch-2.14/safetensors")[0]
	store := must.Get(file.Open(c.Dir, nil))(t)
	opened := must.Get(hf.Format{}.Open(t.Context(), store))(t)
	ck := cairn.NewCheckpoint(store, opened)
	defer ck.Close()
	for name, it := range c.Items {
		x := must.Get(ck.ReadTensor(t.Context(), name))(t)
		if x.DType().String() != it.DType || x.NumBytes() != it.NumBytes {
			t.Errorf("%s is %v of %d bytes; want %s of %d", name, x, x.NumBytes(), it.DType, it.NumBytes)
		}
	}
}

// Every way to save refuses to replace a checkpoint of another format, on all ranks and
// before it writes. Open, Load and Latest find the checkpoint that was confirmed.
func TestSaveOverAnotherFormat(t *testing.T) {
	all := []storage.Format{native.Format{}, torchdcp.Format{}, hyper.Format{}, hf.Format{}, torchfile.Format{File: "model.pt"}}
	ways := map[string]func(ctx context.Context, s blob.Store, o cairn.SaveOptions) error{
		"Save": func(ctx context.Context, s blob.Store, o cairn.SaveOptions) error {
			_, err := cairn.Save(ctx, s, cairn.State{"x": ones(t, 2)}, &o)
			return err
		},
		"Save by two ranks": func(ctx context.Context, s blob.Store, o cairn.SaveOptions) error {
			errs := make([]error, 2)
			done := make(chan bool)
			for rank, g := range inproc.New(2) {
				go func() {
					defer func() { done <- true }()
					o := o
					o.Group = g
					_, errs[rank] = cairn.Save(ctx, s, cairn.State{"x": ones(t, 2)}, &o)
				}()
			}
			<-done
			<-done
			if !errors.Is(errs[1], cairn.ErrExists) {
				return errs[1]
			}
			return errs[0]
		},
		"SaveAsync": func(ctx context.Context, s blob.Store, o cairn.SaveOptions) error {
			st, err := cairn.NewStager(nil)
			if err != nil {
				return err
			}
			defer st.Close(ctx)
			p, err := cairn.SaveAsync(ctx, s, cairn.State{"x": ones(t, 2)}, &cairn.AsyncOptions{SaveOptions: o, Stager: st})
			if err != nil {
				return err
			}
			_, err = p.Wait(ctx)
			return err
		},
	}
	for _, old := range all {
		run := t.TempDir()
		dir := filepath.Join(run, "step-1")
		s := must.Get(file.Open(dir, nil))(t)
		must.Get(cairn.Save(t.Context(), s, cairn.State{"x": ones(t, 1)}, &cairn.SaveOptions{Format: old}))(t)
		before := storagetest.Names(t, s)
		for _, young := range all {
			if young.Name() == old.Name() {
				continue
			}
			for way, save := range ways {
				for _, fail := range []bool{true, false} {
					what := way + ": " + young.Name() + " over " + old.Name()
					if err := save(t.Context(), s, cairn.SaveOptions{Format: young, FailIfExists: fail}); !errors.Is(err, cairn.ErrExists) {
						t.Errorf("%s: %v; want ErrExists", what, err)
					}
					if after := storagetest.Names(t, s); !slices.Equal(after, before) {
						t.Fatalf("%s: the folder has %v; want %v", what, after, before)
					}
				}
			}
		}
		got := ones(t, 0)
		found, err := cairn.Latest(t.Context(), run, nil)
		if err != nil || found.Path != dir {
			t.Errorf("%s: Latest = %+v, %v; want %s", old.Name(), found, err, dir)
		}
		if _, err := cairn.Load(t.Context(), s, cairn.State{"x": got}, nil); err != nil || !tensor.Equal(got, ones(t, 1)) {
			t.Errorf("%s: Load: %v, %v; want the state that was saved", old.Name(), got, err)
		}
	}
}

// ones returns a tensor of eight elements x.
func ones(t *testing.T, x float32) *tensor.Tensor {
	t.Helper()
	out := must.Get(tensor.Of([]int64{8}, []float32{x, x, x, x, x, x, x, x}))(t)
	return out
}
