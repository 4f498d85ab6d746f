// Package storagetest tests that a format keeps the contracts of storage.Writer and
// storage.Reader, also if operations of the store fail or a process dies. It does
// not know any format or group: the ranks of a test are a loop. The contracts are in
// package storage.
package storagetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Place is one place for a checkpoint.
type Place struct {
	// Writer and Reader return a new writer and reader of one rank.
	Writer func() storage.Writer
	Reader func() storage.Reader
}

// OpenFunc returns an empty place. It cleans up by t.Cleanup.
type OpenFunc func(t *testing.T) Place

// Options describe the limits of a format. Nil is the same as the zero value: the format can
// do everything.
type Options struct {
	// DTypes are the element types that the format holds. Nil: all.
	DTypes []tensor.DType
	// NoValues is for formats that hold tensors only.
	NoValues bool
	// NoPaths is for formats that do not keep the paths of values in a nested state.
	NoPaths bool
	// Reserved are names that the format keeps for itself.
	Reserved []string
	// NoStorage is for formats that do not keep the description of a save: its id, step, time
	// and tags.
	NoStorage bool
	// OneRank is for formats that hold whole tensors of the coordinator only:
	// anything else is refused with storage.ErrNotRepresentable.
	OneRank bool
	// OwnCodecs is for formats that encode values in their own way: the metadata
	// has the codec and size of that encoding.
	OwnCodecs bool
	// OneChunk is for formats in which a rank holds at most one chunk of a name.
	OneChunk bool
}

func (o *Options) withDefaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	if v.DTypes == nil {
		v.DTypes = tensor.DTypes()
	}
	return v
}

