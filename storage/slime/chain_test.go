package slime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func metadataOf(name string, d tensor.DType, shape []int64) *meta.Metadata {
	t := &meta.Tensor{Properties: meta.Properties{DType: d}, Shape: shape, Chunks: []tensor.Box{tensor.Whole(shape)}, Locs: make([]meta.Location, 1)}
	return &meta.Metadata{Entries: []meta.Entry{{FQN: name, Tensor: t}}}
}

// copyChain copies a chain that slime published.
func copyChain(t testing.TB, chain string) place {
	t.Helper()
	p := place{t.TempDir()}
	for _, dir := range []string{"base", "published"} {
		storagetest.CopyFolder(t, filepath.Join(fixtures, chain, dir), filepath.Join(p.dir, dir))
	}
	return p
}

// edit changes the index of a version.
func (p place) edit(t testing.TB, n int64, change func(x *index)) {
	t.Helper()
	name := filepath.Join(p.version(n), indexName)
	x := must.Get(decodeIndex(must.Get(os.ReadFile(name))(t)))(t)
	change(x)
	must.Do(t, os.WriteFile(name, must.Get(json.Marshal(x))(t), 0o666))
}

// file returns the path of the first data file of a version.
func (p place) file(n int64) string {
	return filepath.Join(p.version(n), "model-00000-of-00002.safetensors")
}

// rewrite writes a data file again, with other tensors.
func rewrite(t testing.TB, from, to string, change func(h *safetensors.Header, data []byte) []byte) {
	t.Helper()
	b := must.Get(os.ReadFile(from))(t)
	h := must.Get(safetensors.Decode(func(p []byte, off int64) error { copy(p, b[off:]); return nil }, int64(len(b))))(t)
	data := change(h, b[h.Size:])
	must.Do(t, os.WriteFile(to, append(must.Get(safetensors.Encode(h, 8))(t), data...), 0o666))
}

// first returns the name of the first tensor of a data file.
func first(t testing.TB, file string) (name string) {
	rewrite(t, file, file, func(h *safetensors.Header, data []byte) []byte {
		name = h.Entries[0].Name
		return data
	})
	return name
}

// readAt opens a version and reads its metadata. If only the metadata cannot be read, the
// version must show the same error to those who list or verify it.
func readAt(t testing.TB, f Format, dir string) error {
	t.Helper()
	c, err := openAt(t, f, dir)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err = c.Metadata(t.Context()); err == nil {
		t.Fatal("the metadata can be read")
	}
	if files := c.CheckFiles(t.Context()); files == nil || files.Error() != err.Error() {
		t.Errorf("CheckFiles = %v; want %v", files, err)
	}
	rep := must.Get(c.Verify(t.Context(), nil))(t)
	if len(rep.Problems) != 1 || !strings.Contains(err.Error(), rep.Problems[0].Text) {
		t.Errorf("Verify = %+v; want %v", rep.Problems, err)
	}
	if len(c.Files()) == 0 || c.Storage().Step == nil {
		t.Error("the version does not describe itself")
	}
	return err
}

