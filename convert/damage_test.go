package convert_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
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
	c, err := formats.Open(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	e, _, err := c.Find(t.Context(), "w")
	if err != nil {
		t.Fatal(err)
	}
	loc := e.Tensor.Locs[0]
	if err := fault.Damage(t.Context(), s, loc.File, func(b []byte) []byte { b[loc.Offset+loc.Length/2] ^= 8; return b }); err != nil {
		t.Fatal(err)
	}
	return s
}

// Where a format has checksums, whoever reads a damaged tensor whole is told, and
// no conversion gives the damage checksums of its own.
func TestDamageIsNotConverted(t *testing.T) {
	for _, format := range []string{formats.Native, formats.TorchDCP, formats.Torch} {
		t.Run(format, func(t *testing.T) {
			s := damaged(t, format)
			c, err := cairn.Open(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.ReadTensor(t.Context(), "w"); !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("ReadTensor = %v; want %v", err, storage.ErrCorrupt)
			}
			md, err := c.Metadata(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := inspect.Digests(t.Context(), c, inspect.Select(md), nil); !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("Digests = %v; want %v", err, storage.ErrCorrupt)
			}
			for claim, o := range map[string]*convert.Options{"as it is": nil, "cast": {DType: []string{"bfloat16"}}, "in columns": {Mesh: []int{3}, Placements: []string{"*=S(1)"}}} {
				src, err := formats.Open(t.Context(), s, nil)
				if err != nil {
					t.Fatal(err)
				}
				dst := new(mem.Store)
				if _, err := run(t.Context(), src, o, toNative(dst, false)); !errors.Is(err, storage.ErrCorrupt) {
					t.Errorf("%s: Run = %v; want %v", claim, err, storage.ErrCorrupt)
				}
				if _, err := native.Open(t.Context(), dst); err == nil {
					t.Errorf("%s: there is a checkpoint of damaged tensors", claim)
				}
				src.Close()
			}
		})
	}
}
