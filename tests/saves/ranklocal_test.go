package saves

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// localFormats are the formats with metadata of single ranks.
var localFormats = map[string]storage.Format{"torchdcp": torchdcp.Format{}, "hyper": hyper.Format{}, "hyper, old": hyper.Format{Old: true}}

// saveAlone saves rank's part of a state of three ranks without a group: shards, a
// tensor that all hold, a value that all hold, and a value of its own.
func saveAlone(t *testing.T, s blob.Store, f storage.Format, rank int, id string) error {
	t.Helper()
	state := cairn.State{
		"m":    map[string]any{"x": jobtest.Cut(t, jobtest.Rows(3), jobtest.Whole(t, []int64{6, 2}, 1), rank), "all": jobtest.Whole(t, []int64{2}, 5)},
		"step": 7, fmt.Sprint("rng", rank): rank,
	}
	_, err := cairn.Save(t.Context(), s, state, &cairn.SaveOptions{
		Format: f, RankLocal: &cairn.RankLocal{Rank: rank, Size: 3, SaveID: id}, FilesPerRank: 2,
	})
	return err
}

func TestRankLocalSave(t *testing.T) {
	for name, f := range localFormats {
		s := new(mem.Store)
		for i, rank := range []int{2, 0, 1} {
			if _, err := cairn.Open(t.Context(), s); i > 0 && !errors.Is(err, cairn.ErrIncomplete) {
				t.Errorf("%s: Open after %d ranks = %v; want %v", name, i, err, cairn.ErrIncomplete)
			}
			if err := saveAlone(t, s, f, rank, "save-1"); err != nil {
				t.Fatalf("%s: rank %d: %v", name, rank, err)
			}
		}
		got, rep, err := cairn.LoadNew(t.Context(), s, nil)
		if err != nil {
			t.Fatalf("%s: LoadNew = %v", name, err)
		}
		m, _ := got["m"].(map[string]any)
		x, _ := m["x"].(*tensor.Tensor)
		if x == nil || !tensor.Equal(x, jobtest.Whole(t, []int64{6, 2}, 1)) || rep.SaveID != "save-1" ||
			fmt.Sprint(got["step"], got["rng0"], got["rng1"], got["rng2"]) != "7 0 1 2" {
			t.Errorf("%s: loaded %v of save %s", name, got, rep.SaveID)
		}
		c := must.Get(cairn.Open(t.Context(), s))(t)
		if _, err := c.Verify(t.Context(), nil); err != nil || c.Info().WorldSize != 3 {
			t.Errorf("%s: Verify = %v, %d ranks; want 3", name, err, c.Info().WorldSize)
		}
		c.Close()
	}
}

// The highest rank is missed as well, and so are ranks of another save.
func TestRankLocalDifferentSaves(t *testing.T) {
	for name, f := range localFormats {
		s := new(mem.Store)
		for rank := range 2 {
			must.Do(t, saveAlone(t, s, f, rank, "one"))
		}
		if _, err := cairn.Open(t.Context(), s); !errors.Is(err, cairn.ErrIncomplete) || !strings.Contains(err.Error(), "2 of 3 ranks, but not of rank 2") {
			t.Errorf("%s: Open without rank 2 = %v; want %v", name, err, cairn.ErrIncomplete)
		}
		other := new(mem.Store)
		must.Do(t, saveAlone(t, other, f, 2, "two"))
		for _, n := range storagetest.Names(t, other) {
			b := must.Get(blob.ReadAll(t.Context(), other, n, 1<<20))(t)
			storagetest.Put(t, s, n, b)
		}
		if _, err := cairn.Open(t.Context(), s); !errors.Is(err, cairn.ErrIncomplete) || !strings.Contains(err.Error(), `"two"`) {
			t.Errorf("%s: Open with rank 2 of another save = %v; want %v", name, err, cairn.ErrIncomplete)
		}
	}
}

// An error of a rank that saves without a group has the number of that rank.
func TestRankLocalErrorNamesRank(t *testing.T) {
	for name, f := range localFormats {
		s := new(mem.Store)
		must.Do(t, saveAlone(t, s, f, 1, "one"))
		err := saveAlone(t, s, f, 1, "one")
		if !errors.Is(err, cairn.ErrExists) || !strings.Contains(err.Error(), "rank 1:") || strings.Contains(err.Error(), "rank 0") || !slices.Equal(group.Ranks(err), []int{1}) {
			t.Errorf("%s: rank 1 again: %v; want %v of rank 1", name, err, cairn.ErrExists)
		}
		broken := errors.New("broken")
		for n := range deep.Steps[int64]() {
			err := saveAlone(t, fault.New(s, fault.Rule{Nth: n, Do: fault.Fail(broken)}), f, 2, "one")
			if err == nil {
				break
			}
			if strings.Contains(err.Error(), "rank 0") || !slices.Equal(group.Ranks(err), []int{2}) {
				t.Errorf("%s: call %d of rank 2 fails: %v; want rank 2", name, n, err)
			}
		}
	}
}

