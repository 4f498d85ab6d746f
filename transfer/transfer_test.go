package transfer

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forms are the ways in which checkpoints are laid out.
var forms = map[string]formats.Options{
	formats.Native:   {},
	formats.TorchDCP: {},
	formats.Hyper:    {},
	formats.Torch:    {File: "model.pt"},
	"hf":             {},
	"hf, shards":     {Shards: 2},
	"hf, pieces":     {Distributed: true},
}

func state(t testing.TB, elements int64, seed byte) plan.State {
	return plan.State{
		"v": storagetest.Filled(t, tensor.Float32, []int64{elements}, seed),
		"w": storagetest.Filled(t, tensor.Float32, []int64{elements}, seed+1),
	}
}

// save saves a checkpoint of two tensors to s.
func save(t testing.TB, s blob.Store, form, id string, elements int64, seed byte) {
	t.Helper()
	o := forms[form]
	name, _, _ := strings.Cut(form, ",")
	f := must.Get(formats.ByName(name, &o))(t)
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(f, s, storage.WriteOptions{}) }}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage(id, 1, 1), state(t, elements, seed)))
}

// seedOf returns the seed of the checkpoint in s, after it has verified and loaded it.
func seedOf(t testing.TB, s blob.Store) (byte, error) {
	t.Helper()
	c, err := formats.Open(t.Context(), s, nil)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if v, err := c.Verify(t.Context(), nil); err != nil || len(v.Problems) > 0 {
		return 0, errors.Join(err, errors.New("it has problems"))
	}
	all := storagetest.LoadAll(t, c)
	var first [2]byte
	for i, name := range []string{"v", "w"} {
		x, ok := all[name].(*tensor.Tensor)
		if !ok {
			return 0, errors.New("it lacks " + name)
		}
		p, _ := x.Bytes()
		first[i] = p[0]
	}
	if first[1] != first[0]+1 {
		return 0, errors.New("its tensors are of different saves")
	}
	return first[0], nil
}

func wantSeed(t *testing.T, s blob.Store, want byte) {
	t.Helper()
	if got, err := seedOf(t, s); got != want || err != nil {
		t.Errorf("the checkpoint in %s is number %d, %v; want %d", s, got, err, want)
	}
}

// Checkpoints of all programs and formats arrive completely. A second copy finds no work.
func TestCopyOfFixtures(t *testing.T) {
	for _, f := range storagetest.Fixtures(t, "*/*") {
		t.Run(f.Name, func(t *testing.T) {
			src := must.Get(file.OpenPath(f.Dir))(t)
			dst := new(mem.Store)
			rep := must.Get(Copy(t.Context(), src, dst, &Options{Full: true}))(t)
			c := must.Get(formats.Open(t.Context(), dst, nil))(t)
			defer c.Close()
			storagetest.CheckItems(t, c, f.Items)
			again, err := Copy(t.Context(), src, dst, nil)
			if err != nil || again.KeptFiles != rep.Files || again.KeptBytes != rep.Bytes {
				t.Errorf("a second Copy = %+v, %v; want %d files kept", again, err, rep.Files)
			}
		})
	}
}

// However a copy is interrupted, no part of a checkpoint can be opened, and the next copy
// does not copy finished files again.
func TestCopyGoesOnAfterACrash(t *testing.T) {
	for form := range forms {
		t.Run(form, func(t *testing.T) {
			src := new(mem.Store)
			save(t, src, form, "save1", 64, 1)
			for n := range deep.Steps[int64]() {
				inner := new(mem.Store)
				dst := fault.New(inner, fault.CrashAt(n))
				_, err := Copy(t.Context(), src, dst, &Options{Parallel: 1})
				if got, openErr := seedOf(t, inner); openErr == nil && got != 1 {
					t.Fatalf("crash at %d: the target is number %d", n, got)
				} else if openErr == nil && err != nil && len(storagetest.Names(t, inner)) != len(storagetest.Names(t, src)) {
					t.Fatalf("crash at %d: an incomplete target opens", n)
				}
				have := len(storagetest.Names(t, inner))
				rep, err := Copy(t.Context(), src, inner, nil)
				if err != nil || rep.KeptFiles != have {
					t.Fatalf("crash at %d: Copy = %+v, %v; want %d files kept", n, rep, err, have)
				}
				wantSeed(t, inner, 1)
				if !dst.Crashed() {
					return
				}
			}
		})
	}
}

