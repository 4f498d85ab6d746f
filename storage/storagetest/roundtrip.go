package storagetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

func (s *suite) allKinds(t *testing.T, p Place) {
	want := s.sample(t, 1)
	if err := Save(t.Context(), p, Storage("all-kinds", 1, 1), want); err != nil {
		t.Fatalf("Save = %v", err)
	}
	got := blankState(t, want)
	if err := Load(t.Context(), p, got); err != nil {
		t.Fatalf("Load = %v", err)
	}
	checkState(t, want, got)
}

// layouts are ways to cut a matrix over three ranks.
func (s *suite) layouts() map[string]shard.Layout {
	out := map[string]shard.Layout{
		"rows": Along(0, 3), "columns": Along(1, 3),
		"replicated": shard.Placed{Mesh: shard.Mesh{Shape: []int{3}}, Placements: []shard.Placement{shard.Replicate()}},
		"one":        shard.Boxes(map[int]tensor.Box{1: tensor.Whole([]int64{7, 5})}),
	}
	if !s.OneChunk {
		out["flat"] = shard.FlatEven(3) // a rank has up to three boxes
	}
	return out
}

// shards saves a matrix by each layout and loads it by each other one.
func (s *suite) shards(t *testing.T, p Place) {
	x := Filled(t, s.DTypes[0], []int64{7, 5}, 1)
	if s.OneRank {
		s.refusesParts(t, p, x)
		return
	}
	saved := make([]plan.State, 3)
	for r := range saved {
		saved[r] = plan.State{}
		for name, l := range s.layouts() {
			saved[r][name] = Cut(t, l, x, r)
		}
	}
	if err := Save(t.Context(), p, Storage("shards", 1, 3), saved...); err != nil {
		t.Fatalf("Save = %v", err)
	}
	for to, l := range s.layouts() {
		loaded := make([]plan.State, 3)
		for r := range loaded {
			loaded[r] = plan.State{}
			for from := range s.layouts() {
				loaded[r][from] = emptyShare(t, l, x, r)
			}
		}
		if err := Load(t.Context(), p, loaded...); err != nil {
			t.Fatalf("Load by %s = %v", to, err)
		}
		for r := range loaded {
			for from := range s.layouts() {
				if got := loaded[r][from].(*shard.Tensor); !tensor.Equal(got.Local(), Cut(t, l, x, r).Local()) {
					t.Errorf("rank %d: saved by %s, loaded by %s: other elements", r, from, to)
				}
			}
		}
	}
}

// copies saves tensors that two ranks hold, from both ranks.
func (s *suite) copies(t *testing.T, p Place) {
	x := Filled(t, s.DTypes[0], []int64{6, 5}, 1)
	states := make([]plan.State, 2)
	for r := range states {
		states[r] = plan.State{"whole": x, "half": Cut(t, Along(0, 2), x, r), "both": Cut(t, shard.Placed{
			Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Replicate()},
		}, x, r)}
		if !s.NoValues {
			states[r]["value"] = "the same"
		}
	}
	sv := NewSaving(p, Storage("copies", 1, 2), 2)
	for i := range sv.Planners {
		sv.Planners[i] = &plan.DefaultSave{Owner: plan.EveryHolder}
	}
	err := sv.Run(t.Context(), states)
	if errors.Is(err, storage.ErrNotRepresentable) {
		s.emptyPlace(t, p)
		return
	}
	if err != nil {
		t.Fatalf("Save = %v", err)
	}
	got := plan.State{"whole": Filled(t, x.DType(), x.Shape(), 9), "half": Filled(t, x.DType(), x.Shape(), 9), "both": Filled(t, x.DType(), x.Shape(), 9)}
	if !s.NoValues {
		got["value"] = ""
	}
	if err := Load(t.Context(), p, got); err != nil {
		t.Fatalf("Load = %v", err)
	}
	for _, name := range []string{"whole", "half", "both"} {
		if !tensor.Equal(got[name].(*tensor.Tensor), x) {
			t.Errorf("%q has other elements", name)
		}
	}
	if !s.NoValues && got["value"] != "the same" {
		t.Errorf("the value is %v", got["value"])
	}
}

