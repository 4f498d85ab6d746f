package torchfile_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestOpenFindsTheFile(t *testing.T) {
	for claim, c := range map[string]struct {
		files []string
		name  string
		want  error
	}{
		"the one that is named":     {[]string{"a.pt", "b.pt"}, "b.pt", nil},
		"the only one":              {[]string{"a.pt"}, "", nil},
		"the only one of its kind":  {[]string{"a.pth", "README", "config.json"}, "", nil},
		"the only file, any name":   {[]string{"weights"}, "", nil},
		"the only one at the root":  {[]string{"a.ckpt", "b/c.pt"}, "", nil},
		"not one that is not there": {[]string{"a.pt"}, "b.pt", storage.ErrNotFound},
		"not one of several":        {[]string{"a.pt", "b.pt"}, "", storage.ErrNotFound},
		"a model beside others":     {[]string{"training_args.bin", "pytorch_model.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "scaler.pt"}, "", nil},
		"the only one beside none":  {[]string{"training_args.bin"}, "", nil},
		"not one of several others": {[]string{"optimizer.pt", "scheduler.pt"}, "", storage.ErrNotFound},
		"not of several others":     {[]string{"a", "b"}, "", storage.ErrNotFound},
		"no file and no name":       {nil, "", storage.ErrNotFound},
		"no index file":             {nil, "x.bin.index.json", storage.ErrNotFound},
	} {
		s := new(mem.Store)
		for _, f := range c.files {
			put(t, s, f, map[string]any{"name": f})
		}
		ck, err := torchfile.Format{File: c.name}.Open(t.Context(), s)
		if !errors.Is(err, c.want) || (err == nil) != (ck != nil) {
			t.Errorf("%s: Open = %v, %v; want %v", claim, ck, err, c.want)
		}
		if ck == nil {
			continue
		}
		if e, _, err := ck.Find(t.Context(), "name"); strings.HasPrefix(claim, "a model") && (err != nil || string(e.Bytes.Inline) != `"pytorch_model.bin"`) {
			t.Errorf("%s: opened %s", claim, e.Bytes.Inline)
		}
		ck.Close()
	}
}

// zipped returns a zip archive of other files.
func zipped(t *testing.T, method uint16, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, n := range names {
		w, err := z.CreateHeader(&zip.FileHeader{Name: n, Method: method})
		if err == nil {
			_, err = w.Write([]byte(strings.Repeat("content ", 100)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	must.Do(t, z.Close())
	return b.Bytes()
}

func TestOpenRefusesForeignFiles(t *testing.T) {
	tar := make([]byte, 600)
	copy(tar[257:], "ustar")
	good := must.Get(torchsave.Marshal(map[string]any{"a": int64(1)}))(t)
	for claim, c := range map[string]struct {
		b    []byte
		want error
	}{
		"text": {[]byte("hello"), storage.ErrNotFound}, "a program": {[]byte("\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 99)), storage.ErrNotFound},
		"a pointer": {[]byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"), storage.ErrNotFound},
		"numpy's":   {zipped(t, zip.Store, "weight.npy"), storage.ErrNotFound}, "a packed archive": {zipped(t, zip.Deflate, "word/document.xml"), storage.ErrNotFound},
		"an archive with a folder":            {zipped(t, zip.Store, "archive/code.py", "archive/data.txt"), storage.ErrNotFound},
		"an archive without records":          {zipped(t, zip.Store), storage.ErrNotFound},
		"the start of an archive":             {zipped(t, zip.Store, "weight.npy")[:40], storage.ErrNotFound},
		"an archive that should be PyTorch's": {zipped(t, zip.Deflate, "archive/data.pkl"), storage.ErrCorrupt},
		"the start of PyTorch's":              {good[:100], storage.ErrCorrupt},
		"nothing":                             {nil, storage.ErrCorrupt}, "cut short": {good[:len(good)-1], storage.ErrCorrupt},
		"a tar archive": {tar, storage.ErrVersion}, "another order of bytes": {bytes.ReplaceAll(good, []byte("little"), []byte("middle")), storage.ErrCorrupt},
	} {
		s := new(mem.Store)
		putBytes(t, s, "x.pt", c.b)
		if _, err := (torchfile.Format{File: "x.pt"}).Open(t.Context(), s); !errors.Is(err, c.want) || errors.Is(err, storage.ErrCorrupt) != (c.want == storage.ErrCorrupt) {
			t.Errorf("%s: Open = %v; want %v", claim, err, c.want)
		}
	}
}

func TestOpenNamesTheKindOfForeignFiles(t *testing.T) {
	const nothing = "x.pt: no checkpoint here: "
	for want, b := range map[string][]byte{
		"a Git LFS pointer":                          []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
		"it is a text file":                          []byte("hello"),
		nothing + "a NumPy archive (.npz)":           zipped(t, zip.Store, "a.npy", "b.npy"),
		nothing + "a TorchScript archive":            zipped(t, zip.Deflate, "m/data/0", "m/data.pkl", "m/code/a.py", "m/constants.pkl", "m/version"),
		nothing + "an exported program":              zipped(t, zip.Store, "m/data/weights/weight_0", "m/archive_format", "m/.data/version"),
		nothing + "an exported program of ":          zipped(t, zip.Store, "version", "serialized_exported_program.json"),
		nothing + "a zip archive of another program": zipped(t, zip.Store, "a.npy", "b.txt"),
	} {
		s := new(mem.Store)
		putBytes(t, s, "x.pt", b)
		_, err := torchfile.Format{File: "x.pt"}.Open(t.Context(), s)
		if !errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "malformed") {
			t.Errorf("Open = %v; want %v with %q, and no word on its bytes", err, storage.ErrNotFound, want)
		}
	}
}

// openDamaged opens x.pt after a byte of a tensor was changed.
func openDamaged(t *testing.T, s blob.Store, fqn string, offset int64) storage.Checkpoint {
	t.Helper()
	ck := must.Get(torchfile.Format{File: "x.pt"}.Open(t.Context(), s))(t)
	defer ck.Close()
	e, _, err := ck.Find(t.Context(), fqn)
	if err != nil {
		t.Fatal(err)
	}
	at := e.Tensor.Locs[0].Offset + offset
	must.Do(t, fault.Damage(t.Context(), s, "x.pt", func(b []byte) []byte { b[at] ^= 1; return b }))
	if ck, err = (torchfile.Format{File: "x.pt"}).Open(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return ck
}

// A damaged tensor is found by Verify, under all of its names.
func TestVerifyDetectsDamage(t *testing.T) {
	x := vector(t, 1, 2, 3)
	s := holding(t, map[string]any{"a": x, "b": x, "c": vector(t, 9)})
	ck := openDamaged(t, s, "a", 0)
	defer ck.Close()
	rep, err := ck.Verify(t.Context(), nil)
	if err != nil {
		t.Fatalf("Verify = %v", err)
	}
	var got []string
	for _, p := range rep.Problems {
		got = append(got, p.File+" "+p.FQN)
	}
	if diff := cmp.Diff([]string{"x.pt a", "x.pt b"}, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// A damaged storage is found by a load of all of it, under any name, and by a load of a
// view of some of it.
func TestLoadDetectsDamage(t *testing.T) {
	for claim, c := range map[string]struct {
		fqn   string
		size  int64
		box   tensor.Box
		found bool
	}{
		"all":            {"a", 3, tensor.Whole([]int64{3}), true},
		"a part":         {"a", 3, tensor.Box{Offsets: []int64{1}, Sizes: []int64{2}}, true},
		"another tensor": {"c", 1, tensor.Whole([]int64{1}), false},
	} {
		ck := openDamaged(t, holding(t, map[string]any{"a": vector(t, 1, 2, 3), "c": vector(t, 9)}), "a", 4)
		defer ck.Close()
		to := must.Get(shard.Empty(shard.Boxes(map[int]tensor.Box{0: c.box}), tensor.Float32, []int64{c.size}, 0))(t)
		place := storagetest.Place{Reader: func() storage.Reader { return storage.ReaderOf(ck, storage.ReadOptions{}) }}
		err := storagetest.Load(t.Context(), place, plan.State{c.fqn: to})
		if !c.found && err != nil || c.found && (!errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), "x.pt")) {
			t.Errorf("%s: Load = %v; want damage: %v, with file and name", claim, err, c.found)
		}
		if rep, err := ck.Verify(t.Context(), nil); err != nil || rep.Unsummed != 0 {
			t.Errorf("Verify = %+v, %v; want all bytes to have a checksum", rep, err)
		}
	}
}

// indexed returns a store with two files and an index.
func indexed(t *testing.T, weights string) *mem.Store {
	s := new(mem.Store)
	put(t, s, "m-1.bin", map[string]any{"a.w": vector(t, 1), "a.b": vector(t, 2)})
	put(t, s, "m-2.bin", map[string]any{"c.w": vector(t, 3)})
	putBytes(t, s, "pytorch_model.bin.index.json", fmt.Appendf(nil, `{"metadata":{"total_size":12},"weight_map":{%s}}`, weights))
	return s
}

const allWeights = `"a.w":"m-1.bin","a.b":"m-1.bin","c.w":"m-2.bin"`

func TestOpenIndex(t *testing.T) {
	for _, name := range []string{"", "pytorch_model.bin.index.json"} {
		got, md := load(t, indexed(t, allWeights), name)
		want := map[string]any{"a.w": vector(t, 1), "a.b": vector(t, 2), "c.w": vector(t, 3)}
		if diff := cmp.Diff(want, got, cmp.Comparer(tensor.Equal)); diff != "" || len(md.Entries) != 3 {
			t.Errorf("(-want +read):\n%s", diff)
		}
	}
	ck := must.Get(torchfile.Format{}.Open(t.Context(), indexed(t, allWeights)))(t)
	defer ck.Close()
	rep, err := ck.Verify(t.Context(), nil)
	if err != nil || len(rep.Problems) > 0 || rep.Files != 3 || ck.Files()[0].Name != "pytorch_model.bin.index.json" {
		t.Errorf("Verify = %+v, %v; want three files, the index first, no problems", rep, err)
	}
}

func TestOpenRefusesInvalidIndexes(t *testing.T) {
	for claim, c := range map[string]struct {
		weights string
		want    error
	}{
		"no weights":                 {"", storage.ErrCorrupt},
		"files that are all missing": {`"d":"m-3.bin","e":"m-4.bin"`, storage.ErrCorrupt},
		"a file elsewhere":           {`"a.w":"../m-1.bin"`, storage.ErrCorrupt},
		"a file from the root":       {`"a.w":"/m-1.bin"`, storage.ErrCorrupt},
		"no JSON":                    {`"a.w"`, storage.ErrCorrupt},
	} {
		if _, err := (torchfile.Format{}).Open(t.Context(), indexed(t, c.weights)); !errors.Is(err, c.want) || errors.Is(err, storage.ErrCorrupt) != (c.want == storage.ErrCorrupt) {
			t.Errorf("%s: Open = %v; want %v", claim, err, c.want)
		}
	}
}

// A name of the index is missing if its file is lost or does not have it; all other names can
// be read.
func TestIndexWithLostFiles(t *testing.T) {
	for claim, c := range map[string]struct {
		weights string
		damage  func(s *mem.Store)
		name    string // the one that is missing
		problem storage.VerifyProblem
	}{
		"a file that is missing": {
			allWeights + `,"d":"m-3.bin"`, func(*mem.Store) {}, "d",
			storage.VerifyProblem{File: "m-3.bin", FQNs: []string{"d"}, Text: "the file is missing"},
		},
		"a file that is something else": {
			allWeights, func(s *mem.Store) { putBytes(t, s, "m-2.bin", []byte("hello")) }, "c.w",
			storage.VerifyProblem{File: "m-2.bin", FQNs: []string{"c.w"}, Text: "not a file of torch.save"},
		},
		"a weight that is not in": {
			allWeights + `,"d":"m-2.bin"`, func(*mem.Store) {}, "d",
			storage.VerifyProblem{File: "m-2.bin", FQN: "d", Text: `pytorch_model.bin.index.json has "d" in it, and it is not there`},
		},
		"a weight elsewhere": {
			`"a.w":"m-2.bin"`, func(*mem.Store) {}, "a.w",
			storage.VerifyProblem{File: "m-2.bin", FQN: "a.w", Text: `pytorch_model.bin.index.json has "a.w" in it, and it is not there`},
		},
	} {
		s := indexed(t, c.weights)
		c.damage(s)
		ck, err := torchfile.Format{}.Open(t.Context(), s)
		if err != nil {
			t.Errorf("%s: Open = %v", claim, err)
			continue
		}
		if _, _, err := ck.Find(t.Context(), c.name); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("%s: Find(%s) = %v; want %v", claim, c.name, err, storage.ErrCorrupt)
		}
		rep, err := ck.Verify(t.Context(), nil)
		if err != nil {
			t.Errorf("%s: Verify = %v", claim, err)
			continue
		}
		if diff := cmp.Diff([]storage.VerifyProblem{c.problem}, rep.Problems); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", claim, diff)
		}
		if left := storagetest.LoadAll(t, ck); len(left) == 0 || left[c.name] != nil {
			t.Errorf("%s: loaded %v; want all but %s", claim, left, c.name)
		}
	}
}

// A weight may be in several files, as tied weights are. The index says which
// file has the name.
func TestWeightsInSeveralFiles(t *testing.T) {
	s := indexed(t, `"a.w":"m-2.bin","a.b":"m-1.bin"`)
	put(t, s, "m-2.bin", map[string]any{"c.w": vector(t, 3), "a.w": vector(t, 4), "a.b": vector(t, 5)})
	got, _ := load(t, s, "")
	want := map[string]any{
		"a.w": vector(t, 4), "a.w#2": vector(t, 1), "a.b": vector(t, 2), "a.b#2": vector(t, 5), "c.w": vector(t, 3),
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(tensor.Equal)); diff != "" {
		t.Errorf("(-want +read):\n%s", diff)
	}
}
