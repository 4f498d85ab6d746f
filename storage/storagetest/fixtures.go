package storagetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Item is the content of one name of a fixture, as expected.json describes it.
type Item struct {
	Kind string `json:"kind"` // "tensor" or "object"
	// Of a tensor: PyTorch's name of the dtype, the shape, and the bytes of its
	// contiguous form.
	DType    string  `json:"dtype"`
	Shape    []int64 `json:"shape"`
	NumBytes int64   `json:"nbytes"`
	SHA256   string  `json:"sha256"`
	// Of an object: its class and its repr in Python.
	Type string `json:"type"`
	Repr string `json:"repr"`
}

// Fixture is a checkpoint below testdata/fixtures, written by PyTorch, safetensors
// or hyper_parallel.
type Fixture struct {
	// Name is the folder below testdata/fixtures, such as "torch-2.14/objects".
	Name string
	// Dir is the folder of the checkpoint.
	Dir string
	// Items is everything it holds, by name.
	Items map[string]Item
}

// Fixtures returns the fixtures with names that match one of the patterns (see
// filepath.Match), in the order of their names. It fails the test if a pattern matches no
// fixture.
func Fixtures(t testing.TB, patterns ...string) []Fixture {
	t.Helper()
	var out []Fixture
	for _, p := range patterns {
		dirs, err := filepath.Glob(filepath.Join(fixtures(), filepath.FromSlash(p)))
		if err != nil || len(dirs) == 0 {
			t.Fatalf("fixtures %q: %d found (%v)", p, len(dirs), err)
		}
		for _, d := range dirs {
			out = append(out, readFixture(t, d))
		}
	}

	return out
}

func readFixture(t testing.TB, dir string) Fixture {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	must.Do(t, err)
	var doc struct {
		Items map[string]Item `json:"items"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	if len(doc.Items) == 0 {
		t.Fatalf("%s: expected.json names no items", dir)
	}

	rel, err := filepath.Rel(fixtures(), dir)
	must.Do(t, err)
	return Fixture{Name: filepath.ToSlash(rel), Dir: filepath.Join(dir, "ckpt"), Items: doc.Items}
}

// fixtures returns the folder of all fixtures, by the path of this source file.
func fixtures() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "testdata", "fixtures")
}

// CopyFixture returns the checkpoint of the fixture of that name in memory,
// without some of its files.
func CopyFixture(t testing.TB, name string, without ...string) *mem.Store {
	t.Helper()
	from, err := file.Open(Fixtures(t, name)[0].Dir, nil)
	must.Do(t, err)
	to := CopyOf(t, from)
	Remove(t, to, without...)
	return to
}

// RunFixtures tests that a format reads the items of the fixtures, and that Verify
// finds no problems and some checksums.
func RunFixtures(t *testing.T, open func(ctx context.Context, s blob.Store) (storage.Checkpoint, error), patterns ...string) {
	for _, c := range Fixtures(t, patterns...) {
		t.Run(c.Name, func(t *testing.T) {
			s, err := file.Open(c.Dir, nil)
			must.Do(t, err)
			ck, err := open(t.Context(), s)
			must.Do(t, err)
			defer ck.Close()

			CheckItems(t, ck, c.Items)
			rep, err := ck.Verify(t.Context(), nil)
			if err != nil || len(rep.Problems) != 0 || rep.Unsummed >= rep.Bytes || rep.Bytes != ck.TotalBytes() {
				t.Errorf("Verify = %+v, %v; want no problems in %d bytes, and checksums", rep, err, ck.TotalBytes())
			}
		})
	}
}

// LoadAll loads everything that a checkpoint holds, by name.
func LoadAll(t testing.TB, ck storage.Checkpoint) plan.State {
	t.Helper()
	md, err := ck.Metadata(t.Context())
	must.Do(t, err)

	state := plan.State{}
	for i := range md.Entries {
		state[md.Entries[i].FQN] = nil
		if x := md.Entries[i].Tensor; x != nil {
			state[md.Entries[i].FQN] = must.Get(tensor.New(x.DType, x.Shape))(t)
		}
	}

	l := &Loading{
		Planners: []plan.LoadPlanner{&plan.DefaultLoad{NoFlatten: true, RejectUnexpected: true}},
		Readers:  []storage.Reader{storage.ReaderOf(ck, storage.ReadOptions{})},
	}
	must.Do(t, errors.Join(l.Plan(t.Context(), []plan.State{state}), l.Read(t.Context())))
	return state
}

// CheckItems fails unless a checkpoint holds exactly the items of a fixture.
func CheckItems(t testing.TB, ck storage.Checkpoint, items map[string]Item) {
	t.Helper()
	got := map[string]Item{}
	for name, v := range LoadAll(t, ck) {
		got[name] = itemOf(v)
	}

	if d := cmp.Diff(slices.Sorted(maps.Keys(items)), slices.Sorted(maps.Keys(got))); d != "" {
		t.Fatalf("names (-want +got):\n%s", d)
	}
	if d := cmp.Diff(plainItems(items), got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// itemOf describes a value as expected.json does, but has the type and repr of simple
// objects only. Package inspect has Python's repr of all of them.
func itemOf(v any) Item {
	switch v := v.(type) {
	case *tensor.Tensor:
		b := v.Contents()
		sum := sha256.Sum256(b)
		return Item{
			Kind: "tensor", DType: v.DType().String(), Shape: v.Shape(), NumBytes: int64(len(b)), SHA256: hex.EncodeToString(sum[:]),
		}
	case int64, *big.Int:
		return Item{Kind: "object", Type: "int", Repr: fmt.Sprint(v)}
	case bool:
		return Item{Kind: "object", Type: "bool", Repr: map[bool]string{false: "False", true: "True"}[v]}
	case string:
		repr := "'" + v + "'"
		return Item{Kind: "object", Type: "str", Repr: repr[:min(len(repr), 400)]}
	}
	return Item{Kind: "object"}
}

// plainItems returns the items without the parts that itemOf leaves out.
func plainItems(items map[string]Item) map[string]Item {
	out := maps.Clone(items)
	for name, it := range out {
		if it.Kind == "object" && !slices.Contains([]string{"int", "bool", "str"}, it.Type) {
			out[name] = Item{Kind: "object"}
		}
	}
	return out
}
