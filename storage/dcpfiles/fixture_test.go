package dcpfiles_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// documents returns the metadata files of a checkpoint, in order.
func documents(t testing.TB, dir string) [][]byte {
	t.Helper()
	var out [][]byte
	files := must.Get(os.ReadDir(dir))(t)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), "metadata") {
			continue
		}
		b := must.Get(os.ReadFile(filepath.Join(dir, f.Name())))(t)
		out = append(out, b)
	}
	return out
}

// decodeAll decodes and merges the documents of a checkpoint.
func decodeAll(t testing.TB, dir string) *dcpfiles.Document {
	t.Helper()
	var docs []*dcpfiles.Document
	for _, b := range documents(t, dir) {
		d, err := dcpfiles.Decode(t.Context(), b)
		if err != nil {
			t.Fatalf("Decode: %v", err)
		}
		docs = append(docs, d)
	}
	d, err := dcpfiles.Merge(docs)
	if err != nil {
		t.Fatalf("Merge: %v", err)
	}
	return d
}

// withDocuments returns the fixtures that have metadata of this kind.
func withDocuments(t testing.TB) []storagetest.Fixture {
	t.Helper()
	all := storagetest.Fixtures(t, "torch-*/*", "hyper_parallel/*")
	all = slices.DeleteFunc(all, func(c storagetest.Fixture) bool { return len(documents(t, c.Dir)) == 0 })
	if len(all) < 30 {
		t.Fatalf("%d fixtures have metadata documents", len(all))
	}
	return all
}

func TestDecodeFixtures(t *testing.T) {
	for _, c := range withDocuments(t) {
		t.Run(c.Name, func(t *testing.T) {
			d := decodeAll(t, c.Dir)
			want := map[string]storagetest.Item{}
			for name, it := range c.Items {
				want[name] = storagetest.Item{Kind: it.Kind, DType: it.DType, Shape: it.Shape}
			}
			got := map[string]storagetest.Item{}
			for _, e := range d.Meta.Entries {
				if e.Bytes != nil {
					got[e.FQN] = storagetest.Item{Kind: "object"}
					continue
				}
				got[e.FQN] = storagetest.Item{Kind: "tensor", DType: e.Tensor.DType.String(), Shape: e.Tensor.Shape}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("entries (-want +got):\n%s", diff)
			}
			if err := d.Meta.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}
