package torchdcp_test

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestOpenErrors(t *testing.T) {
	for name, c := range map[string]struct {
		make func(s *mem.Store)
		want error
		word string
	}{
		"nothing": {func(s *mem.Store) {
			storagetest.Remove(t, s, ".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp")
		}, storage.ErrNotFound, ".metadata"},
		"data only":                 {func(s *mem.Store) { storagetest.Remove(t, s, ".metadata") }, storage.ErrIncomplete, ".metadata"},
		"no pickle":                 {func(s *mem.Store) { storagetest.Put(t, s, ".metadata", []byte("hello")) }, storage.ErrCorrupt, ".metadata"},
		"empty metadata":            {func(s *mem.Store) { storagetest.Put(t, s, ".metadata", nil) }, storage.ErrCorrupt, ".metadata"},
		"hyper_parallel's":          {func(s *mem.Store) { storagetest.Put(t, s, ".metadata", hyperMetadata(t)) }, storage.ErrVersion, "hyper_parallel"},
		"a name that cairn refuses": {func(s *mem.Store) { storagetest.Put(t, s, ".metadata", oddName(t)) }, errors.ErrUnsupported, "1 to 4096 bytes"},
		"a rank is missing": {func(s *mem.Store) {
			storagetest.Put(t, s, "__0.metadata", nil)
			storagetest.Put(t, s, "__2.metadata", nil)
			storagetest.Remove(t, s, ".metadata")
		}, storage.ErrIncomplete, "rank 1"},
	} {
		s := storagetest.CopyFixture(t, "torch-2.14/shardedtensor-3")
		c.make(s)
		_, err := torchdcp.Format{}.Open(t.Context(), s)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: Open = %v; want %v about %s", name, err, c.want, c.word)
		}
		if _, err := storage.NewReader(torchdcp.Format{}.Open, s, storage.ReadOptions{}).ReadMetadata(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: ReadMetadata = %v; want %v", name, err, c.want)
		}
	}
}

// oddName returns metadata with a surrogate as a name, which PyTorch takes.
func oddName(t testing.TB) []byte {
	t.Helper()
	b := must.Get(blob.ReadAll(t.Context(), storagetest.CopyFixture(t, "torch-2.15/shard0-3"), ".metadata", 1<<20))(t)
	return bytes.ReplaceAll(b, []byte("rep"), []byte("\xed\xa0\x80"))
}

func hyperMetadata(t testing.TB) []byte {
	t.Helper()
	b := must.Get(blob.ReadAll(t.Context(), storagetest.CopyFixture(t, "hyper_parallel/collective-4"), ".metadata", 1<<20))(t)
	return b
}

func TestOpenMergesMetadataOfRanks(t *testing.T) {
	s := storagetest.CopyFixture(t, "torch-2.14/ranklocal-2")
	ck, _ := open(t, s, torchdcp.Format{})
	if st := ck.Storage(); st.WorldSize != 2 || st.Version != "torchdcp 1.0.0" {
		t.Errorf("Storage = %+v; want two ranks", st)
	}
	if f := ck.Files(); len(f) != 4 || f[0].Name != "__0.metadata" || !f[0].Unsummed {
		t.Errorf("Files = %+v; want the metadata first", f)
	}
}

// forged writes a checkpoint of one tensor of 2 × 3 floats with changed metadata, or a
// changed record.
func forged(t testing.TB, root any, change func(e *meta.Entry)) *mem.Store {
	t.Helper()
	b := must.Get(torchsave.Marshal(root))(t)
	s := new(mem.Store)
	storagetest.Put(t, s, "__0_0.distcp", b)
	e := meta.Entry{FQN: "x", Tensor: &meta.Tensor{Shape: []int64{2, 3}, Chunks: []tensor.Box{tensor.Whole([]int64{2, 3})}}}
	e.Tensor.DType = tensor.Float32
	e.Tensor.Locs = []meta.Location{{File: "__0_0.distcp", Length: int64(len(b))}}
	change(&e)
	md := must.Get(dcpfiles.Encode(&dcpfiles.Document{Meta: &meta.Metadata{Entries: []meta.Entry{e}}, Version: "1.0.0"}))(t)
	storagetest.Put(t, s, ".metadata", md)
	return s
}

