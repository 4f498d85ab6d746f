package cairn_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// A checkpoint that its format has opened, with options of its own, is read like
// any other.
func TestNewCheckpoint(t *testing.T) {
	c := storagetest.Fixtures(t, "torch-2.14/safetensors")[0]
	store, err := file.Open(c.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := hf.Format{}.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	ck := cairn.NewCheckpoint(store, opened)
	defer ck.Close()
	for name, it := range c.Items {
		x, err := ck.ReadTensor(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if x.DType().String() != it.DType || x.NumBytes() != it.NumBytes {
			t.Errorf("%s is %v of %d bytes; want %s of %d", name, x, x.NumBytes(), it.DType, it.NumBytes)
		}
	}
}
