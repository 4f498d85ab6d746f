package reading

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// verifiable returns a checkpoint with something of each kind, and its store.
func verifiable(t *testing.T) (*scene, *mem.Store) {
	store := new(mem.Store)
	s := &scene{}
	s.file(t, store, "index", noise(10))
	s.file(t, store, "a", noise(100))
	s.file(t, store, "b", noise(50))
	at := func(file string, off, end int64) Place {
		return Place{Region: &Region{File: file, Offset: off, End: end, DType: tensor.Uint8}}
	}
	s.tensor("x", tensor.Uint8, []int64{60}, at("a", 0, 60))
	s.sharded("y", tensor.Uint8, []int64{4, 10},
		[]tensor.Box{box([]int64{0, 0}, []int64{2, 10}), box([]int64{2, 0}, []int64{2, 10})}, []Place{at("a", 60, 80), at("b", 0, 20)})
	s.tensor("z", tensor.Uint8, []int64{0, 3}, Place{})
	s.value("v", "b", []byte("v"))
	return s, store
}

func TestVerify(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *scene, store *mem.Store, src *Source)
		want  []storage.VerifyProblem
		files int
		bytes int64
	}{
		"all is well": {func(*scene, *mem.Store, *Source) {}, []storage.VerifyProblem{}, 3, 160},
		"a file is gone": {func(_ *scene, store *mem.Store, _ *Source) {
			must.Do(t, store.Remove(t.Context(), "b"))
		}, []storage.VerifyProblem{{File: "b", FQNs: []string{"v", "y"}, Text: "the file is gone"}}, 2, 110},
		"a file is longer": {func(_ *scene, store *mem.Store, _ *Source) { put(t, store, "b", noise(51)) },
			[]storage.VerifyProblem{{File: "b", Text: "it has 51 bytes, but had 50 when the checkpoint was opened"}}, 3, 161},
		"a value cannot be decoded": {func(s *scene, _ *mem.Store, _ *Source) { delete(s.values, "v") },
			[]storage.VerifyProblem{{File: "b", FQN: "v", Text: "checkpoint is corrupt: no such value"}}, 3, 160},
		"elements are missing": {func(s *scene, _ *mem.Store, _ *Source) {
			e, _ := s.md.Find("y")
			e.Tensor.Chunks, e.Tensor.Locs = e.Tensor.Chunks[:1], e.Tensor.Locs[:1]
		}, []storage.VerifyProblem{{File: "index", FQN: "y", Text: "volume: the chunks hold 20 of 40 elements"}}, 3, 160},
		"the format finds something": {func(_ *scene, _ *mem.Store, src *Source) {
			src.Check = func(ctx context.Context, f *FileCheck) (int64, error) {
				if f.File.Name == "a" {
					f.Problem("x", "a record")
				}
				return map[string]int64{"index": 10, "a": 100, "b": 50}[f.File.Name], f.Scan(ctx, nil)
			}
		}, []storage.VerifyProblem{{File: "a", FQN: "x", Text: "a record"}}, 3, 160},
		"problems are sorted": {func(_ *scene, _ *mem.Store, src *Source) {
			src.Check = func(ctx context.Context, f *FileCheck) (int64, error) {
				if f.File.Name != "index" {
					for _, text := range []string{"shape", "bytes"} {
						f.Problem("x", text)
						f.Problem("", text)
					}
				}
				err := f.Scan(ctx, nil)
				return f.Size, err
			}
		}, []storage.VerifyProblem{
			{File: "a", Text: "bytes"}, {File: "a", Text: "shape"}, {File: "a", FQN: "x", Text: "bytes"}, {File: "a", FQN: "x", Text: "shape"},
			{File: "b", Text: "bytes"}, {File: "b", Text: "shape"}, {File: "b", FQN: "x", Text: "bytes"}, {File: "b", FQN: "x", Text: "shape"},
		}, 3, 160},
		"a file that is gone has one problem": {func(_ *scene, store *mem.Store, src *Source) {
			src.Check = func(ctx context.Context, f *FileCheck) (int64, error) {
				if f.File.Name == "b" {
					f.Problem("y", "no such file")
					return 0, errors.Join(store.Remove(ctx, "b"), f.Scan(ctx, nil))
				}
				err := f.Scan(ctx, nil)
				return f.Size, err
			}
		}, []storage.VerifyProblem{{File: "b", FQNs: []string{"v", "y"}, Text: "the file is gone"}}, 2, 110},
	} {
		t.Run(name, func(t *testing.T) {
			s, store := verifiable(t)
			src := s.source()
			ck := Open(store, src)
			c.spoil(s, store, src)
			var told int64
			rep := must.Get(ck.Verify(t.Context(), func(n int64) { told += n }))(t)
			if d := cmp.Diff(c.want, rep.Problems); d != "" {
				t.Errorf("problems: -want +got\n%s", d)
			}
			if rep.Files != c.files || rep.Bytes != c.bytes || rep.Unsummed != c.bytes || told != c.bytes {
				t.Errorf("%+v, progress of %d bytes; want %d files and %d bytes, all of them without a checksum", rep, told, c.files, c.bytes)
			}
		})
	}
}

