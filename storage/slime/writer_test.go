package slime

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/adler32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// place is a folder with a base and the versions of a chain.
type place struct{ dir string }

func (p place) base() string           { return filepath.Join(p.dir, "base") }
func (p place) version(n int64) string { return filepath.Join(p.dir, "published", Folder(n)) }
func (p place) format() Format         { return Format{Base: p.base()} }

// store opens a folder.
func store(t testing.TB, dir string) blob.Store {
	t.Helper()
	return must.Get(file.Open(dir, &file.Options{NoSync: true}))(t)
}

// at returns a place for checkpoints in a format. Delta versions have small files.
func at(f storage.Format, s blob.Store) storagetest.Place {
	return storagetest.Place{Writer: func() storage.Writer {
		w := must.Value(f.NewWriter(s, storage.WriteOptions{}))
		if w, ok := w.(*writer); ok {
			w.most = 20
		}
		return w
	}}
}

// save saves the states of ranks in a format.
func save(ctx context.Context, f storage.Format, s blob.Store, id string, states ...plan.State) error {
	return storagetest.Save(ctx, at(f, s), storagetest.Storage(id, 1, len(states)), states...)
}

// newPlace returns a place with a base.
func newPlace(t testing.TB, state plan.State) place {
	t.Helper()
	p := place{t.TempDir()}
	must.Do(t, save(t.Context(), hf.Format{Shards: 2}, store(t, p.base()), "base", state))
	return p
}

// publish writes a version.
func (p place) publish(t testing.TB, n int64, f Format, states ...plan.State) {
	t.Helper()
	must.Do(t, save(t.Context(), f, store(t, p.version(n)), fmt.Sprint("v", n), states...))
}

// check fails unless a version has the tensors of a state.
func (p place) check(t testing.TB, n int64, want plan.State) {
	t.Helper()
	c := must.Get(openAt(t, p.format(), p.version(n)))(t)
	defer c.Close()
	equal(t, storagetest.LoadAll(t, c), want)
}

func equal(t testing.TB, got, want plan.State) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d tensors; want %d", len(got), len(want))
	}
	for name, x := range want {
		y, ok := got[name].(*tensor.Tensor)
		if !ok || !bytes.Equal(x.(*tensor.Tensor).Contents(), y.Contents()) {
			t.Errorf("%s has other bytes", name)
		}
	}
}

// small is a state of a few tensors, another one for each seed.
func small(t testing.TB, seed byte) plan.State {
	t.Helper()
	return plan.State{
		"w":     storagetest.Filled(t, tensor.BFloat16, []int64{33, 7}, seed),
		"scale": storagetest.Filled(t, tensor.Float32, []int64{1}, seed),
		"f8":    storagetest.Filled(t, tensor.Float8E4M3FN, []int64{5, 4}, seed),
		"none":  storagetest.Filled(t, tensor.Float32, []int64{0, 3}, seed),
		"norm":  storagetest.Filled(t, tensor.BFloat16, []int64{9}, 1), // never changes
	}
}

