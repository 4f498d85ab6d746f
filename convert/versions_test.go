package convert_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/slime"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// chain is a chain of versions that slime published.
const chain = "../testdata/slime/xor-xxh3-rebase"

// version opens a version of the chain.
func version(t testing.TB, n int64, published string) storage.Checkpoint {
	t.Helper()
	s := must.Get(file.Open(filepath.Join(published, slime.Folder(n)), nil))(t)
	c := must.Get(slime.Format{Base: filepath.Join(chain, "base")}.Open(t.Context(), s))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

func digestsOf(t testing.TB, c storage.Checkpoint) map[string]inspect.Digest {
	t.Helper()
	md := must.Get(c.Metadata(t.Context()))(t)
	return must.Get(inspect.Digests(t.Context(), cairn.NewCheckpoint(new(mem.Store), c), inspect.Select(md), nil))(t)
}

// A receiver that dies at any operation leaves no half of a version: started again, it
// finishes the version, equal to the last bit. The published files never change.
func TestReceiveCrashes(t *testing.T) {
	published := filepath.Join(chain, "published")
	want := digestsOf(t, version(t, 3, published))
	o := &convert.Options{Parallel: 1, Merge: true}
	to := func(s blob.Store) *convert.Target {
		return &convert.Target{Format: formats.HF, Staging: s, NewWriter: func(n int64) (storage.Writer, error) {
			return hf.Format{Shards: 3}.NewWriter(s, storage.WriteOptions{BufferBytes: n, FilesPerRank: 1})
		}}
	}
	for claim, rule := range map[string]func(int64) fault.Rule{"before it": fault.CrashAt, "after it": fault.CrashLateAt} {
		t.Run(claim, func(t *testing.T) {
			for n := range deep.Steps[int64]() {
				inner := &mem.Store{Name: "target"}
				first := fault.New(inner, rule(n))
				if _, err := run(context.Background(), version(t, 3, published), o, to(first)); err == nil {
					if n < 5 {
						t.Errorf("the test saw %d operations", n)
					}
					return
				}
				if _, err := run(context.Background(), version(t, 3, published), o, to(inner)); err != nil {
					t.Fatalf("operation %d: the second run: %v", n, err)
				}
				c := must.Get(hf.Format{}.Open(t.Context(), inner))(t)
				if d := cmp.Diff(want, digestsOf(t, c)); d != "" {
					t.Errorf("operation %d: the content differs: -source +target\n%s", n, d)
				}
				must.Do(t, c.Close())
			}
		})
	}
}

// A conversion into a delta version that dies at any operation finishes when it is started
// again, and then has no other files.
func TestPublishCrashes(t *testing.T) {
	published := t.TempDir()
	storagetest.CopyFolder(t, filepath.Join(chain, "published"), published)
	must.Do(t, os.RemoveAll(filepath.Join(published, slime.Folder(8))))
	src := version(t, 8, filepath.Join(chain, "published"))
	want := digestsOf(t, src)
	folder := filepath.Join(published, slime.Folder(8))
	to := func(s blob.Store) *convert.Target {
		return &convert.Target{Format: formats.Slime, Direct: s, NewWriter: func(n int64) (storage.Writer, error) {
			return slime.Format{Checksum: slime.BLAKE3}.NewWriter(s, storage.WriteOptions{BufferBytes: n, Others: formats.CheckOthers})
		}}
	}
	o := &convert.Options{Parallel: 1, Merge: true}
	for n := range deep.Steps[int64]() {
		must.Do(t, os.RemoveAll(folder))
		inner := must.Get(file.Open(folder, &file.Options{NoSync: true}))(t)
		if _, err := run(context.Background(), src, o, to(fault.New(inner, fault.CrashAt(n)))); err == nil {
			if n < 5 {
				t.Errorf("the test saw %d operations", n)
			}
			return
		}
		if _, err := run(context.Background(), src, o, to(inner)); err != nil {
			t.Fatalf("operation %d: the second run: %v", n, err)
		}
		c := version(t, 8, published)
		if d := cmp.Diff(want, digestsOf(t, c)); d != "" {
			t.Errorf("operation %d: the content differs: -source +target\n%s", n, d)
		}
		if names := storagetest.Names(t, inner); len(names) != 2 {
			t.Errorf("operation %d: there are %q; want one data file and the index", n, names)
		}
	}
}
