package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// rankPart is the part of a rank, and the store with its files.
type rankPart struct {
	Saved
	store blob.Store
}

// divided divides the checkpoint in src among two ranks, each with a store of its own. It
// also returns the data files of both.
func divided(t *testing.T, src blob.Store) (ranks [2]rankPart, data []storage.File) {
	t.Helper()
	format := must.Get(formats.Detect(t.Context(), src))(t)
	c := must.Get(formats.Open(t.Context(), src, nil))(t)
	defer c.Close()
	for i := range ranks {
		ranks[i] = rankPart{Saved{Format: format, SaveID: c.Storage().SaveID}, new(mem.Store)}
	}
	known := map[string]storage.File{}
	for _, f := range c.Files() {
		known[f.Name] = f
	}
	names := storagetest.Names(t, src)
	for _, name := range names {
		if f, ok := known[name]; ok && len(names) > 1 && formats.WriteOrder(format, name) == 0 {
			data = append(data, f)
			r := &ranks[len(data)%2]
			r.Files = append(r.Files, f)
			put(t, src, r.store, name)
			continue
		}
		ranks[0].Last = append(ranks[0].Last, name)
		put(t, src, ranks[0].store, name)
	}
	slices.SortFunc(ranks[0].Last, func(a, b string) int {
		return cmp.Compare(formats.WriteOrder(format, a), formats.WriteOrder(format, b))
	})
	return ranks, data
}

