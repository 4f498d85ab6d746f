package slime

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// fixtures is the folder of the chains that slime published.
const fixtures = "../../testdata/slime"

// expected returns the tensors of a version of a chain.
func expected(t testing.TB, chain, version string) map[string]storagetest.Item {
	t.Helper()
	var doc struct {
		Items map[string]storagetest.Item `json:"items"`
	}
	b := must.Get(os.ReadFile(filepath.Join(fixtures, chain, "expected", version+".json")))(t)
	must.Do(t, json.Unmarshal(b, &doc))
	if len(doc.Items) == 0 {
		t.Fatalf("%s of %s names no tensors", version, chain)
	}
	return doc.Items
}

// openAt opens the version in a folder.
func openAt(t testing.TB, f Format, dir string) (storage.Checkpoint, error) {
	t.Helper()
	return f.Open(t.Context(), must.Get(file.Open(dir, nil))(t))
}

// Every version that slime published has the tensors of the trainer, to the last bit.
func TestFixtures(t *testing.T) {
	for _, dir := range must.Get(filepath.Glob(fixtures + "/*/published/weight_v*"))(t) {
		chain, version := filepath.Base(filepath.Dir(filepath.Dir(dir))), filepath.Base(dir)
		t.Run(chain+"/"+version, func(t *testing.T) {
			if ok := must.Get(IsDelta(t.Context(), must.Get(file.Open(dir, nil))(t)))(t); !ok {
				if _, err := openAt(t, Format{}, dir); !strings.Contains(err.Error(), "no delta version") {
					t.Errorf("a full version opens as a delta: %v", err)
				}
				return
			}
			c := must.Get(openAt(t, Format{Base: filepath.Join(fixtures, chain, "base")}, dir))(t)
			defer c.Close()
			items := expected(t, chain, version)
			storagetest.CheckItems(t, c, items)
			rep := must.Get(c.Verify(t.Context(), nil))(t)
			if len(rep.Problems) > 0 || rep.Chunks != int64(len(items)) || rep.Bytes != c.TotalBytes() {
				t.Errorf("Verify = %+v; want no problems in %d tensors and %d bytes", rep, len(items), c.TotalBytes())
			}
			if n, _ := ParseFolder(version); c.Storage().Step == nil || *c.Storage().Step != n {
				t.Errorf("step %v; want %d", c.Storage().Step, n)
			}
		})
	}
}