// Each break of a chain is refused by the name of the version, and of the tensor or the
// file.
func TestBrokenChains(t *testing.T) {
	const chain = "xor-blake3"
	for name, tt := range map[string]struct {
		damage func(t *testing.T, p place)
		want   []string
	}{
		"a version is pruned":    {func(t *testing.T, p place) { must.Do(t, os.RemoveAll(p.version(2))) }, []string{Folder(2), "missing", Folder(3) + " needs it"}},
		"a version has no index": {func(t *testing.T, p place) { must.Do(t, os.Remove(filepath.Join(p.version(2), indexName))) }, []string{Folder(2), "incomplete"}},
		"a file is missing":      {func(t *testing.T, p place) { must.Do(t, os.Remove(p.file(2))) }, []string{Folder(2), "model-00000-of-00002.safetensors", "missing"}},
		"a file is shorter":      {func(t *testing.T, p place) { must.Do(t, os.Truncate(p.file(2), 4000)) }, []string{Folder(2), "model-00000-of-00002.safetensors"}},
		"a file is empty":        {func(t *testing.T, p place) { must.Do(t, os.Truncate(p.file(3), 0)) }, []string{Folder(3), "model-00000-of-00002.safetensors"}},
		"the index is cut":       {func(t *testing.T, p place) { must.Do(t, os.Truncate(filepath.Join(p.version(2), indexName), 400)) }, []string{Folder(2), indexName}},
		"another base_version": {func(t *testing.T, p place) {
			p.edit(t, 3, func(x *index) { x.Metadata.BaseVersion = "000001" })
		}, []string{Folder(3), "base_version 1"}},
		"it is its own base": {func(t *testing.T, p place) {
			p.edit(t, 2, func(x *index) { x.Metadata.BaseVersion = "000002" })
		}, []string{Folder(2), "base_version 2"}},
		"a cycle": {func(t *testing.T, p place) {
			p.edit(t, 2, func(x *index) { x.Metadata.BaseVersion = "000003" })
		}, []string{Folder(2), "base_version 3"}},
		"a folder of another version": {func(t *testing.T, p place) {
			must.Do(t, os.RemoveAll(p.version(2)))
			must.Do(t, os.CopyFS(p.version(2), os.DirFS(p.version(1))))
		}, []string{Folder(2), "the folder holds version 1"}},
		"a folder was renamed": {func(t *testing.T, p place) {
			must.Do(t, os.Rename(p.version(3), p.version(4)))
			must.Do(t, os.Symlink(Folder(4), p.version(3)))
		}, []string{Folder(4), "the folder holds version 3"}},
		"a name that the index has alone": {func(t *testing.T, p place) {
			p.edit(t, 2, func(x *index) { x.WeightMap["ghost"] = "model-00000-of-00002.safetensors" })
		}, []string{Folder(2), `"ghost"`, "it is not there"}},
		"a name that the file has alone": {func(t *testing.T, p place) {
			p.edit(t, 2, func(x *index) { delete(x.WeightMap, first(t, p.file(2))) })
		}, []string{Folder(2), "which the index does not name"}},
		"a tensor that the base lacks": {func(t *testing.T, p place) {
			rewrite(t, p.file(2), p.file(2), func(h *safetensors.Header, data []byte) []byte {
				h.Metadata["mtp.head"], h.Entries[0].Name = h.Metadata[h.Entries[0].Name], "mtp.head"
				return data
			})
			p.edit(t, 2, func(x *index) {
				for name, file := range x.WeightMap {
					if file == filepath.Base(p.file(2)) {
						delete(x.WeightMap, name)
					}
				}
				rewrite(t, p.file(2), p.file(2), func(h *safetensors.Header, data []byte) []byte {
					for _, e := range h.Entries {
						x.WeightMap[e.Name] = filepath.Base(p.file(2))
					}
					return data
				})
			})
		}, []string{Folder(2), `"mtp.head"`, "base does not have"}},
		"published twice, with different results": {func(t *testing.T, p place) {
			rewrite(t, p.file(2), filepath.Join(p.version(2), "model-00002-of-00003.safetensors"), func(h *safetensors.Header, data []byte) []byte {
				sum := []byte(h.Metadata[h.Entries[0].Name])
				sum[0] ^= 1
				h.Metadata[h.Entries[0].Name] = string(sum)
				return data
			})
		}, []string{Folder(2), "was published twice", "model-00000-of-00002.safetensors"}},
		"no checksum": {func(t *testing.T, p place) {
			rewrite(t, p.file(3), p.file(3), func(h *safetensors.Header, data []byte) []byte {
				delete(h.Metadata, h.Entries[0].Name)
				return data
			})
		}, []string{Folder(3), "checksum"}},
		"not bytes": {func(t *testing.T, p place) {
			rewrite(t, p.file(3), p.file(3), func(h *safetensors.Header, data []byte) []byte {
				h.Entries[0].DType = "I8"
				return data
			})
		}, []string{Folder(3), "I8"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := copyChain(t, chain)
			tt.damage(t, p)
			err := readAt(t, p.format(), p.version(3))
			if !errors.Is(err, ErrChain) || !errors.Is(err, storage.ErrCorrupt) {
				t.Fatalf("%v; want %v", err, ErrChain)
			}
			for _, text := range tt.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%v\nlacks %q", err, text)
				}
			}
		})
	}
}