func TestVerifyCountsBytesWithoutChecksum(t *testing.T) {
	s, store := verifiable(t)
	src := s.source()
	src.Check = func(ctx context.Context, f *FileCheck) (int64, error) {
		return map[string]int64{"a": 90}[f.File.Name], f.Scan(ctx, nil)
	}
	rep, err := Open(store, src).Verify(t.Context(), nil)
	if err != nil || rep.Unsummed != 90 || rep.Chunks != 5 {
		t.Errorf("Verify = %+v, %v; want 90 bytes without a checksum, 5 chunks", rep, err)
	}
}

func TestVerifyReturnsErrorsOfTheStore(t *testing.T) {
	s, store := verifiable(t)
	bad := fault.New(store, fault.Rule{On: fault.Read, Do: fault.Fail(errOnPurpose)})
	if _, err := Open(bad, s.source()).Verify(t.Context(), nil); !errors.Is(err, errOnPurpose) {
		t.Errorf("Verify over a store that fails = %v; want its error", err)
	}
	src := s.source()
	src.Check = func(context.Context, *FileCheck) (int64, error) {
		return 0, errOnPurpose
	}
	if _, err := Open(store, src).Verify(t.Context(), nil); !errors.Is(err, errOnPurpose) {
		t.Errorf("Verify with a check that fails = %v; want its error", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errOnPurpose)
	if _, err := Open(store, s.source()).Verify(ctx, nil); !errors.Is(err, errOnPurpose) {
		t.Errorf("Verify of a finished context = %v; want its cause", err)
	}
}

func TestScanShowsEveryByteInOrder(t *testing.T) {
	s := new(mem.Store)
	want := make([]byte, 20<<20)
	for i := range want {
		want[i] = byte(i >> 12)
	}
	must.Get(blob.WriteAll(t.Context(), s, "f", want, nil))(t)
	var got []byte
	size, err := Scan(t.Context(), s, "f", func(p []byte, at int64) {
		if at != int64(len(got)) {
			t.Errorf("bytes at %d after %d", at, len(got))
		}
		got = append(got, p...)
	})
	if err != nil || size != int64(len(want)) || !bytes.Equal(got, want) {
		t.Errorf("Scan saw %d bytes of %d, %v", len(got), size, err)
	}
	if _, err := Scan(t.Context(), s, "none", func([]byte, int64) {}); err == nil {
		t.Error("a file that is not there was scanned")
	}
}

// A piece that cannot be read ends the scan, and later pieces are not visited.
func TestScanStopsAtAnError(t *testing.T) {
	s := new(mem.Store)
	must.Get(blob.WriteAll(t.Context(), s, "f", make([]byte, 40<<20), nil))(t)
	broken := errors.New("broken")
	for nth := int64(1); nth <= 5; nth++ {
		var seen int64
		f := fault.New(s, fault.Rule{On: fault.Read, Nth: nth, Do: fault.Fail(broken)})
		_, err := Scan(t.Context(), f, "f", func(p []byte, at int64) {
			if at != seen {
				t.Errorf("bytes at %d after %d", at, seen)
			}
			seen += int64(len(p))
		})
		if !errors.Is(err, broken) || seen == 40<<20 {
			t.Errorf("Scan = %v after %d bytes; want the error", err, seen)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := Scan(ctx, s, "f", func([]byte, int64) { cancel(broken) })
	if !errors.Is(err, broken) {
		t.Errorf("Scan = %v; want the cause of its context", err)
	}
}