// refusesParts saves parts of tensors, and whole ones of a rank that does not
// write.
func (s *suite) refusesParts(t *testing.T, p Place, x *tensor.Tensor) {
	for name, states := range map[string][]plan.State{
		"parts":        {{"x": Cut(t, Along(0, 2), x, 0)}, {"x": Cut(t, Along(0, 2), x, 1)}},
		"another rank": {{}, {"x": x}},
	} {
		if err := Save(t.Context(), p, Storage(name, 1, 2), states...); !errors.Is(err, storage.ErrNotRepresentable) {
			t.Errorf("%s: Save = %v; want %v", name, err, storage.ErrNotRepresentable)
		}
		s.emptyPlace(t, p)
	}
}

func emptyShare(t testing.TB, l shard.Layout, x *tensor.Tensor, rank int) *shard.Tensor {
	t.Helper()
	s, err := shard.Empty(l, x.DType(), x.Shape(), rank)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// boxes loads parts of large tensors into memory of other layouts and types.
func (s *suite) boxes(t *testing.T, p Place) {
	d := s.DTypes[0]
	x := Filled(t, d, []int64{40, 3, 1100}, 3)
	states := []plan.State{{"x": Cut(t, Along(0, 2), x, 0)}, {"x": Cut(t, Along(0, 2), x, 1)}}
	if s.OneRank {
		states = []plan.State{{"x": x}}
	}
	err := Save(t.Context(), p, Storage("boxes", 1, len(states)), states...)
	if err != nil {
		t.Fatalf("Save = %v", err)
	}
	for _, b := range []tensor.Box{
		tensor.Whole(x.Shape()),
		{Offsets: []int64{19, 0, 0}, Sizes: []int64{2, 3, 1100}},
		{Offsets: []int64{0, 1, 0}, Sizes: []int64{40, 1, 1100}},
		{Offsets: []int64{3, 0, 1099}, Sizes: []int64{30, 3, 1}},
		{Offsets: []int64{39, 2, 550}, Sizes: []int64{1, 1, 1}},
		{Offsets: []int64{5, 1, 7}, Sizes: []int64{0, 1, 9}},
	} {
		for _, to := range []tensor.DType{d, tensor.Float64} {
			s.oneBox(t, p, x, b, to)
		}
	}
}

func (s *suite) oneBox(t *testing.T, p Place, x *tensor.Tensor, b tensor.Box, to tensor.DType) {
	t.Helper()
	flipped := slices.Clone(b.Sizes)
	slices.Reverse(flipped)
	dst := must(t)(must(t)(tensor.New(to, flipped)).Transpose(0, 2))
	want := must(t)(tensor.New(to, b.Sizes))
	if err := tensor.Convert(want, must(t)(x.Narrow(b)), tensor.CastAny); err != nil {
		t.Fatal(err)
	}
	part, err := shard.New(shard.Boxes(map[int]tensor.Box{0: b}), x.Shape(), 0, dst)
	if err != nil {
		t.Fatal(err)
	}
	if err := Load(t.Context(), p, plan.State{"x": part}); err != nil {
		t.Fatalf("Load %v as %v = %v", b, to, err)
	}
	if !tensor.Equal(dst, want) {
		t.Errorf("Load %v as %v: other elements", b, to)
	}
}

// metadata compares what is read with what was planned.
func (s *suite) metadata(t *testing.T, p Place) {
	x := Filled(t, s.DTypes[0], []int64{6, 4}, 1)
	states := []plan.State{
		{"m": map[string]any{"x": Cut(t, Along(0, 2), x, 0), "l": []any{Filled(t, s.DTypes[0], nil, 1)}}},
		{"m": map[string]any{"x": Cut(t, Along(0, 2), x, 1)}},
	}
	if s.OneRank {
		states = []plan.State{{"m": map[string]any{"x": x, "l": []any{Filled(t, s.DTypes[0], nil, 1)}}}}
	}
	ranks := len(states)
	if !s.NoValues {
		states[ranks-1]["step"] = int64(7)
	}
	sv := NewSaving(p, Storage("metadata", 42, ranks), ranks)
	if err := sv.Plan(t.Context(), states); err != nil {
		t.Fatalf("Plan = %v", err)
	}
	planned := *sv.Metadata
	planned.PlannerData = json.RawMessage(`{"rng":[1,2.5,"☃"]}`)
	sv.Metadata = &planned
	if err := sv.Write(t.Context()); err != nil {
		t.Fatalf("Write = %v", err)
	}
	err := sv.Finish(t.Context())
	if errors.Is(err, storage.ErrNotRepresentable) { // the format has no place for planner data
		s.checkRefused(t, p, sv)
		planned.PlannerData = nil
		err = sv.Run(t.Context(), states)
	}
	if err != nil {
		t.Fatalf("Finish = %v", err)
	}
	got, err := p.Reader().ReadMetadata(t.Context())
	if err != nil {
		t.Fatalf("ReadMetadata = %v", err)
	}
	s.checkMetadata(t, sv, &planned, got)
}

// checkRefused checks that a writer that refuses metadata in Finish also refuses
// it before anything is written, and leaves nothing behind.
func (s *suite) checkRefused(t *testing.T, p Place, sv *Saving) {
	t.Helper()
	c, ok := sv.Writers[0].(storage.MetadataChecker)
	if !ok {
		t.Fatal("Finish refuses planner data, and the writer is no storage.MetadataChecker")
	}
	if err := c.CheckMetadata(sv.Metadata); !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), "planner data") {
		t.Errorf("CheckMetadata = %v; want %v about the planner data", err, storage.ErrNotRepresentable)
	}
	if err := sv.Abort(t.Context()); err != nil {
		t.Errorf("Abort = %v", err)
	}
	s.emptyPlace(t, p)
}