// Encodings, compressions and checksums of the future are refused as such.
func TestUnknownVersions(t *testing.T) {
	for _, change := range []func(d *description){
		func(d *description) { d.Encoding = "arithmetic" },
		func(d *description) { d.Compression = "lz4" },
		func(d *description) { d.Checksum = "md5" },
	} {
		p := copyChain(t, "xor-blake3")
		p.edit(t, 2, func(x *index) { change(&x.Metadata) })
		if err := readAt(t, p.format(), p.version(3)); !errors.Is(err, storage.ErrVersion) || !strings.Contains(err.Error(), Folder(2)) {
			t.Errorf("%v; want %v of %s", err, storage.ErrVersion, Folder(2))
		}
	}
}

// Two pipeline stages that publish the same tensor do not undo each other's change.
func TestPublishedTwice(t *testing.T) {
	for _, chain := range []string{"xor-blake3", "overwrite-adler32"} {
		p := copyChain(t, chain)
		must.Do(t, os.CopyFS(filepath.Join(p.dir, "copy"), os.DirFS(p.version(2))))
		for _, f := range must.Get(filepath.Glob(filepath.Join(p.dir, "copy", "*.safetensors")))(t) {
			must.Do(t, os.Rename(f, filepath.Join(p.version(2), "twice-"+filepath.Base(f))))
		}
		for n := range int64(2) {
			c := must.Get(openAt(t, p.format(), p.version(n+2)))(t)
			storagetest.CheckItems(t, c, expected(t, chain, Folder(n+2)))
			must.Do(t, c.Close())
		}
	}
}

// load loads everything that a checkpoint holds, and returns the error.
func load(t testing.TB, c storage.Checkpoint) error {
	t.Helper()
	md := must.Get(c.Metadata(t.Context()))(t)
	state := must.Get(plan.NewState(md, nil))(t)
	return storagetest.Load(t.Context(), storagetest.Place{Reader: func() storage.Reader { return storage.ReaderOf(c, storage.ReadOptions{}) }}, state)
}

// A wrong base is noticed, with the names of all tensors that show it and of the first
// version that does not fit. No tensor is returned as if it were right.
func TestWrongBase(t *testing.T) {
	p := newPlace(t, small(t, 1))
	p.publish(t, 1, p.format(), small(t, 2))
	p.publish(t, 2, p.format(), small(t, 3))
	wrong := newPlace(t, small(t, 7))
	c := must.Get(openAt(t, Format{Base: wrong.base()}, p.version(2)))(t)
	defer c.Close()
	if err := load(t, c); !errors.Is(err, ErrChain) || !strings.Contains(err.Error(), Folder(1)) {
		t.Errorf("load: %v; want %v at %s", err, ErrChain, Folder(1))
	}
	rep := must.Get(c.Verify(t.Context(), nil))(t)
	names := map[string]bool{}
	for _, p := range rep.Problems {
		names[p.FQN] = strings.Contains(p.Text, Folder(1))
	}
	for _, name := range []string{"w", "scale", "f8"} {
		if !names[name] {
			t.Errorf("the problems do not name %s and %s: %+v", name, Folder(1), rep.Problems)
		}
	}
}

// Damaged bytes of a version in the middle are found by the checksum of the newest state.
func TestDamagedDifference(t *testing.T) {
	for _, chain := range []string{"xor-blake3", "overwrite-adler32"} {
		p := copyChain(t, chain)
		name := first(t, p.file(2))
		b := must.Get(os.ReadFile(p.file(2)))(t)
		h := must.Get(safetensors.Decode(func(q []byte, off int64) error { copy(q, b[off:]); return nil }, int64(len(b))))(t)
		b[h.Size+(h.Entries[0].Begin+h.Entries[0].End)/2] ^= 4
		must.Do(t, os.WriteFile(p.file(2), b, 0o666))
		c := must.Get(openAt(t, p.format(), p.version(3)))(t)
		rep := must.Get(c.Verify(t.Context(), nil))(t)
		if len(rep.Problems) != 1 || rep.Problems[0].FQN != name || !strings.Contains(rep.Problems[0].Text, Folder(2)) {
			t.Errorf("%s: %+v; want one problem of %s in %s", chain, rep.Problems, name, Folder(2))
		}
		if err := load(t, c); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("%s: load = %v", chain, err)
		}
		must.Do(t, c.Close())
	}
}