// Run tests that the writers and readers of a format keep the contracts.
func Run(t *testing.T, open OpenFunc, opts *Options) {
	s := &suite{opts.withDefaults()}
	for name, test := range map[string]func(*testing.T, Place){
		"all kinds come back":                     s.allKinds,
		"shards come back whole":                  s.shards,
		"copies come back, or are refused":        s.copies,
		"boxes come back in any memory":           s.boxes,
		"streams come back":                       s.streams,
		"numbers out of range are refused":        s.outOfRange,
		"metadata comes back":                     s.metadata,
		"nothing is an empty checkpoint":          s.nothing,
		"a rank may have nothing to do":           s.idleRank,
		"an empty place holds no checkpoint":      s.emptyPlace,
		"nothing appears before Finish":           s.beforeFinish,
		"Abort leaves nothing":                    s.abort,
		"Abort after Finish keeps it":             s.abortAfterFinish,
		"a new checkpoint replaces the old":       s.replace,
		"saves at once do not disturb each other": s.atOnce,
		"writers and readers serve again":         s.again,
		"plans stay as they were":                 s.plansStay,
		"Finish refuses results that do not fit":  s.badResults,
		"Resolve's errors end the save":           s.badResolver,
		"content that changed is refused":         s.changedContent,
		"every item is handed over once":          s.handedOver,
		"a long box is handed over once":          s.handedOverInParts,
		"a receiver's errors end the load":        s.badReceiver,
		"items that do not fit are refused":       s.badItems,
		"a finished context ends every step":      s.cancelled,
		"progress sums up to the plan":            s.progress,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

type suite struct{ Options }

func (s *suite) allKinds(t *testing.T, p Place) {
	want := s.sample(t, 1)
	must.Do(t, Save(t.Context(), p, Storage("all-kinds", 1, 1), want))
	got := blankState(t, want)
	must.Do(t, Load(t.Context(), p, got))
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

	must.Do(t, Save(t.Context(), p, Storage("shards", 1, 3), saved...))
	for to, l := range s.layouts() {
		loaded := make([]plan.State, 3)
		for r := range loaded {
			loaded[r] = plan.State{}
			for from := range s.layouts() {
				loaded[r][from] = must.Get(shard.Empty(l, x.DType(), x.Shape(), r))(t)
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
	must.Do(t, Load(t.Context(), p, got))

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

	dst := must.Get(must.Get(tensor.New(to, flipped))(t).Transpose(0, 2))(t)
	want := must.Get(tensor.New(to, b.Sizes))(t)
	must.Do(t, tensor.Convert(want, must.Get(x.Narrow(b))(t), tensor.CastAny))

	part := must.Get(shard.New(shard.Boxes(map[int]tensor.Box{0: b}), x.Shape(), 0, dst))(t)
	if err := Load(t.Context(), p, plan.State{"x": part}); err != nil {
		t.Fatalf("Load %v as %v = %v", b, to, err)
	}
	if !tensor.Equal(dst, want) {
		t.Errorf("Load %v as %v: other elements", b, to)
	}
}

// streams saves tensors with elements that are converted while the writer reads them.
func (s *suite) streams(t *testing.T, p Place) {
	x := Filled(t, tensor.Int16, []int64{300, 170}, 3) // more elements than are converted at once
	state := plan.State{"x": x, "turned": must.Get(x.Transpose(0, 1))(t), "none": Filled(t, tensor.Int16, []int64{0, 3}, 1)}
	to := s.DTypes[0]
	sv := NewSaving(p, Storage("streams", 1, 1), 1)
	sv.Planners[0] = &plan.DefaultSave{DType: func(string, tensor.DType) tensor.DType { return to }}
	must.Do(t, sv.Run(t.Context(), []plan.State{state}))

	for name, v := range state {
		want := must.Get(tensor.Cast(v.(*tensor.Tensor), to))(t)
		got := must.Get(tensor.New(to, want.Shape()))(t)
		must.Do(t, Load(t.Context(), p, plan.State{name: got}))
		if !tensor.Equal(want, got) {
			t.Errorf("%q has other elements", name)
		}
	}
}

// outOfRange loads integers into a type that cannot hold all of them.
func (s *suite) outOfRange(t *testing.T, p Place) {
	if !slices.Contains(s.DTypes, tensor.Int64) {
		t.Skip("the format has no int64")
	}
	x := must.Get(tensor.Of([]int64{2, 3}, []int64{1, 2, 3, 4, 300, 6}))(t)
	must.Do(t, Save(t.Context(), p, Storage("out-of-range", 1, 1), plan.State{"n": x}))

	got := must.Get(tensor.New(tensor.Int8, x.Shape()))(t)
	err := Load(t.Context(), p, plan.State{"n": got})
	if !errors.Is(err, tensor.ErrCast) || !strings.Contains(err.Error(), `"n"`) || !strings.Contains(err.Error(), "300") {
		t.Errorf("Load of 300 as int8 = %v; want %v with the name and the number", err, tensor.ErrCast)
	}

	must.Do(t, Load(t.Context(), p, plan.State{"n": got.Lossy()}))
	if want := must.Get(tensor.Of([]int64{2, 3}, []int8{1, 2, 3, 4, 44, 6}))(t); !tensor.Equal(got, want) {
		t.Errorf("Load into a lossy tensor: %x; want %x", got.Contents(), want.Contents())
	}
}

// metadata compares the metadata that was read with the planned metadata.
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
	must.Do(t, sv.Plan(t.Context(), states))

	planned := *sv.Metadata
	planned.PlannerData = json.RawMessage(`{"rng":[1,2.5,"☃"]}`)
	sv.Metadata = &planned
	must.Do(t, sv.Write(t.Context()))

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
	must.Do(t, err)
	s.checkMetadata(t, sv, &planned, got)
}

// checkRefused checks that a writer that refuses metadata in Finish also refuses it before
// the first write, and leaves no file behind.
func (s *suite) checkRefused(t *testing.T, p Place, sv *Saving) {
	t.Helper()
	c, ok := sv.Writers[0].(storage.MetadataChecker)
	if !ok {
		t.Fatal("Finish refuses planner data, and the writer is no storage.MetadataChecker")
	}
	if err := c.CheckMetadata(sv.Metadata); !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), "planner data") {
		t.Errorf("CheckMetadata = %v; want %v about the planner data", err, storage.ErrNotRepresentable)
	}
	must.Do(t, sv.Abort(t.Context()))
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

// plain returns the entries as text, without the parts that depend on the format.
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
	must.Do(t, Save(t.Context(), p, Storage("nothing", 3, 2), plan.State{}, plan.State{}))
	must.Do(t, Load(t.Context(), p, plan.State{}))
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
	must.Do(t, Save(t.Context(), p, Storage("idle", 1, 3), states...))
	got := blankState(t, want)
	must.Do(t, Load(t.Context(), p, plan.State{}, plan.State{}, got))
	checkState(t, want, got)
}

// checkNone fails unless p holds no checkpoint.
func checkNone(t *testing.T, p Place, when string) {
	t.Helper()
	_, err := p.Reader().ReadMetadata(t.Context())
	if !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrIncomplete) {
		t.Errorf("%s: ReadMetadata = %v; want %v or %v", when, err, storage.ErrNotFound, storage.ErrIncomplete)
	}
}

// checkHolds fails unless p holds the checkpoint of that state.
func checkHolds(t *testing.T, p Place, want plan.State, when string) {
	t.Helper()
	got := blankState(t, want)
	if err := Load(t.Context(), p, got); err != nil {
		t.Errorf("%s: Load = %v", when, err)
		return
	}
	checkState(t, want, got)
}

func (s *suite) emptyPlace(t *testing.T, p Place) {
	if _, err := p.Reader().ReadMetadata(t.Context()); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("ReadMetadata = %v; want %v", err, storage.ErrNotFound)
	}
}

