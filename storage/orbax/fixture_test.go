package orbax_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// archive returns the files of testdata/fixtures.tar.gz by name.
var archive = sync.OnceValues(func() (map[string][]byte, error) {
	f, err := os.Open("testdata/fixtures.tar.gz")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}

	out := map[string][]byte{}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if out[path.Clean(h.Name)], err = io.ReadAll(t); err != nil {
			return nil, err
		}
	}
})

// fixtureFiles returns the files of a folder of the fixtures, by their names below it.
func fixtureFiles(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for name, b := range must.Get(archive())(t) {
		if rest, ok := strings.CutPrefix(name, "orbax/"+dir+"/"); ok {
			out[rest] = b
		}
	}
	if len(out) == 0 {
		t.Fatalf("no fixture %s", dir)
	}
	return out
}

// fixture returns the input of a fixture, or a folder below it, as a store.
func fixture(t testing.TB, name, below string) *mem.Store {
	t.Helper()
	s := new(mem.Store)
	for file, b := range fixtureFiles(t, path.Join(name, "input", below)) {
		storagetest.Put(t, s, file, b)
	}
	return s
}

// expectedLeaf is a leaf in expected/tree.json.
type expectedLeaf struct {
	Name     string          `json:"name"`
	Kind     string          `json:"kind"`
	DType    string          `json:"dtype"`
	Shape    []int64         `json:"shape"`
	Tensor   *string         `json:"tensor"`
	Value    json.RawMessage `json:"value"`
	StoredAs string          `json:"stored_as"`
}

// expectedTree is the tree that a fixture must have: a line for each name.
func expectedTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := fixtureFiles(t, dir)
	var doc struct{ Leaves []expectedLeaf }
	must.Do(t, json.Unmarshal(files["tree.json"], &doc))
	bits := safetensorsOf(t, files["leaves.safetensors"])
	out := map[string]string{}
	for _, l := range doc.Leaves {
		name := l.Name
		if name == "" {
			name = "tensor"
		}
		out[name] = lineOf(t, &l, bits)
	}
	return out
}

// kept are types that safetensors lacks and cairn has.
var kept = []string{"float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"}

func lineOf(t testing.TB, l *expectedLeaf, bits map[string][]byte) string {
	t.Helper()
	if l.Tensor != nil {
		dtype := l.DType
		switch {
		case slices.Contains(kept, dtype):
		case strings.HasPrefix(l.StoredAs, "raw"):
			dtype = "uint8"
		case l.StoredAs != "":
			dtype = "int8"
		}
		if l.Kind == "numpy_scalar" && dtype == "int64" { // the files do not tell it from an integer of Python
			return fmt.Sprintf("value %d", binary.LittleEndian.Uint64(bits[*l.Tensor]))
		}
		if l.Kind == "numpy_scalar" && dtype == "float64" {
			x := must.Get(tensor.FromBytes(tensor.Float64, nil, bits[*l.Tensor]))(t)
			return fmt.Sprintf("value %v", must.Get(tensor.Values[float64](x.Clone()))(t)[0])
		}
		return fmt.Sprintf("%s %v %x", dtype, l.Shape, bits[*l.Tensor])
	}

	switch l.Kind {
	case "scalar", "string":
		var v any
		d := json.NewDecoder(bytes.NewReader(l.Value))
		d.UseNumber()
		must.Do(t, d.Decode(&v))
		return fmt.Sprintf("value %v", v)
	case "none", "empty_namedtuple": // Orbax stores None for both
		return "value <nil>"
	case "empty_dict":
		return "value map[]"
	case "empty_list":
		return "value []"
	case "empty_tuple":
		return "tuple []"
	}
	t.Fatalf("%+v", l)
	return ""
}

// safetensorsOf returns the bytes of each tensor.
func safetensorsOf(t testing.TB, b []byte) map[string][]byte {
	t.Helper()
	n := binary.LittleEndian.Uint64(b)
	header := map[string]json.RawMessage{}
	must.Do(t, json.Unmarshal(b[8:8+n], &header))
	out := map[string][]byte{}
	for name, raw := range header {
		var e struct {
			At [2]int64 `json:"data_offsets"`
		}
		if name != "__metadata__" {
			must.Do(t, json.Unmarshal(raw, &e))
			out[name] = b[8+n:][e.At[0]:e.At[1]]
		}
	}
	return out
}

// loaded returns what a checkpoint holds, in the form of expectedTree.
func loaded(t testing.TB, ck storage.Checkpoint) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, v := range storagetest.LoadAll(t, ck) {
		out[name] = lineOfValue(v)
	}
	return out
}

// lineOfValue returns a loaded value in the form of expectedTree.
func lineOfValue(v any) string {
	switch v := v.(type) {
	case *tensor.Tensor:
		return fmt.Sprintf("%v %v %x", v.DType(), v.Shape(), v.Contents())
	case value.Tuple:
		return fmt.Sprintf("tuple %v", []any(v))
	}
	return fmt.Sprintf("value %v", v)
}

// trees returns the folders of fixtures with a tree: the folder of the expected result, by the folder of the input.
func trees(t testing.TB) map[[2]string]string {
	t.Helper()
	out := map[[2]string]string{}
	for name := range must.Get(archive())(t) {
		dir, ok := strings.CutSuffix(strings.TrimPrefix(name, "orbax/"), "/tree.json")
		if !ok || strings.Contains(dir, "/unfinished/") {
			continue
		}
		fixture, below, _ := strings.Cut(dir, "/expected")
		out[[2]string{fixture, strings.TrimPrefix(below, "/")}] = dir
	}
	if len(out) < 50 {
		t.Fatalf("%d trees", len(out))
	}
	return out
}

// Every fixture reads bit for bit as the values that were saved, and Verify finds no problem. Damaged steps have a test of their own.
func TestFixtures(t *testing.T) {
	for at, dir := range trees(t) {
		if at[0] == "manager_damaged" && at[1] != "1/state" {
			continue
		}
		t.Run(strings.Trim(at[0]+" "+at[1], " "), func(t *testing.T) {
			t.Parallel()
			s := fixture(t, at[0], at[1])
			if at[0] == "v1_save_pytree" {
				s = fixture(t, at[0], "state")
			}
			ck, err := orbax.Format{}.Open(t.Context(), s)
			must.Do(t, err)
			defer ck.Close()

			if d := cmp.Diff(expectedTree(t, dir), loaded(t, ck)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			rep, err := ck.Verify(t.Context(), nil)
			if err != nil || len(rep.Problems) != 0 || rep.Bytes != ck.TotalBytes() {
				t.Errorf("Verify = %+v, %v; want no problems in %d bytes", rep, err, ck.TotalBytes())
			}
		})
	}
}