// decodeFolder applies the version in a folder to a state, without the code of this package:
// all files of the folder, each tensor, and then the checksums, as slime's receiver does it.
func decodeFolder(t testing.TB, dir string, state map[string][]byte) {
	t.Helper()
	var x struct {
		Metadata  map[string]string `json:"metadata"`
		WeightMap map[string]string `json:"weight_map"`
	}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join(dir, "model.safetensors.index.json")))(t), &x))
	names := 0
	for _, file := range must.Get(filepath.Glob(filepath.Join(dir, "*.safetensors")))(t) {
		b := must.Get(os.ReadFile(file))(t)
		n := binary.LittleEndian.Uint64(b)
		var raw map[string]json.RawMessage
		must.Do(t, json.Unmarshal(b[8:8+n], &raw))
		sums := map[string]string{}
		must.Do(t, json.Unmarshal(raw["__metadata__"], &sums))
		delete(raw, "__metadata__")
		for name, text := range raw {
			var e struct {
				DType   string   `json:"dtype"`
				Shape   []uint64 `json:"shape"`
				Offsets []uint64 `json:"data_offsets"`
			}
			must.Do(t, json.Unmarshal(text, &e))
			if e.DType != "U8" || len(e.Shape) != 1 || x.WeightMap[name] != filepath.Base(file) {
				t.Fatalf("%s: %s of shape %v, in %q by the index", name, e.DType, e.Shape, x.WeightMap[name])
			}
			z := must.Get(zstd.NewReader(nil))(t)
			diff := must.Get(z.DecodeAll(b[8+n:][e.Offsets[0]:e.Offsets[1]], nil))(t)
			z.Close()
			p := state[name]
			if x.Metadata["delta_encoding"] == "xor" {
				for i := range diff {
					p[i] ^= diff[i]
				}
			} else {
				k := binary.LittleEndian.Uint32(diff)
				for i := range k {
					p[binary.LittleEndian.Uint32(diff[4+4*i:])] = diff[4+4*k+i]
				}
			}
			if got := sumOf(x.Metadata["checksum_format"], p); got != sums[name] {
				t.Fatalf("%s: checksum %s; want %s", name, got, sums[name])
			}
			names++
		}
		if len(sums) != len(raw) {
			t.Errorf("%s has %d checksums of %d tensors", file, len(sums), len(raw))
		}
	}
	if names != len(x.WeightMap) {
		t.Errorf("the index names %d tensors, the files have %d", len(x.WeightMap), names)
	}
}

func sumOf(kind string, p []byte) string {
	switch kind {
	case "xxh3-128":
		h := xxh3.New()
		h.Write(p)
		u := h.Sum128()
		return fmt.Sprintf("%016x%016x", u.Hi, u.Lo)
	case "blake3":
		h := blake3.New()
		h.Write(p)
		return hex.EncodeToString(h.Sum(nil))
	}
	return fmt.Sprintf("%08x", adler32.Checksum(p))
}

// Chains of random changes in all encodings, by one rank or two, come back, also through a
// decoder that shares no code with this package.
func TestChains(t *testing.T) {
	deep.Check(t, func(r *rapid.T) {
		state := small(t, rapid.Byte().Draw(r, "seed"))
		p := newPlace(t, state)
		flat := map[string][]byte{}
		for name, x := range state {
			flat[name] = bytes.Clone(x.(*tensor.Tensor).Contents())
		}
		for n := range int64(rapid.IntRange(1, 4).Draw(r, "versions")) {
			f := Format{
				Base: p.base(), Encoding: rapid.SampledFrom([]string{"", XOR, Overwrite}).Draw(r, "encoding"),
				Checksum: rapid.SampledFrom([]string{"", XXH3, BLAKE3, Adler32}).Draw(r, "checksum"),
			}
			for _, name := range []string{"w", "scale", "f8"} {
				b, _ := state[name].(*tensor.Tensor).Bytes()
				for range rapid.IntRange(0, 5).Draw(r, name) {
					b[rapid.IntRange(0, len(b)-1).Draw(r, "at")] ^= rapid.Byte().Draw(r, "by")
				}
			}
			states := []plan.State{state}
			if rapid.Bool().Draw(r, "two ranks") {
				states = []plan.State{{"w": state["w"], "norm": state["norm"]}, {"scale": state["scale"], "f8": state["f8"], "none": state["none"]}}
			}
			p.publish(t, n+1, f, states...)
			p.check(t, n+1, state)
			decodeFolder(t, p.version(n+1), flat)
			for name, x := range state {
				if !bytes.Equal(flat[name], x.(*tensor.Tensor).Contents()) {
					r.Fatalf("the other decoder reads other bytes of %s", name)
				}
			}
		}
	})
}

// A version follows a full version that is in its place in the chain.
func TestRebase(t *testing.T) {
	p := newPlace(t, small(t, 1))
	p.publish(t, 1, p.format(), small(t, 2))
	must.Do(t, save(t.Context(), hf.Format{}, store(t, p.version(2)), "v2", small(t, 3)))
	p.publish(t, 3, Format{}, small(t, 4)) // needs no base
	c := must.Get(openAt(t, Format{}, p.version(3)))(t)
	defer c.Close()
	equal(t, storagetest.LoadAll(t, c), small(t, 4))
	if bases := c.Storage().Bases; !slices.Equal(bases, []string{Folder(2)}) {
		t.Errorf("it refers to %q", bases)
	}
}