func (s *suite) beforeFinish(t *testing.T, p Place) {
	old, young := s.small(t, 1), s.small(t, 2)
	sv := NewSaving(p, Storage("first", 1, 1), 1)
	must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{old}), sv.Write(t.Context())))
	checkNone(t, p, "before the first Finish")
	must.Do(t, sv.Finish(t.Context()))
	checkHolds(t, p, old, "after the first Finish")
	sv = NewSaving(p, Storage("second", 2, 1), 1)
	must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{young}), sv.Write(t.Context())))
	checkHolds(t, p, old, "before the second Finish")
	must.Do(t, sv.Finish(t.Context()))
	checkHolds(t, p, young, "after the second Finish")
}

func (s *suite) abort(t *testing.T, p Place) {
	old, young := s.small(t, 1), s.small(t, 2)
	sv := NewSaving(p, Storage("first", 1, 2), 2)
	states := []plan.State{old, {}}
	must.Do(t, sv.Plan(t.Context(), states))
	must.Do(t, sv.Abort(t.Context()))
	must.Do(t, errors.Join(sv.Plan(t.Context(), states), sv.Write(t.Context())))

	for range 2 {
		must.Do(t, sv.Abort(t.Context()))
	}

	s.emptyPlace(t, p) // not even the beginnings
	must.Do(t, Save(t.Context(), p, Storage("second", 2, 1), old))
	sv = NewSaving(p, Storage("third", 3, 1), 1)
	must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{young}), sv.Write(t.Context()), sv.Abort(t.Context())))
	checkHolds(t, p, old, "after the Abort of another save")
}

func (s *suite) abortAfterFinish(t *testing.T, p Place) {
	want := s.small(t, 1)
	sv := NewSaving(p, Storage("only", 1, 1), 1)
	must.Do(t, sv.Run(t.Context(), []plan.State{want}))
	must.Do(t, sv.Writers[0].Abort(t.Context()))
	checkHolds(t, p, want, "after Finish and Abort")
}

func (s *suite) replace(t *testing.T, p Place) {
	old, young := s.small(t, 1), s.small(t, 2)
	old["gone"] = Filled(t, s.DTypes[0], []int64{9}, 9)
	young["new"] = Filled(t, s.DTypes[0], []int64{8}, 8)

	for i, state := range []plan.State{old, young} {
		id := []string{"first", "second"}[i]
		if err := Save(t.Context(), p, Storage(id, int64(i), 1), state); err != nil {
			t.Fatalf("Save %s = %v", id, err)
		}
		checkHolds(t, p, state, "after "+id)
	}

	md, err := p.Reader().ReadMetadata(t.Context())
	must.Do(t, err)
	if _, ok := md.Find("gone"); ok || md.Storage.SaveID != "second" && !s.NoStorage {
		t.Errorf("metadata of save %s has %q; want only the second save's names", md.Storage.SaveID, md.Names())
	}
}

// atOnce runs two saves to an empty place, step by step at once. The one that fails, before
// or after the commit of the other, leaves the files of the other.
func (s *suite) atOnce(t *testing.T, p Place) {
	want := s.small(t, 2)
	for i, id := range []string{"one", "two"} {
		var saves []*Saving
		for _, name := range []string{id + "-fails", id + "-wins"} {
			sv := NewSaving(p, Storage(name, int64(i), 2), 2)
			states := []plan.State{s.small(t, byte(len(saves)+1)), {}}
			must.Do(t, sv.Plan(t.Context(), states))
			saves = append(saves, sv)
		}

		for _, sv := range saves {
			must.Do(t, sv.Write(t.Context()))
		}

		steps := []func(context.Context) error{saves[0].Abort, saves[1].Finish}
		if i == 1 {
			slices.Reverse(steps)
		}

		for _, step := range steps {
			must.Do(t, step(t.Context()))
		}

		checkHolds(t, p, want, "after "+id)
	}
}

func (s *suite) again(t *testing.T, p Place) {
	sv := NewSaving(p, Storage("first", 1, 2), 2)
	l := NewLoading(p, 2)
	for i, id := range []string{"first", "second", "third"} {
		states := []plan.State{s.small(t, byte(i)), {}}
		sv.Storage = Storage(id, int64(i), 2)
		if err := sv.Run(t.Context(), states); err != nil {
			t.Fatalf("Save %s = %v", id, err)
		}

		got := []plan.State{{}, blankState(t, states[0])}
		if err := errors.Join(l.Plan(t.Context(), got), l.Read(t.Context())); err != nil {
			t.Fatalf("Load %s = %v", id, err)
		}
		checkState(t, states[0], got[1])
	}
}