func TestRecordsMustMatchMetadata(t *testing.T) {
	good := storagetest.Filled(t, tensor.Float32, []int64{2, 3}, 1)
	nothing := func(*meta.Entry) {}
	for name, s := range map[string]*mem.Store{
		"another type":      forged(t, storagetest.Filled(t, tensor.Int32, []int64{2, 3}, 1), nothing),
		"another shape":     forged(t, storagetest.Filled(t, tensor.Float32, []int64{3, 2}, 1), nothing),
		"no tensor":         forged(t, int64(7), nothing),
		"two tensors":       forged(t, []any{good, good}, nothing),
		"cut":               forged(t, good, func(e *meta.Entry) { e.Tensor.Locs[0].Length -= 10 }),
		"not at its place":  forged(t, good, func(e *meta.Entry) { e.Tensor.Locs[0].Offset++; e.Tensor.Locs[0].Length-- }),
		"of no bytes":       forged(t, good, func(e *meta.Entry) { e.Tensor.Locs[0].Length = 0 }),
		"outside":           forged(t, good, func(e *meta.Entry) { e.Tensor.Locs[0].Offset = 1 << 40 }),
		"at the very end":   forged(t, good, func(e *meta.Entry) { e.Tensor.Locs[0].Offset = 1 << 62 }),
		"too long":          forged(t, good, func(e *meta.Entry) { e.Tensor.Locs[0].Length = 1<<63 - 1 }),
		"in no file":        forged(t, good, func(e *meta.Entry) { e.Tensor.Locs[0].File = "__7_0.distcp" }),
		"above its folder":  forged(t, good, func(e *meta.Entry) { e.Tensor.Locs[0].File = "../__0_0.distcp" }),
		"at the root":       forged(t, good, func(e *meta.Entry) { e.Tensor.Locs[0].File = "/etc/passwd" }),
		"in a Windows path": forged(t, good, func(e *meta.Entry) { e.Tensor.Locs[0].File = `..\x.distcp` }),
	} {
		x, err := tensor.New(tensor.Float32, []int64{2, 3})
		if err != nil {
			t.Fatal(err)
		}
		err = storagetest.Load(t.Context(), plain.At(s), plan.State{"x": x})
		if !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("%s: Load = %v; want %v", name, err, storage.ErrCorrupt)
		}
	}
	if err := storagetest.Load(t.Context(), plain.At(forged(t, good, nothing)), plan.State{"x": good}); err != nil {
		t.Errorf("nothing changed: Load = %v", err)
	}
}

// If a file is gone, only its own tensors are lost.
func TestReadUndamagedFiles(t *testing.T) {
	s := storagetest.CopyFixture(t, "torch-2.14/filepertensor-2")
	storagetest.Remove(t, s, "__1_0.distcp")
	ck, md := open(t, s, torchdcp.Format{})
	var whole, gone int
	for i := range md.Entries {
		switch err := ck.CheckHeld(t.Context(), &md.Entries[i]); {
		case err == nil:
			whole++
		case errors.Is(err, storage.ErrCorrupt) && strings.Contains(err.Error(), "__1_0.distcp"):
			gone++
		default:
			t.Errorf("CheckHeld(%s) = %v", md.Entries[i].FQN, err)
		}
	}
	if whole == 0 || gone != 1 {
		t.Errorf("%d entries are whole and %d gone; want all but one", whole, gone)
	}
	rep, err := ck.Verify(t.Context(), nil)
	if err != nil || len(rep.Problems) == 0 || rep.Problems[0].File != "__1_0.distcp" {
		t.Errorf("Verify = %+v, %v; want the file that is gone", rep, err)
	}
}

// torch.save keeps a CRC of each record: a flipped bit of a tensor is found.
func TestVerifyDetectsFlippedBit(t *testing.T) {
	x := storagetest.Filled(t, tensor.Float32, []int64{100}, 1)
	s := forged(t, x, func(e *meta.Entry) {
		e.Tensor.Shape, e.Tensor.Chunks = []int64{100}, []tensor.Box{tensor.Whole([]int64{100})}
	})
	b, _ := x.Bytes()
	must.Do(t, fault.Damage(t.Context(), s, "__0_0.distcp", func(f []byte) []byte {
		f[strings.Index(string(f), string(b))+200] ^= 4
		return f
	}))
	ck, _ := open(t, s, torchdcp.Format{})
	rep, err := ck.Verify(t.Context(), nil)
	if err != nil || len(rep.Problems) != 1 || rep.Problems[0].FQN != "x" || !strings.Contains(rep.Problems[0].Text, "checksum") {
		t.Errorf("Verify = %+v, %v; want one checksum that does not match", rep, err)
	}
}

func TestStoreErrorsAreReturned(t *testing.T) {
	inner := storagetest.CopyFixture(t, "torch-2.14/shardedtensor-3")
	broken := errors.New("broken")
	for n := int64(1); ; n++ {
		s := fault.New(inner, fault.Rule{Nth: n, Do: fault.Fail(broken)})
		x, err := tensor.New(tensor.Float32, shapeOf(t, inner))
		if err != nil {
			t.Fatal(err)
		}
		err = storagetest.Load(t.Context(), plain.At(s), plan.State{nameOf(t, inner): x})
		if int64(len(s.Ops())) < n {
			if err != nil || n < 5 {
				t.Errorf("a load without a fault, of %d operations = %v", n-1, err)
			}
			return
		}
		if !errors.Is(err, broken) || errors.Is(err, storage.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("operation %d fails, and Load = %v; want %v", n, err, broken)
		}
	}
}

// open opens a checkpoint that can be opened, and describes it.
func open(t testing.TB, s blob.Store, f torchdcp.Format) (storage.Checkpoint, *meta.Metadata) {
	t.Helper()
	ck := must.Get(f.Open(t.Context(), s))(t)
	md := must.Get(ck.Metadata(t.Context()))(t)
	return ck, md
}

func firstEntry(t testing.TB, s blob.Store) *meta.Entry {
	t.Helper()
	_, md := open(t, s, torchdcp.Format{})
	return &md.Entries[0]
}

func shapeOf(t testing.TB, s blob.Store) []int64 { return firstEntry(t, s).Tensor.Shape }

func nameOf(t testing.TB, s blob.Store) string { return firstEntry(t, s).FQN }