// A version in another place than the version before, which is named by its folder.
func TestBaseElsewhere(t *testing.T) {
	p := newPlace(t, small(t, 1))
	full := filepath.Join(p.dir, "other", Folder(2))
	must.Do(t, save(t.Context(), hf.Format{}, store(t, full), "v2", small(t, 3)))
	p.publish(t, 3, Format{Base: full}, small(t, 4))
	p.publish(t, 4, Format{Base: full}, small(t, 5))
	c := must.Get(openAt(t, Format{Base: full}, p.version(4)))(t)
	defer c.Close()
	equal(t, storagetest.LoadAll(t, c), small(t, 5))
}

// Entries that a delta version cannot hold are refused by name, and no file is written.
func TestWriterRefuses(t *testing.T) {
	state := small(t, 1)
	p := newPlace(t, state)
	change := func(f func(plan.State)) plan.State {
		s := small(t, 2)
		f(s)
		return s
	}
	for name, tt := range map[string]struct {
		f      Format
		folder string
		states []plan.State
		want   error
		text   string
	}{
		"a new tensor":                 {p.format(), Folder(1), []plan.State{change(func(s plan.State) { s["new"] = s["w"] })}, storage.ErrNotRepresentable, `"new"`},
		"a tensor less":                {p.format(), Folder(1), []plan.State{change(func(s plan.State) { delete(s, "f8") })}, storage.ErrNotRepresentable, `"f8"`},
		"another shape":                {p.format(), Folder(1), []plan.State{change(func(s plan.State) { s["scale"] = storagetest.Filled(t, tensor.Float32, []int64{2}, 1) })}, storage.ErrNotRepresentable, `"scale"`},
		"another dtype":                {p.format(), Folder(1), []plan.State{change(func(s plan.State) { s["scale"] = storagetest.Filled(t, tensor.Int32, []int64{1}, 1) })}, storage.ErrNotRepresentable, `"scale"`},
		"a value":                      {p.format(), Folder(1), []plan.State{change(func(s plan.State) { s["lr"] = 0.1 })}, storage.ErrNotRepresentable, `"lr"`},
		"no base":                      {Format{}, Folder(1), []plan.State{state}, ErrBase, Folder(1)},
		"a gap":                        {p.format(), Folder(7), []plan.State{state}, ErrBefore, Folder(6)},
		"another folder":               {p.format(), "step-1", []plan.State{state}, storage.ErrOptions, "step-1"},
		"version 0":                    {p.format(), Folder(0), []plan.State{state}, storage.ErrOptions, Folder(0)},
		"a base that is no checkpoint": {Format{Base: filepath.Join(p.dir, "nothing")}, Folder(1), []plan.State{state}, storage.ErrNotFound, "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := store(t, filepath.Join(p.dir, "published", tt.folder))
			err := save(t.Context(), tt.f, s, "x", tt.states...)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v; want %v about %s", err, tt.want, tt.text)
			}
			if left := storagetest.Names(t, s); len(left) > 0 {
				t.Errorf("it has left %q", left)
			}
		})
	}
	for _, f := range []Format{{Encoding: "diff"}, {Checksum: "md5"}} {
		if _, err := f.NewWriter(store(t, p.version(1)), storage.WriteOptions{}); !errors.Is(err, storage.ErrOptions) {
			t.Errorf("NewWriter of %+v = %v", f, err)
		}
	}
}

// A tensor with positions that do not fit 32 bits is refused by name.
func TestOverwriteOfLargeTensor(t *testing.T) {
	w := &writer{f: Format{Encoding: Overwrite}, version: 1}
	large := []int64{1 << 32}
	it := &plan.WriteItem{Kind: plan.KindTensor, Info: &plan.Info{FQN: "embed", Shape: large}, Box: tensor.Whole(large)}
	it.Info.DType = tensor.Uint8
	w.md = metadataOf("embed", tensor.Uint8, large)
	if err := w.representable(it); !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), `"embed"`) {
		t.Errorf("%v; want %v", err, storage.ErrNotRepresentable)
	}
	w.f.Encoding = XOR
	must.Do(t, w.representable(it))
}

