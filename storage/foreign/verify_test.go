package foreign

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
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
	at := func(file string, off, end int64) Chunk {
		return Chunk{Region: &Region{File: file, Offset: off, End: end, DType: tensor.Uint8}}
	}
	s.tensor("x", tensor.Uint8, []int64{60}, at("a", 0, 60))
	s.sharded("y", tensor.Uint8, []int64{4, 10},
		[]tensor.Box{box([]int64{0, 0}, []int64{2, 10}), box([]int64{2, 0}, []int64{2, 10})}, []Chunk{at("a", 60, 80), at("b", 0, 20)})
	s.tensor("z", tensor.Uint8, []int64{0, 3}, Chunk{})
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
			if err := store.Remove(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
		}, []storage.VerifyProblem{{File: "b", FQNs: []string{"v", "y"}, Text: "the file is gone"}}, 2, 110},
		"a file is longer": {func(_ *scene, store *mem.Store, _ *Source) { put(t, store, "b", noise(51)) },
			[]storage.VerifyProblem{{File: "b", Text: "it has 51 bytes, and had 50 when the checkpoint was opened"}}, 3, 161},
		"a value cannot be decoded": {func(s *scene, _ *mem.Store, _ *Source) { delete(s.values, "v") },
			[]storage.VerifyProblem{{File: "b", FQN: "v", Text: "checkpoint is corrupt: no such value"}}, 3, 160},
		"elements are missing": {func(s *scene, _ *mem.Store, _ *Source) {
			e, _ := s.md.Find("y")
			e.Tensor.Chunks, e.Tensor.Locs = e.Tensor.Chunks[:1], e.Tensor.Locs[:1]
		}, []storage.VerifyProblem{{File: "index", FQN: "y", Text: "volume: the chunks hold 20 of 40 elements"}}, 3, 160},
		"the format finds something": {func(_ *scene, _ *mem.Store, src *Source) {
			src.Check = func(_ context.Context, file string, problem func(fqn, text string), _ func(ChunkID, Chunk)) (int64, error) {
				if file == "a" {
					problem("x", "a record")
				}
				return map[string]int64{"index": 10, "a": 100, "b": 50}[file], nil
			}
		}, []storage.VerifyProblem{{File: "a", FQN: "x", Text: "a record"}}, 3, 160},
	} {
		t.Run(name, func(t *testing.T) {
			s, store := verifiable(t)
			src := s.source()
			ck := Open(store, src)
			c.spoil(s, store, src)
			var told int64
			rep, err := ck.Verify(t.Context(), func(n int64) { told += n })
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, rep.Problems); d != "" {
				t.Errorf("problems: -want +got\n%s", d)
			}
			if rep.Files != c.files || rep.Bytes != c.bytes || rep.Unsummed != c.bytes || told != c.bytes {
				t.Errorf("%+v, %d bytes told of; want %d files and %d bytes, all of them without a checksum", rep, told, c.files, c.bytes)
			}
		})
	}
}

func TestVerifyCountsWhatHasNoChecksum(t *testing.T) {
	s, store := verifiable(t)
	src := s.source()
	src.Check = func(_ context.Context, file string, _ func(fqn, text string), _ func(ChunkID, Chunk)) (int64, error) {
		return map[string]int64{"a": 90}[file], nil
	}
	rep, err := Open(store, src).Verify(t.Context(), nil)
	if err != nil || rep.Unsummed != 90 || rep.Chunks != 5 {
		t.Errorf("Verify = %+v, %v; want 90 bytes without a checksum, 5 chunks", rep, err)
	}
}

func TestVerifyReportsWhatItCouldNotCheck(t *testing.T) {
	s, store := verifiable(t)
	bad := fault.New(store, fault.Rule{On: fault.Read, Do: fault.Fail(errOnPurpose)})
	if _, err := Open(bad, s.source()).Verify(t.Context(), nil); !errors.Is(err, errOnPurpose) {
		t.Errorf("Verify over a store that fails = %v; want its error", err)
	}
	src := s.source()
	src.Check = func(context.Context, string, func(fqn, text string), func(ChunkID, Chunk)) (int64, error) {
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