func put(t *testing.T, from, to blob.Store, name string) {
	t.Helper()
	b, err := blob.ReadAll(t.Context(), from, name, 1<<30)
	if err == nil {
		_, err = blob.WriteAll(t.Context(), to, name, b, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// copyParts copies the parts of two ranks. between is called before the record is written.
func copyParts(ctx context.Context, dst blob.Store, ranks [2]rankPart, data []storage.File, o *Options, between func()) (kept int, err error) {
	var parts [2]*Parts
	for i, r := range ranks {
		p, err := BeginParts(ctx, r.store, dst, r.Saved, o)
		if err != nil {
			return 0, err
		}
		defer p.Close()
		parts[i] = p
	}
	for _, p := range parts {
		if err := p.Copy(ctx); err != nil {
			return 0, err
		}
	}
	between()
	if err := parts[0].Publish(ctx, data); err != nil {
		return 0, err
	}
	return parts[0].Report().KeptFiles + parts[1].Report().KeptFiles, nil
}

// Ranks with stores of their own copy one checkpoint. It is visible when its record is,
// and not before, however the copy is interrupted. Then the next one goes on.
func TestPartsOfRanks(t *testing.T) {
	for form := range forms {
		t.Run(form, func(t *testing.T) {
			src := new(mem.Store)
			save(t, src, form, "save1", 64, 1)
			ranks, data := divided(t, src)
			for n := range deep.Steps[int64]() {
				inner := new(mem.Store)
				dst := fault.New(inner, fault.CrashAt(n))
				_, err := copyParts(t.Context(), dst, ranks, data, &Options{Parallel: 1}, func() {
					if _, err := seedOf(t, inner); err == nil {
						t.Errorf("the copy can be opened before its record is written")
					}
				})
				if _, openErr := seedOf(t, inner); openErr == nil && len(storagetest.Names(t, inner)) != len(storagetest.Names(t, src)) {
					t.Fatalf("crash at %d: an incomplete target opens", n)
				}
				if err == nil != !dst.Crashed() {
					t.Fatalf("crash at %d: the copy = %v", n, err)
				}
				have := len(storagetest.Names(t, inner))
				if kept, err := copyParts(t.Context(), inner, ranks, data, nil, func() {}); err != nil || kept != have {
					t.Fatalf("crash at %d: the second copy kept %d files, %v; want %d", n, kept, err, have)
				}
				wantSeed(t, inner, 1)
				if !dst.Crashed() {
					return
				}
			}
		})
	}
}

// Parts replace another checkpoint only if the options say so, and all of it.
func TestPartsReplaceACheckpoint(t *testing.T) {
	for form := range forms {
		src, dst := new(mem.Store), new(mem.Store)
		save(t, src, form, "save2", 64, 20)
		save(t, dst, form, "save1", 64, 10)
		ranks, data := divided(t, src)
		if _, err := copyParts(t.Context(), dst, ranks, data, nil, func() {}); !errors.Is(err, storage.ErrExists) {
			t.Errorf("%s: the copy = %v; want ErrExists", form, err)
		}
		wantSeed(t, dst, 10)
		if _, err := copyParts(t.Context(), dst, ranks, data, &Options{Overwrite: true}, func() { wantSeed(t, dst, 10) }); err != nil {
			t.Errorf("%s: %v", form, err)
		}
		wantSeed(t, dst, 20)
		if got, want := storagetest.Names(t, dst), storagetest.Names(t, src); !slices.Equal(got, want) {
			t.Errorf("%s: the target has %v; want %v", form, got, want)
		}
	}
}

// A copy that began before another one was published does not replace it.
func TestPartsDoNotReplaceANewerCopy(t *testing.T) {
	src, other, dst := new(mem.Store), new(mem.Store), new(mem.Store)
	save(t, src, formats.Native, "save1", 64, 10)
	save(t, other, formats.Native, "save2", 64, 20)
	ranks, data := divided(t, src)
	_, err := copyParts(t.Context(), dst, ranks, data, &Options{Overwrite: true}, func() {
		if _, err := Copy(t.Context(), other, dst, nil); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, storage.ErrExists) {
		t.Errorf("Publish = %v; want ErrExists", err)
	}
	wantSeed(t, dst, 20)
}

// A copy does not replace a newer checkpoint than it has found, in a store that has no
// versions either.
func TestPartsDoNotReplaceAnotherReplacement(t *testing.T) {
	dir := t.TempDir()
	folder := must.Get(file.Open(dir, nil))(t)
	for _, dst := range []blob.Store{new(mem.Store), folder} {
		var srcs []*mem.Store
		for i := range 3 {
			srcs = append(srcs, new(mem.Store))
			save(t, srcs[i], formats.Native, fmt.Sprint("save", i), 64, byte(10*i))
		}
		if _, err := Copy(t.Context(), srcs[0], dst, nil); err != nil {
			t.Fatal(err)
		}
		if dst == folder { // times of files may be coarse
			must.Do(t, os.Chtimes(filepath.Join(dir, "cairn.json"), time.Time{}, time.Now().Add(-time.Hour)))
		}
		ranks, data := divided(t, srcs[1])
		_, err := copyParts(t.Context(), dst, ranks, data, &Options{Overwrite: true}, func() {
			if _, err := Copy(t.Context(), srcs[2], dst, &Options{Overwrite: true}); err != nil {
				t.Error(err)
			}
		})
		if !errors.Is(err, blob.ErrChanged) {
			t.Errorf("%s: Publish = %v; want ErrChanged", dst, err)
		}
		wantSeed(t, dst, 20)
	}
}

// Neither a damaged file nor one that a rank has not copied becomes part of a checkpoint.
func TestPartsCheckFiles(t *testing.T) {
	src := new(mem.Store)
	save(t, src, formats.Native, "save1", 64, 1)
	ranks, data := divided(t, src)
	dst := new(mem.Store)
	_, err := copyParts(t.Context(), dst, ranks, data, nil, func() {
		if err := dst.Remove(t.Context(), data[0].Name); err != nil {
			t.Error(err)
		}
	})
	if !errors.Is(err, blob.ErrChanged) {
		t.Errorf("a file is missing: Publish = %v; want ErrChanged", err)
	}
	r := &ranks[1] // it has the first file
	r.store = fault.New(r.store, fault.Rule{On: fault.Read, Match: func(name string) bool { return name == data[0].Name }, Times: -1, Do: fault.Flip(9)})
	if _, err := copyParts(t.Context(), new(mem.Store), ranks, data, nil, func() {}); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("a file is damaged: Copy = %v; want ErrCorrupt", err)
	}
	if _, err := seedOf(t, dst); err == nil {
		t.Error("the target can be opened")
	}
}
