package inspect_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/fixture"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

// unpadded shows an array of numpy as Repr does: on one line, without padding.
func unpadded(repr string) string {
	if !strings.HasPrefix(repr, "array(") {
		return repr
	}
	repr = strings.Join(strings.Fields(repr), " ")
	return strings.NewReplacer("[ ", "[", " ,", ",", " ]", "]").Replace(repr)
}

// testdata/repr.jsonl is what Python 3.14 with PyTorch 2.14 and numpy 2.4
// pickled and said of it: see repr.py. Every object comes through the native
// encoding too.
func TestReprIsWhatPythonSaid(t *testing.T) {
	f, err := os.Open("testdata/repr.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var row struct {
			Type, Repr string
			Protocol   int
			Pickle     []byte
		}
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		v, err := pickle.Decode(row.Pickle, nil)
		if err != nil {
			t.Errorf("protocol %d, %s: %v", row.Protocol, row.Repr, err)
			continue
		}
		codec, data, err := value.Encode(v)
		if err != nil {
			t.Errorf("Encode(%s): %v", row.Repr, err)
			continue
		}
		if v, err = value.Decode(codec, data); err != nil {
			t.Errorf("Decode(%s): %v", data, err)
		}
		if got, want := inspect.Repr(v, 10_000), unpadded(row.Repr); got != want {
			t.Errorf("protocol %d: Repr = %s; want %s", row.Protocol, got, want)
		}
		if got := inspect.TypeName(v); got != row.Type {
			t.Errorf("protocol %d: TypeName(%s) = %s; want %s", row.Protocol, row.Repr, got, row.Type)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// maxShown is how many characters of a repr expected.json has.
const maxShown = 400

// shown is an object of a checkpoint, as expected.json has it.
type shown struct{ Type, Repr string }

func compareShown(a, b shown) int {
	return strings.Compare(a.Type+" "+a.Repr, b.Type+" "+b.Repr)
}

func TestReprOfTheFixtures(t *testing.T) {
	for _, c := range fixture.Cases(t, "torch-*/objects") {
		t.Run(c.Name, func(t *testing.T) {
			var want []shown
			for _, it := range c.Items {
				if it.Kind == "object" {
					want = append(want, shown{it.Type, it.Repr})
				}
			}
			got := objectsIn(t, c.Dir)
			slices.SortFunc(want, compareShown)
			slices.SortFunc(got, compareShown)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("objects: -want +got\n%s", d)
			}
		})
	}
}

// objectsIn returns what the pickles inside of a checkpoint's data files hold,
// apart from tensors. Each lies in a zip archive as data.pkl, not compressed.
func objectsIn(t *testing.T, dir string) []shown {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.distcp"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no data files in %s (%v)", dir, err)
	}
	var out []shown
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pickles(data) {
			v, _, err := pickle.DecodePrefix(p, nil)
			switch {
			case errors.Is(err, pickle.ErrPersistent): // a tensor
			case err != nil:
				t.Fatal(err)
			default:
				repr := []rune(inspect.Repr(v, 10_000))
				out = append(out, shown{inspect.TypeName(v), string(repr[:min(len(repr), maxShown)])})
			}
		}
	}
	return out
}

// pickles returns where in data the files data.pkl of zip archives begin.
func pickles(data []byte) [][]byte {
	const header = 30
	var out [][]byte
	for {
		i := bytes.Index(data, []byte("PK\x03\x04"))
		if i < 0 || len(data)-i < header {
			return out
		}
		data = data[i:]
		name := header + int(binary.LittleEndian.Uint16(data[26:]))
		start := name + int(binary.LittleEndian.Uint16(data[28:]))
		if start <= len(data) && bytes.HasSuffix(data[:name], []byte("/data.pkl")) {
			out = append(out, data[start:])
		}
		data = data[4:]
	}
}