// A base that cannot be version 0 is refused as such, and is no damage of the version.
func TestBaseThatIsNotVersionZero(t *testing.T) {
	p := copyChain(t, "overwrite-adler32")
	for name, tt := range map[string]struct {
		base, want string
		missing    bool
	}{
		"not a checkpoint":   {filepath.Join(t.TempDir(), "nothing"), "nothing holds no checkpoint", true},
		"a delta version":    {p.version(1), Folder(1) + " is a delta version, and no version before it is full", false},
		"a later version":    {p.version(7), Folder(7) + " is not a version before " + Folder(1), false},
		"an unnamed version": {rename(t, p.version(1)), "is a delta version", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := openAt(t, Format{Base: tt.base}, p.version(3))
			if !errors.Is(err, ErrBase) || errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrNotFound) != tt.missing {
				t.Errorf("%v; want %v", err, ErrBase)
			}
			if err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v; want a text with %q", err, tt.want)
			}
		})
	}
}

// rename copies a folder to one with another name.
func rename(t *testing.T, dir string) string {
	to := filepath.Join(t.TempDir(), "other")
	must.Do(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

// Without version 0, a version can be verified in part, and not read.
func TestWithoutBase(t *testing.T) {
	p := copyChain(t, "overwrite-adler32")
	c := must.Get(openAt(t, Format{}, p.version(3)))(t)
	defer c.Close()
	rep := must.Get(c.Verify(t.Context(), nil))(t)
	if len(rep.Problems) > 0 || rep.Files != 3 || len(rep.Notes) != 1 || !strings.Contains(rep.Notes[0], "version 0 is not given") {
		t.Errorf("%+v; want 3 files without problems, and a note about the base", rep)
	}
	_, mdErr := c.Metadata(t.Context())
	_, _, findErr := c.Find(t.Context(), "lm_head.weight")
	_, loadErr := storage.ReaderOf(c, storage.ReadOptions{}).ReadMetadata(t.Context())
	for _, err := range []error{mdErr, findErr, loadErr} {
		if !errors.Is(err, ErrBase) || !strings.Contains(err.Error(), Folder(1)) {
			t.Errorf("%v; want %v of %s", err, ErrBase, Folder(1))
		}
	}
	name := first(t, p.file(3))
	b := must.Get(os.ReadFile(p.file(3)))(t)
	i := bytes.Index(b, []byte{0x28, 0xb5, 0x2f, 0xfd}) // the first frame
	b[i] ^= 1
	must.Do(t, os.WriteFile(p.file(3), b, 0o666))
	if rep := must.Get(c.Verify(t.Context(), nil))(t); len(rep.Problems) != 1 || rep.Problems[0].FQN != name {
		t.Errorf("%+v; want one problem of %s", rep.Problems, name)
	}
}

// Tensors that never changed have no checksum: the report counts them.
func TestUnsummed(t *testing.T) {
	p := newPlace(t, small(t, 1))
	p.publish(t, 1, p.format(), small(t, 2))
	c := must.Get(openAt(t, p.format(), p.version(1)))(t)
	defer c.Close()
	rep := must.Get(c.Verify(t.Context(), nil))(t)
	if rep.Unsummed != 18 || len(rep.Problems) > 0 || len(rep.Notes) != 1 || !strings.Contains(rep.Notes[0], ": 2 of 5") {
		t.Errorf("%+v; want 18 bytes of norm without a checksum", rep)
	}
}

// A crash, or an error of the store, in the middle of a read changes no file.
func TestReadChangesNothing(t *testing.T) {
	p := copyChain(t, "xor-blake3")
	before := contents(t, p.dir)
	failed := 0
	for n := int64(1); ; n++ {
		c, err := p.format().Open(t.Context(), fault.New(store(t, p.version(3)), fault.Rule{Nth: n, Do: fault.Crash()}))
		if err == nil {
			err = load(t, c)
			must.Do(t, c.Close())
		}
		if err == nil {
			break
		}
		failed++
	}
	if failed < 5 {
		t.Errorf("%d reads have failed", failed)
	}
	if after := contents(t, p.dir); !maps.Equal(before, after) {
		t.Error("files have changed")
	}
	c := must.Get(openAt(t, p.format(), p.version(3)))(t)
	defer c.Close()
	storagetest.CheckItems(t, c, expected(t, "xor-blake3", Folder(3)))
}

func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	s := store(t, dir)
	out := map[string]string{}
	for _, name := range storagetest.Names(t, s) {
		out[name] = string(must.Get(blob.ReadAll(t.Context(), s, name, 1<<30))(t))
	}
	return out
}

// Tensors that are used at the same time, in little memory, are made once for all users, and
// boxes of any shape and dtype are read.
func TestTensorsInLittleMemory(t *testing.T) {
	p := newPlace(t, small(t, 1))
	p.publish(t, 1, p.format(), small(t, 2))
	ck := must.Get(openAt(t, p.format(), p.version(1)))(t)
	defer ck.Close()
	c := ck.(*checkpoint)
	c.t.most = 100 // less than w
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			name := []string{"w", "scale", "f8", "norm"}[i%4]
			x := small(t, 2)[name].(*tensor.Tensor)
			box := tensor.Whole(slices.Clone(x.Shape()))
			if box.Sizes[0] > 2 {
				box.Offsets[0], box.Sizes[0] = 1, box.Sizes[0]-2
			}
			dst := must.Value(tensor.New(x.DType(), box.Sizes))
			at := must.Value(c.place(t.Context(), must.Value(find(c, name)), 0))
			if _, err := at.Decoder.Decode(t.Context(), box, dst, 1<<20); err != nil {
				t.Error(err)
			}
			if want := must.Value(x.Narrow(box)); !tensor.Equal(dst, want) {
				t.Errorf("%s has other elements", name)
			}
		})
	}
	wg.Wait()
	if c.t.bytes > 33*7*2 {
		t.Errorf("%d bytes are kept", c.t.bytes)
	}
}