// While a checkpoint is replaced, the old one, the new one or no checkpoint can be opened, never
// a mixture; and a second copy completes it.
func TestCopyReplacesACheckpoint(t *testing.T) {
	for form := range forms {
		t.Run(form, func(t *testing.T) {
			src := new(mem.Store)
			save(t, src, form, "save2", 64, 20)
			for n := range deep.Steps[int64]() {
				inner := new(mem.Store)
				save(t, inner, form, "save1", 64, 10)
				dst := fault.New(inner, fault.CrashAt(n))
				_, err := Copy(t.Context(), src, dst, &Options{Parallel: 1, Overwrite: true})
				got, openErr := seedOf(t, inner)
				if openErr == nil && got != 10 && got != 20 || err == nil && got != 20 {
					t.Fatalf("crash at %d: the target is number %d, after %v", n, got, err)
				}
				if _, err := Copy(t.Context(), src, inner, &Options{Overwrite: true}); err != nil {
					t.Fatalf("crash at %d: %v", n, err)
				}
				wantSeed(t, inner, 20)
				if !dst.Crashed() {
					if got, want := storagetest.Names(t, inner), storagetest.Names(t, src); !slices.Equal(got, want) {
						t.Errorf("the target has %v; want %v", got, want)
					}
					return
				}
			}
		})
	}
}

func TestCopyRefusesAnotherCheckpoint(t *testing.T) {
	for form := range forms {
		src, dst := new(mem.Store), new(mem.Store)
		save(t, src, form, "save2", 64, 20)
		save(t, dst, form, "save1", 64, 10)
		if _, err := Copy(t.Context(), src, dst, nil); !errors.Is(err, storage.ErrExists) {
			t.Errorf("%s: Copy = %v; want ErrExists", form, err)
		}
		wantSeed(t, dst, 10)
	}
}

// A copy does not replace a checkpoint of another format, or the rest of one: readers
// might open the wrong files, during the copy or after it.
func TestCopyRefusesAnotherFormat(t *testing.T) {
	for old := range forms {
		for young := range forms {
			from, _, _ := strings.Cut(old, ",")
			to, _, _ := strings.Cut(young, ",")
			if from == to {
				continue
			}
			for _, rest := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s over %s, only the rest: %v", young, old, rest), func(t *testing.T) {
					src, dst := new(mem.Store), new(mem.Store)
					save(t, src, young, "save2", 64, 20)
					save(t, dst, old, "save1", 64, 10)
					if rest {
						storagetest.Remove(t, dst, "cairn.json", ".metadata", "model.safetensors.index.json", "cairn-save.json")
					}
					before := storagetest.Names(t, dst)
					for _, o := range []*Options{nil, {Overwrite: true}} {
						watched := fault.New(dst)
						_, err := Copy(t.Context(), src, watched, o)
						if _, ok := errors.AsType[*storage.OtherFormatError](err); !ok || !errors.Is(err, storage.ErrExists) {
							t.Errorf("Copy = %v; want ErrExists and both formats", err)
						}
						if n := watched.Ops().Count(fault.Mutating); n > 0 {
							t.Errorf("the copy has changed the target %d times", n)
						}
					}
					if after := storagetest.Names(t, dst); !slices.Equal(after, before) {
						t.Errorf("the target has %v; want %v", after, before)
					}
					if !rest {
						wantSeed(t, dst, 10)
					}
				})
			}
		}
	}
}

// A copy looks again before its record is written.
func TestCopyNoticesAnotherFormatThatAppears(t *testing.T) {
	src, dst := new(mem.Store), new(mem.Store)
	save(t, src, formats.TorchDCP, "save2", 64, 20)
	h := &hooked{Store: dst}
	done := false
	h.create = func(string) {
		if !done {
			done = true
			save(t, dst, formats.Native, "save1", 64, 10)
		}
	}
	if _, err := Copy(t.Context(), src, h, nil); !errors.Is(err, storage.ErrExists) {
		t.Errorf("Copy = %v; want ErrExists", err)
	}
	wantSeed(t, dst, 10)
}