// The error of an incomplete save names the ranks that are missing.
func TestRankLocalMissingRanks(t *testing.T) {
	for name, f := range localFormats {
		for have, want := range map[int][]int{0: {1, 2}, 1: {0, 2}, 2: {0, 1}} {
			s := new(mem.Store)
			must.Do(t, saveAlone(t, s, f, have, "one"))
			_, err := cairn.Open(t.Context(), s)
			e, ok := errors.AsType[*storage.RanksError](err)
			text := fmt.Sprintf("1 of 3 ranks, but not of ranks %d, %d", want[0], want[1])
			if !ok || !errors.Is(err, cairn.ErrIncomplete) || !slices.Equal(e.Missing, want) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: Open with rank %d = %v; want %q", name, have, err, text)
			}
		}
	}
}

// A rank alone never replaces a checkpoint, nor its own part of one. A failed save leaves
// no files of this rank and all files of the others.
func TestRankLocalReplacesNothing(t *testing.T) {
	for name, f := range localFormats {
		s := new(mem.Store)
		for rank := range 3 {
			must.Do(t, saveAlone(t, s, f, rank, "one"))
		}
		before := fmt.Sprint(storagetest.Names(t, s))
		for rank := range 3 {
			for _, id := range []string{"one", "two"} {
				if err := saveAlone(t, s, f, rank, id); !errors.Is(err, cairn.ErrExists) {
					t.Errorf("%s: rank %d as save %s again: %v; want %v", name, rank, id, err, cairn.ErrExists)
				}
			}
		}
		if after := fmt.Sprint(storagetest.Names(t, s)); after != before {
			t.Errorf("%s: files %s; want %s", name, after, before)
		}
		if _, _, err := cairn.LoadNew(t.Context(), s, nil); err != nil {
			t.Errorf("%s: the checkpoint was harmed: %v", name, err)
		}
		// A save with a group replaces it in one step.
		if _, err := cairn.Save(t.Context(), s, cairn.State{"n": 1}, &cairn.SaveOptions{Format: f}); err != nil {
			t.Errorf("%s: a save with a group: %v", name, err)
		}
		if err := saveAlone(t, s, f, 0, "three"); !errors.Is(err, cairn.ErrExists) {
			t.Errorf("%s: onto a checkpoint of all ranks: %v; want %v", name, err, cairn.ErrExists)
		}
		if got, _, err := cairn.LoadNew(t.Context(), s, nil); err != nil || fmt.Sprint(got) != "map[n:1]" {
			t.Errorf("%s: %v, %v; want the checkpoint of all ranks", name, got, err)
		}
	}
}

func TestRankLocalFailureRemovesOwnFiles(t *testing.T) {
	for name, f := range localFormats {
		s := new(mem.Store)
		must.Do(t, saveAlone(t, s, f, 0, "one"))
		before := fmt.Sprint(storagetest.Names(t, s))
		broken := errors.New("broken")
		for n := range deep.Steps[int64]() {
			faulty := fault.New(s, fault.Rule{Nth: n, Do: fault.Fail(broken)})
			err := saveAlone(t, faulty, f, 1, "one")
			if err == nil {
				if n < 6 {
					t.Errorf("%s: a save has %d operations; the test saw too little", name, n-1)
				}
				break
			}
			if after := fmt.Sprint(storagetest.Names(t, s)); !errors.Is(err, broken) || after != before {
				t.Fatalf("%s: operation %d: %v, files %s; want %s", name, n, err, after, before)
			}
		}
	}
}

func TestRankLocalRefused(t *testing.T) {
	s := new(mem.Store)
	w := must.Get(native.Format{}.NewWriter(s, storage.WriteOptions{}))(t)
	one := &cairn.RankLocal{Size: 1, SaveID: "x"}
	for name, o := range map[string]cairn.SaveOptions{
		"the format native":      {RankLocal: one},
		"the format hf":          {RankLocal: one, Format: hf.Format{}},
		"the format torch":       {RankLocal: one, Format: torchfile.Format{File: "m.pt"}},
		"SaveOptions.Group":      {RankLocal: one, Format: torchdcp.Format{}, Group: inproc.New(1)[0]},
		"SaveOptions.Writer":     {RankLocal: one, Writer: w},
		"SaveOptions.SweepAfter": {RankLocal: one, Format: torchdcp.Format{}, SweepAfter: 1},
		"rank 2 of 2":            {RankLocal: &cairn.RankLocal{Rank: 2, Size: 2, SaveID: "x"}, Format: torchdcp.Format{}},
		"SaveID":                 {RankLocal: &cairn.RankLocal{Size: 1}, Format: torchdcp.Format{}},
	} {
		_, err := cairn.Save(t.Context(), s, cairn.State{"n": 1}, &o)
		if !errors.Is(err, cairn.ErrOptions) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v; want %v", name, err, cairn.ErrOptions)
		}
	}
}
