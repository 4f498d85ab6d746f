package saves

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

func TestCheckpointReadBox(t *testing.T) {
	store := new(mem.Store)
	x := jobtest.Whole(t, []int64{6, 4}, 1)
	mustSave(t, store, cairn.State{"x": x, "v": []any{int64(1), "two"}, "raw": []byte{1, 2, 3}, "none": []byte{}})
	c := jobtest.MustOpen(t, store)
	ctx := t.Context()

	box := tensor.Box{Offsets: []int64{1, 2}, Sizes: []int64{3, 2}}
	dst, want := must.Get(must.Get(tensor.New(tensor.Float64, []int64{2, 3}))(t).Transpose(0, 1))(t), must.Get(tensor.New(tensor.Float64, []int64{3, 2}))(t)
	must.Do(t, tensor.Convert(want, must.Get(x.Narrow(box))(t), tensor.CastAny))
	if err := c.ReadBox(ctx, "x", box, dst); err != nil || !tensor.Equal(dst, want) {
		t.Errorf("ReadBox = %v, or other elements", err)
	}
	hollow := tensor.Box{Offsets: []int64{6, 0}, Sizes: []int64{0, 4}}
	if err := c.ReadBox(ctx, "x", hollow, must.Get(tensor.New(tensor.Float32, []int64{0, 4}))(t)); err != nil {
		t.Errorf("ReadBox of nothing = %v", err)
	}
	for name, want := range map[string]any{"v": []any{int64(1), "two"}, "raw": []byte{1, 2, 3}, "none": []byte{}} {
		if got, err := c.ReadValue(ctx, name); err != nil || !cmp.Equal(got, want) {
			t.Errorf("ReadValue(%q) = %#v, %v; want %#v", name, got, err, want)
		}
	}
	e := must.Get(c.Entry(ctx, "raw"))(t)
	if codec, data, err := c.ReadBytes(ctx, e); err != nil || codec != "raw" || !slices.Equal(data, []byte{1, 2, 3}) {
		t.Errorf("ReadBytes = %q, %v, %v", codec, data, err)
	}
	ex := must.Get(c.Entry(ctx, "x"))(t)
	for what, c := range map[string]struct{ err, want error }{
		"Entry of an unknown name":       {second(c.Entry(ctx, "y")), cairn.ErrMissing},
		"ReadTensor of an unknown name":  {second(c.ReadTensor(ctx, "y")), cairn.ErrMissing},
		"ReadValue of an unknown name":   {second(c.ReadValue(ctx, "y")), cairn.ErrMissing},
		"ReadTensor of a value":          {second(c.ReadTensor(ctx, "v")), cairn.ErrMismatch},
		"ReadValue of a tensor":          {second(c.ReadValue(ctx, "x")), cairn.ErrMismatch},
		"ReadEntries of a value":         {c.ReadEntries(ctx, []*meta.Entry{e}, []*tensor.Tensor{x}), cairn.ErrMismatch},
		"ReadEntries into another shape": {c.ReadEntries(ctx, []*meta.Entry{ex}, []*tensor.Tensor{dst}), tensor.ErrShape},
		"ReadEntries into too few":       {c.ReadEntries(ctx, []*meta.Entry{ex}, nil), tensor.ErrShape},
		"ReadEntries of one name twice":  {c.ReadEntries(ctx, []*meta.Entry{ex, ex}, []*tensor.Tensor{x, x}), cairn.ErrMismatch},
		"ReadBox of a value":             {c.ReadBox(ctx, "v", box, dst), cairn.ErrMismatch},
		"ReadBox into another shape":     {c.ReadBox(ctx, "x", box, x), tensor.ErrShape},
		"ReadBox outside of the tensor":  {c.ReadBox(ctx, "x", tensor.Box{Offsets: []int64{5, 2}, Sizes: []int64{3, 2}}, dst), tensor.ErrShape},
		"ReadBox of too many dimensions": {c.ReadBox(ctx, "x", tensor.Box{Offsets: []int64{0}, Sizes: []int64{3, 2}}, dst), tensor.ErrShape},
	} {
		ce, ok := errors.AsType[*cairn.Error](c.err)
		if !errors.Is(c.err, c.want) || !ok || ce.Op != "read" {
			t.Errorf("%s = %v; want a *cairn.Error that wraps %v", what, c.err, c.want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestCheckpointInfo(t *testing.T) {
	store := new(mem.Store)
	rep := must.Get(cairn.Save(t.Context(), store, nested(t), &cairn.SaveOptions{Step: new(int64(12)), Tags: map[string]string{"run": "a"}}))(t)
	c := jobtest.MustOpen(t, store)
	info := c.Info()
	if *info.Step != 12 || info.SaveID != rep.SaveID || info.Tags["run"] != "a" || info.WorldSize != 1 || info.Writer != "cairn "+cairn.Version {
		t.Errorf("Info = %+v", info)
	}
	var sizes int64
	for _, f := range c.Files() {
		got, err := store.Stat(t.Context(), f.Name)
		if err != nil || got.Size != f.Size {
			t.Errorf("%s has %d bytes, %v; Files says %d", f.Name, got.Size, err, f.Size)
		}
		sizes += f.Size
	}
	if sizes != c.TotalBytes() {
		t.Errorf("TotalBytes = %d; the files have %d", c.TotalBytes(), sizes)
	}
	md := must.Get(c.Metadata(t.Context()))(t)
	want := []string{"empty", "model.layers.0.k", "model.layers.1", "model.layers.2", "model.layers.3.0", "model.layers.3.1", "model.w", "modeler", "opt.betas", "opt.lr"}
	if diff := cmp.Diff(want, md.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	var told int64
	if v, err := c.Verify(t.Context(), func(n int64) { told += n }); err != nil || v.Bytes != told || told != sizes {
		t.Errorf("Verify = %+v, %v; told of %d bytes; want %d", v, err, told, sizes)
	}
}

func TestVerifyNamesTheFirstProblem(t *testing.T) {
	store := new(mem.Store)
	mustSave(t, store, cairn.State{"x": jobtest.Whole(t, []int64{64}, 1)})
	c := jobtest.MustOpen(t, store)
	data := c.Files()[1].Name
	must.Do(t, fault.Damage(t.Context(), store, data, func(b []byte) []byte { b[len(b)-1] ^= 4; return b }))
	rep, err := c.Verify(t.Context(), nil)
	if !errors.Is(err, cairn.ErrCorrupt) || !strings.Contains(err.Error(), data) || len(rep.Problems) != 2 {
		t.Errorf("Verify = %+v, %v; want the file and the tensor named", rep, err)
	}
	if _, err := c.ReadTensor(t.Context(), "x"); !errors.Is(err, cairn.ErrCorrupt) {
		t.Errorf("ReadTensor = %v; want %v", err, cairn.ErrCorrupt)
	}
}

// A tensor that claims more bytes than its files have costs no memory.
func TestReadTensorChecksFilesFirst(t *testing.T) {
	store := new(mem.Store)
	const huge, name = int64(1) << 37, "s-r00000-0.safetensors"
	e := meta.Entry{FQN: "x", Tensor: &meta.Tensor{Shape: []int64{huge}, Chunks: []tensor.Box{tensor.Whole([]int64{huge})}}}
	e.Tensor.DType = tensor.Uint8
	e.Tensor.Locs = []meta.Location{{File: name, Length: huge, Sums: make([]uint32, native.Sums([]int64{huge}, 1))}}
	md := &meta.Metadata{Entries: []meta.Entry{e}, Storage: meta.Storage{SaveID: "s"}}
	must.Do(t, native.Commit(t.Context(), store, md, []storage.File{{Name: name, Size: huge}}))
	if _, err := jobtest.MustOpen(t, store).ReadTensor(t.Context(), "x"); !errors.Is(err, cairn.ErrCorrupt) {
		t.Errorf("ReadTensor = %v; want %v", err, cairn.ErrCorrupt)
	}
	if _, _, err := cairn.LoadNew(t.Context(), store, nil); !errors.Is(err, cairn.ErrCorrupt) {
		t.Errorf("LoadNew = %v; want %v", err, cairn.ErrCorrupt)
	}
}

func TestOpenPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	store := must.Get(cairn.OpenStore(dir))(t)
	if _, err := cairn.OpenPath(t.Context(), dir); !errors.Is(err, cairn.ErrNotFound) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenPath of nothing = %v; want ErrNotFound and fs.ErrNotExist", err)
	}
	must.Get(cairn.Save(t.Context(), store, cairn.State{"n": 1}, nil))(t)
	c := must.Get(cairn.OpenPath(t.Context(), dir))(t)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// The folder of a run of Megatron opens and loads as the checkpoint that its file names.
func TestOpenFollowsAPointer(t *testing.T) {
	store := new(mem.Store)
	x := jobtest.Whole(t, []int64{6, 4}, 1)
	at := must.Get(blob.NewSub(store, "iter_0000007"))(t)
	must.Get(cairn.Save(t.Context(), at, cairn.State{"x": x}, &cairn.SaveOptions{Format: torchdcp.Format{}}))(t)
	must.Get(blob.WriteAll(t.Context(), store, "latest_checkpointed_iteration.txt", []byte("7"), nil))(t)
	c := jobtest.MustOpen(t, store)
	if missing, err := c.MissingFiles(t.Context()); err != nil || len(missing) > 0 {
		t.Errorf("MissingFiles = %v, %v", missing, err)
	}
	got := jobtest.Whole(t, []int64{6, 4}, 9)
	if _, err := cairn.Load(t.Context(), store, cairn.State{"x": got}, nil); err != nil || !tensor.Equal(got, x) {
		t.Errorf("Load = %v, or other elements", err)
	}
}