// Files of other formats that the source has beside its checkpoint do not stop a copy that
// continues.
func TestCopyContinuesBesideFilesOfOtherFormats(t *testing.T) {
	src, dst := new(mem.Store), new(mem.Store)
	save(t, src, formats.Native, "save2", 64, 20)
	save(t, src, formats.Torch, "other", 64, 30)
	b := must.Get(blob.ReadAll(t.Context(), src, "model.pt", 1<<20))(t)
	storagetest.Put(t, dst, "model.pt", b)
	if _, err := Copy(t.Context(), src, dst, &Options{Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	wantSeed(t, dst, 20)
}

// Two copies to one place: the record of one of them is there.
func TestCopyDoesNotReplaceARecordThatAppears(t *testing.T) {
	src, dst, other := new(mem.Store), new(mem.Store), new(mem.Store)
	save(t, src, formats.Native, "save2", 64, 20)
	save(t, other, formats.Native, "save1", 64, 10)
	faster := &hooked{Store: dst}
	faster.create = func(name string) {
		if name == "cairn.json" {
			if _, err := Copy(t.Context(), other, dst, nil); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := Copy(t.Context(), src, faster, nil); !errors.Is(err, storage.ErrExists) {
		t.Errorf("Copy = %v; want ErrExists", err)
	}
	wantSeed(t, dst, 10)
}

// hooked calls a function before Create.
type hooked struct {
	blob.Store
	create func(name string)
}

func (h *hooked) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	h.create(name)
	return h.Store.Create(ctx, name, o)
}

func TestCopyNoticesAReplacedSource(t *testing.T) {
	src, dst := new(mem.Store), new(mem.Store)
	save(t, src, formats.Native, "save1", 64, 1)
	h := &hooked{Store: dst}
	h.create = func(name string) {
		if name == "cairn.json" {
			save(t, src, formats.Native, "save2", 64, 20)
		}
	}
	if _, err := Copy(t.Context(), src, h, nil); !errors.Is(err, blob.ErrChanged) {
		t.Errorf("Copy = %v; want ErrChanged", err)
	}
	if _, err := seedOf(t, dst); err == nil {
		t.Error("the target can be opened")
	}
}

// A damaged file does not become visible, whether it was damaged in the source, on its
// way, or in the target by an earlier copy.
func TestCopyChecksChecksums(t *testing.T) {
	healthy := new(mem.Store)
	save(t, healthy, formats.Native, "save1", 3<<20, 1)
	var data string
	for _, name := range storagetest.Names(t, healthy) {
		if strings.HasSuffix(name, ".safetensors") {
			data = name
		}
	}
	t.Run("source", func(t *testing.T) {
		src, dst := storagetest.CopyOf(t, healthy), new(mem.Store)
		storagetest.Flip(t, src, data)
		if _, err := Copy(t.Context(), src, dst, nil); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("Copy = %v; want ErrCorrupt", err)
		}
		if slices.Contains(storagetest.Names(t, dst), data) {
			t.Error("the damaged file is in the target")
		}
	})
	t.Run("read", func(t *testing.T) {
		src := fault.New(healthy, fault.Rule{On: fault.Read, Match: fault.Named(data), Nth: 3, Do: fault.Flip(12345)})
		if _, err := Copy(t.Context(), src, new(mem.Store), nil); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("Copy = %v; want ErrCorrupt", err)
		}
	})
	t.Run("target", func(t *testing.T) {
		dst := new(mem.Store)
		if _, err := Copy(t.Context(), healthy, dst, nil); err != nil {
			t.Fatal(err)
		}
		storagetest.Flip(t, dst, data)
		rep, err := Copy(t.Context(), healthy, dst, nil)
		if err != nil || rep.KeptFiles != rep.Files-1 {
			t.Errorf("Copy = %+v, %v; want one file copied again", rep, err)
		}
		wantSeed(t, dst, 1)
	})
	t.Run("read back", func(t *testing.T) {
		dst := fault.New(new(mem.Store), fault.Rule{On: fault.Read, Match: fault.Named(data), Times: -1, Do: fault.Flip(99)})
		if _, err := Copy(t.Context(), healthy, dst, &Options{Full: true}); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("Copy with Full = %v; want ErrCorrupt", err)
		}
	})
}

