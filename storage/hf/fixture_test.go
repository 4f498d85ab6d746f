package hf

import (
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// Files that PyTorch and safetensors wrote have the expected contents.
func TestFixtures(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "torch-*/hf-*", "torch-*/safetensors") {
		dirs := []string{c.Dir}
		if more, err := filepath.Glob(filepath.Join(c.Dir, "..", "consolidated")); err == nil {
			dirs = append(dirs, more...)
		}
		for _, dir := range dirs {
			t.Run(c.Name+"/"+filepath.Base(dir), func(t *testing.T) {
				s, err := file.Open(dir, nil)
				if err != nil {
					t.Fatal(err)
				}
				checkFixture(t, s, c.Items)
			})
		}
	}
}

func checkFixture(t *testing.T, s blob.Store, items map[string]storagetest.Item) {
	t.Helper()
	c, err := Format{}.Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	storagetest.CheckItems(t, c, items)
	rep, err := c.Verify(t.Context(), nil)
	var tensors int64
	for _, it := range items {
		tensors += it.NumBytes
	}
	if err != nil || len(rep.Problems) > 0 || rep.Bytes != c.TotalBytes() || rep.Unsummed != tensors {
		t.Errorf("Verify = %+v, %v; want no problems in %d bytes, %d of tensors without a checksum", rep, err, c.TotalBytes(), tensors)
	}
}

// loadAll loads everything that a store holds.
func loadAll(t testing.TB, s blob.Store, f Format) plan.State {
	t.Helper()
	p := storagetest.Place{Reader: func() storage.Reader { return storage.NewReader(f.Open, s, storage.ReadOptions{}) }}
	md, err := p.Reader().ReadMetadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := md.Validate(); err != nil {
		t.Fatal(err)
	}
	state, err := plan.NewState(md, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := storagetest.Load(t.Context(), p, state); err != nil {
		t.Fatal(err)
	}
	return state
}