func find(c *checkpoint, name string) (*meta.Entry, error) {
	e, ok, err := c.Find(context.Background(), name)
	if err == nil && !ok {
		err = storage.ErrNotFound
	}
	return e, err
}

// If the context of a caller ends, this does not spoil the tensor for another caller.
func TestTensorsAfterCancel(t *testing.T) {
	p := newPlace(t, small(t, 1))
	p.publish(t, 1, p.format(), small(t, 2))
	ck := must.Get(openAt(t, p.format(), p.version(1)))(t)
	defer ck.Close()
	c := ck.(*checkpoint)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, _, err := c.t.get(ctx, c.of["w"]); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want %v", err, context.Canceled)
	}
	b, _, done, err := c.t.get(t.Context(), c.of["w"])
	if err != nil || !bytes.Equal(b, small(t, 2)["w"].(*tensor.Tensor).Contents()) {
		t.Fatalf("the next caller: %v", err)
	}
	done()
}

// A folder of a full version, or of none, is not a delta version.
func TestOpenOthers(t *testing.T) {
	p := newPlace(t, small(t, 1))
	for dir, want := range map[string]error{p.base(): storage.ErrNotFound, filepath.Join(p.dir, "nothing"): storage.ErrNotFound} {
		if _, err := openAt(t, Format{}, dir); !errors.Is(err, want) {
			t.Errorf("%s: %v; want %v", dir, err, want)
		}
	}
	p.publish(t, 1, p.format(), small(t, 2))
	must.Do(t, os.Remove(filepath.Join(p.version(1), indexName)))
	if _, err := openAt(t, p.format(), p.version(1)); !errors.Is(err, storage.ErrIncomplete) {
		t.Errorf("a version without its index: %v; want %v", err, storage.ErrIncomplete)
	}
	if _, err := (hf.Format{}).Open(t.Context(), store(t, p.version(1))); !errors.Is(err, storage.ErrIncomplete) {
		t.Errorf("the same as hf: %v; want %v", err, storage.ErrIncomplete)
	}
}