// The buffers stay within their bound, and progress counts every byte once.
func TestCopyWithinMemory(t *testing.T) {
	src, dst := new(mem.Store), new(mem.Store)
	save(t, src, formats.Native, "save1", 8<<20, 1)
	work.ResetPeak()
	before := work.Stats().Lent
	var planned int64
	progress := make(chan int64, 1000)
	rep, err := Copy(t.Context(), src, dst, &Options{
		Memory: 3 * buffer, Planned: func(n int64) { planned = n }, Progress: func(n int64) { progress <- n },
	})
	if err != nil {
		t.Fatal(err)
	}
	close(progress)
	var sum int64
	for n := range progress {
		sum += n
	}
	if sum != rep.Bytes || planned != rep.Bytes || rep.Bytes < 2*4*8<<20 {
		t.Errorf("progress counted %d bytes of %d, and %d were planned", sum, rep.Bytes, planned)
	}
	if peak := work.Stats().Peak - before; peak > 3*buffer {
		t.Errorf("buffers of %d bytes; want at most %d", peak, 3*buffer)
	}
	wantSeed(t, dst, 1)
}

func TestCopyEndsWithItsContext(t *testing.T) {
	src, dst := new(mem.Store), new(mem.Store)
	save(t, src, formats.Native, "save1", 8<<20, 1)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Copy(ctx, src, dst, &Options{Parallel: 1, Progress: func(int64) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Copy = %v; want Canceled", err)
	}
	if _, err := seedOf(t, dst); err == nil {
		t.Error("the target can be opened")
	}
}

func TestCopyOfOneFile(t *testing.T) {
	dir := t.TempDir()
	in := must.Get(file.Open(dir, nil))(t)
	save(t, in, formats.Torch, "save1", 64, 1)
	storagetest.Put(t, in, "other.txt", []byte("not copied"))
	src := must.Get(file.OpenPath(filepath.Join(dir, "model.pt")))(t)
	dst := new(mem.Store)
	storagetest.Put(t, dst, "x.txt", []byte("stays"))
	if _, err := Copy(t.Context(), src, dst, &Options{As: "copy.pt", Full: true}); err != nil {
		t.Fatal(err)
	}
	if got, want := storagetest.Names(t, dst), []string{"copy.pt", "x.txt"}; !slices.Equal(got, want) {
		t.Errorf("the target has %v; want %v", got, want)
	}
	wantSeed(t, blob.NewSingle(dst, "copy.pt"), 1)
	save(t, in, formats.Torch, "save2", 64, 20)
	if _, err := Copy(t.Context(), src, dst, &Options{As: "copy.pt"}); !errors.Is(err, storage.ErrExists) {
		t.Errorf("Copy = %v; want ErrExists", err)
	}
	if _, err := Copy(t.Context(), src, dst, &Options{As: "copy.pt", Overwrite: true}); err != nil {
		t.Error(err)
	}
	wantSeed(t, blob.NewSingle(dst, "copy.pt"), 20)
}

// A copy is under way like a save: a second one to the same place is refused, and
// cairn clean keeps its files.
func TestCopyHoldsALock(t *testing.T) {
	src := new(mem.Store)
	save(t, src, formats.Native, "save1", 64, 1)
	dst := must.Get(file.Open(t.TempDir(), nil))(t)
	h := &wrapped{hooked{Store: dst}}
	h.create = func(name string) {
		if name == "cairn.json" { // the store is locked for the commit
			return
		}
		if _, err := Copy(t.Context(), src, dst, nil); !errors.Is(err, storage.ErrUnderWay) && !errors.Is(err, blob.ErrLocked) {
			t.Errorf("a second Copy = %v; want ErrUnderWay or ErrLocked", err)
		}
		if removed, err := formats.Clean(t.Context(), dst, 0); err != nil || len(removed) > 0 {
			t.Errorf("Clean removed %v, %v; want none", removed, err)
		}
	}
	if _, err := Copy(t.Context(), src, h, nil); err != nil {
		t.Error(err)
	}
	wantSeed(t, dst, 1)
}

// wrapped is a hooked store that has the capabilities of the inner one.
type wrapped struct{ hooked }

func (w *wrapped) Unwrap() blob.Store { return w.Store }