// A complete version is never replaced, and a folder with other data files gets no index:
// receivers would apply these files too.
func TestWriterReplacesNothing(t *testing.T) {
	p := newPlace(t, small(t, 1))
	p.publish(t, 1, p.format(), small(t, 2))
	if err := save(t.Context(), p.format(), store(t, p.version(1)), "again", small(t, 3)); !errors.Is(err, storage.ErrExists) {
		t.Errorf("a second save of the version: %v; want %v", err, storage.ErrExists)
	}
	p.check(t, 1, small(t, 2))
	s := store(t, p.version(2))
	storagetest.Put(t, s, "rank1.safetensors", []byte("old"))
	if err := save(t.Context(), p.format(), s, "v2", small(t, 3)); !errors.Is(err, storage.ErrExists) || !strings.Contains(err.Error(), "rank1.safetensors") {
		t.Errorf("a folder with another file: %v; want %v", err, storage.ErrExists)
	}
	if names := storagetest.Names(t, s); len(names) != 1 {
		t.Errorf("it has left %q", names)
	}
}

// A save that dies at any operation leaves no version or a complete one, and the next save of
// the version succeeds. The version before stays.
func TestWriterCrashes(t *testing.T) {
	p := newPlace(t, small(t, 1))
	p.publish(t, 1, p.format(), small(t, 2))
	for n := range deep.Steps[int64]() {
		must.Do(t, os.RemoveAll(p.version(2)))
		s := store(t, p.version(2))
		f := fault.New(s, fault.CrashAt(n))
		err := save(t.Context(), p.format(), f, "crashed", small(t, 3))
		if err == nil {
			if n < 5 {
				t.Fatalf("a save has %d operations", n-1)
			}
			break
		}
		c, err := p.format().Open(t.Context(), s)
		switch {
		case err == nil:
			equal(t, storagetest.LoadAll(t, c), small(t, 3))
			must.Do(t, c.Close())
			continue
		case !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrIncomplete):
			t.Fatalf("operation %d: %v; want no version, or an incomplete one", n, err)
		}
		// This process lives, so only the age of a file says that its save is over.
		must.Get(commit.Sweep(t.Context(), s, Files(), 0, nil))(t)
		if err := save(t.Context(), p.format(), s, "next", small(t, 4)); err != nil {
			t.Fatalf("operation %d: the next save: %v", n, err)
		}
		p.check(t, 2, small(t, 4))
		p.check(t, 1, small(t, 2))
	}
}

// Several processes that divide the files of one rank write each file once, and a save that
// goes on writes no finished file again.
func TestDivide(t *testing.T) {
	p := newPlace(t, small(t, 1))
	s := store(t, p.version(1))
	var journal storagetest.Journal
	var offered int
	half := func(k int) *storagetest.Saving {
		sv := storagetest.NewSaving(at(p.format(), s), storagetest.Storage("shared", 1, 1), 1)
		sv.Journal, sv.Helper = &journal, k > 0
		sv.Divide = func(_ int, files []storage.File, held bool) []bool {
			offered = len(files)
			out := make([]bool, len(files))
			for i := range out {
				out[i] = i%2 == k
			}
			return out
		}
		must.Do(t, sv.Plan(t.Context(), []plan.State{small(t, 2)}))
		must.Do(t, sv.Write(t.Context()))
		return sv
	}
	first, second := half(0), half(1)
	if offered < 3 || journal.Len() != offered-1 { // norm does not change, and none is empty
		t.Fatalf("%d files were offered, %d written", offered, journal.Len())
	}
	again := half(1) // as if the process had died
	if journal.Found() == 0 || len(again.Results[0].Files) != len(second.Results[0].Files) {
		t.Errorf("finished files were written again: %d found", journal.Found())
	}
	r := first.Results[0]
	r.Items, r.Files = append(r.Items, again.Results[0].Items...), append(r.Files, again.Results[0].Files...)
	must.Do(t, first.Finish(t.Context()))
	p.check(t, 1, small(t, 2))
}
