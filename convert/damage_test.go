package convert_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/fault"
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

// damaged returns a checkpoint of a format with a large tensor w, of which one
// bit has changed.
func damaged(t *testing.T, format string) *mem.Store {
	t.Helper()
	src, s := new(mem.Store), new(mem.Store)
	save(t, src, plan.State{"w": storagetest.Filled(t, tensor.Float32, []int64{1000, 2500}, 3), "b": storagetest.Filled(t, tensor.Float32, []int64{7}, 9)})
	if _, err := run(t.Context(), open(t, src), &convert.Options{Merge: true}, toFormat(format, s)); err != nil {
		t.Fatal(err)
	}
	c := open(t, s)
	e, _, err := c.Find(t.Context(), "w")
	if err != nil {
		t.Fatal(err)
	}
	loc := e.Tensor.Locs[0]
	must.Do(t, fault.Damage(t.Context(), s, loc.File, func(b []byte) []byte { b[loc.Offset+loc.Length/2] ^= 8; return b }))
	return s
}

// If a format has checksums, the conversion of a damaged tensor fails: the damage gets
// no checksums in the target.
func TestDamageIsNotConverted(t *testing.T) {
	for _, format := range []string{formats.Native, formats.TorchDCP, formats.Torch} {
		t.Run(format, func(t *testing.T) {
			s := damaged(t, format)
			c := opened(t, s)
			if _, err := c.ReadTensor(t.Context(), "w"); !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("ReadTensor = %v; want %v", err, storage.ErrCorrupt)
			}
			md := must.Get(c.Metadata(t.Context()))(t)
			if _, err := inspect.Digests(t.Context(), c, inspect.Select(md), nil); !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("Digests = %v; want %v", err, storage.ErrCorrupt)
			}
			for claim, o := range map[string]*convert.Options{"as it is": nil, "cast": {DType: []string{"bfloat16"}}, "in columns": {Mesh: []int{3}, Placements: []string{"*=S(1)"}}} {
				src := open(t, s)
				dst := new(mem.Store)
				if _, err := run(t.Context(), src, o, toNative(dst, false)); !errors.Is(err, storage.ErrCorrupt) {
					t.Errorf("%s: Run = %v; want %v", claim, err, storage.ErrCorrupt)
				}
				if _, err := (native.Format{}).Open(t.Context(), dst); err == nil {
					t.Errorf("%s: there is a checkpoint of damaged tensors", claim)
				}
			}
		})
	}
}

// An error contains the name of a tensor once, and both names of a renamed tensor.
func TestErrorsNameATensorOnce(t *testing.T) {
	for _, format := range []string{formats.Native, formats.TorchDCP, formats.Torch} {
		s := damaged(t, format)
		for rename, want := range map[string]map[string]int{"": {`"w"`: 1}, "w=v": {`"w"`: 1, `"v"`: 1}} {
			o := &convert.Options{}
			if rename != "" {
				o.Rename = []string{rename}
			}
			src := open(t, s)
			_, err := run(t.Context(), src, o, toNative(new(mem.Store), false))
			if !errors.Is(err, storage.ErrCorrupt) {
				t.Fatalf("%s: Run = %v; want %v", format, err, storage.ErrCorrupt)
			}
			for name, n := range want {
				if got := strings.Count(err.Error(), name); got != n {
					t.Errorf("%s, rename %q: %v: %d times %s; want %d", format, rename, err, got, name, n)
				}
			}
		}
	}
}

// Small tensors are read together, but the error names the damaged one.
func TestErrorNamesTheDamagedTensor(t *testing.T) {
	src := manySmall(t, 1)
	c := open(t, src)
	e, _, err := c.Find(t.Context(), "layer.7.w")
	if err != nil {
		t.Fatal(err)
	}
	loc := e.Tensor.Locs[0]
	must.Do(t, fault.Damage(t.Context(), src, loc.File, func(b []byte) []byte { b[loc.Offset] ^= 8; return b }))
	_, err = run(t.Context(), c, nil, toNative(new(mem.Store), false))
	if !errors.Is(err, storage.ErrCorrupt) || strings.Count(err.Error(), `"layer.`) != 1 || !strings.Contains(err.Error(), `"layer.7.w"`) {
		t.Errorf("Run = %v; want one name, that of layer.7.w", err)
	}
}

// A file of the source that cannot be read is an error that names it, unless an option leaves
// it out. Then the report names it.
func TestFilesThatCannotBeReadAreReported(t *testing.T) {
	for _, c := range []struct {
		fixture, file, item string
		elsewhere           string // another item
	}{
		{"torch-sync-twice-2-1", "fsdp_model_0.pt", "fsdp_model", "step"}, // without metadata.pkl
		{"torch-sync-1", "rng_0.pt", "rng", "lr_scheduler"},
		{"torch-sync-4", "extra_2.pt", "extra", "lr_scheduler"},
	} {
		t.Run(c.fixture, func(t *testing.T) {
			s := storagetest.CopyFixture(t, "torch_checkpointing/"+c.fixture)
			must.Do(t, fault.Damage(t.Context(), s, c.file, func(b []byte) []byte { return b[:len(b)/2] }))
			for claim, o := range map[string]*convert.Options{
				"all": nil, "its item": {Select: []string{c.item}}, "some names": {Select: []string{"*a*"}}, "another excluded": {Exclude: []string{c.elsewhere}},
			} {
				_, err := run(t.Context(), open(t, s), o, toNative(new(mem.Store), false))
				if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), c.file) {
					t.Errorf("%s: Run = %v; want %v that names %s", claim, err, storage.ErrCorrupt, c.file)
				}
			}
			for claim, o := range map[string]*convert.Options{"another item": {Select: []string{c.elsewhere}}, "excluded": {Exclude: []string{c.item + "*"}}} {
				if rep, err := run(t.Context(), open(t, s), o, toNative(new(mem.Store), false)); err != nil || len(rep.Damaged) > 0 {
					t.Errorf("%s: Run = %+v, %v; want no error", claim, rep, err)
				}
			}
			rep, err := run(t.Context(), open(t, s), &convert.Options{SkipDamaged: true}, toNative(new(mem.Store), false))
			if err != nil || len(rep.Damaged) == 0 || rep.Damaged[0].FQN != c.item+".*" || rep.Damaged[0].File != c.file {
				t.Errorf("SkipDamaged: Run = %+v, %v; want a report that names %s", rep, err, c.file)
			}
		})
	}
}