func (s *suite) checkMetadata(t *testing.T, sv *Saving, want, got *meta.Metadata) {
	t.Helper()
	if diff := cmp.Diff(s.plain(want), s.plain(got)); diff != "" {
		t.Errorf("entries (-planned +read):\n%s", diff)
	}
	if string(got.PlannerData) != string(want.PlannerData) {
		t.Errorf("planner data = %s; want %s", got.PlannerData, want.PlannerData)
	}
	st, have := sv.Storage, got.Storage
	have.ID, have.Version = "", ""
	if diff := cmp.Diff(st, have); diff != "" && !s.NoStorage {
		t.Errorf("storage (-saved +read):\n%s", diff)
	}
	for i := range got.Entries {
		e := &got.Entries[i]
		if e.Tensor != nil && len(e.Tensor.Locs) != len(e.Tensor.Chunks) {
			t.Errorf("%q has %d locations for %d chunks", e.FQN, len(e.Tensor.Locs), len(e.Tensor.Chunks))
		}
	}
}

// plain returns the entries as text, without what only the format knows.
func (s *suite) plain(md *meta.Metadata) []string {
	var out []string
	for i := range md.Entries {
		e := &md.Entries[i]
		line := fmt.Sprintf("%q", e.FQN)
		if !s.NoPaths {
			line += fmt.Sprintf(" at %v", []meta.Step(e.Path))
		}
		switch {
		case e.Tensor != nil:
			line += fmt.Sprintf(": %+v %v in %v", e.Tensor.Properties, e.Tensor.Shape, e.Tensor.Chunks)
		case s.OwnCodecs:
			line += ": a value"
		default:
			line += fmt.Sprintf(": %s, %d bytes", e.Bytes.Codec, e.Bytes.Size)
		}
		out = append(out, line)
	}
	return out
}

// nothing saves states without any values.
func (s *suite) nothing(t *testing.T, p Place) {
	if err := Save(t.Context(), p, Storage("nothing", 3, 2), plan.State{}, plan.State{}); err != nil {
		t.Fatalf("Save = %v", err)
	}
	if err := Load(t.Context(), p, plan.State{}); err != nil {
		t.Fatalf("Load = %v", err)
	}
	md, err := p.Reader().ReadMetadata(t.Context())
	if err != nil || len(md.Entries) != 0 || !s.NoStorage && (md.Storage.Step == nil || *md.Storage.Step != 3) {
		t.Errorf("ReadMetadata = %+v, %v; want no entries, step 3", md, err)
	}
}

func (s *suite) idleRank(t *testing.T, p Place) {
	want := s.small(t, 1)
	states := []plan.State{{}, want, {}}
	if s.OneRank {
		states = []plan.State{want, {}, {}}
	}
	if err := Save(t.Context(), p, Storage("idle", 1, 3), states...); err != nil {
		t.Fatalf("Save = %v", err)
	}
	got := blankState(t, want)
	if err := Load(t.Context(), p, plan.State{}, plan.State{}, got); err != nil {
		t.Fatalf("Load = %v", err)
	}
	checkState(t, want, got)
}
