package hf

import (
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
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
				s := must.Get(file.Open(dir, nil))(t)
				checkFixture(t, s, c.Items)
			})
		}
	}
}

func checkFixture(t *testing.T, s blob.Store, items map[string]storagetest.Item) {
	t.Helper()
	c := must.Get(Format{}.Open(t.Context(), s))(t)
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
	md := must.Get(p.Reader().ReadMetadata(t.Context()))(t)
	must.Do(t, md.Validate())
	state := must.Get(plan.NewState(md, nil))(t)
	must.Do(t, storagetest.Load(t.Context(), p, state))
	return state
}
