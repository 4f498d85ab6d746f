package deepspeed_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/deepspeed"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

var seed = flag.Uint64("seed", 0, "of random checkpoints; 0: several")

// open opens the checkpoint in a store.
func open(t testing.TB, s *mem.Store) storage.Checkpoint {
	t.Helper()
	return must.Get(deepspeed.Format{}.Open(t.Context(), s))(t)
}

// check fails unless a checkpoint has the tensors of a run, and Verify finds no problem.
func check(t testing.TB, ck storage.Checkpoint, want map[string]*tensor.Tensor) {
	t.Helper()
	got := storagetest.LoadAll(t, ck)
	for name, v := range got {
		x, ok := v.(*tensor.Tensor)
		if ok && (want[name] == nil || !tensor.Equal(x, want[name])) {
			t.Errorf("%q is %v; want %v, and the same elements", name, x, want[name])
		}
	}
	for name := range want {
		if got[name] == nil {
			t.Errorf("%q is not in the checkpoint", name)
		}
	}
	rep, err := ck.Verify(t.Context(), nil)
	if err != nil || len(rep.Problems) > 0 {
		t.Errorf("Verify = %+v, %v; want no problems", rep, err)
	}
}

// Whatever the stage, the number of ranks, the sizes and the options are, every parameter
// and every state is found, as ZeRO wrote it and as a universal checkpoint.
func TestRandomRuns(t *testing.T) {
	for i := range uint64(60) {
		if *seed != 0 && *seed != i+1 {
			continue
		}
		u := randomRun(rand.New(rand.NewPCG(i+1, 24)))
		t.Logf("stage %d, %d ranks, %v; to repeat: go test -run %s -seed %d", u.stage, u.ranks, u.half, t.Name(), i+1)
		s := new(mem.Store)
		u.write(t, s, "")
		ck := open(t, s)
		check(t, ck, u.want(t))
		if st := ck.Storage(); st.WorldSize != u.ranks || st.Step == nil || *st.Step != 3 || len(st.Notes) > 0 && !u.elastic {
			t.Errorf("Storage = %+v", st)
		}
		s = new(mem.Store)
		u.universal(t, s, "")
		check(t, open(t, s), u.want(t))
		if t.Failed() {
			return
		}
	}
}

// Of a checkpoint of 64 ranks, only the parts that are wanted are read.
func TestManyRanks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	u := &run{stage: 3, ranks: 64, half: tensor.BFloat16, groups: [][]parameter{{newParameter(r, "a", 301, 7), newParameter(r, "b", 3)}, {newParameter(r, "c", 64)}}}
	s := new(mem.Store)
	u.write(t, s, "")
	check(t, open(t, s), u.want(t))
}

// example returns a run of two ranks, with two weights of one shape.
func example(stage int) *run {
	r := rand.New(rand.NewPCG(3, 4))
	return &run{stage: stage, ranks: 2, half: tensor.BFloat16, groups: [][]parameter{{newParameter(r, "a", 5, 3), newParameter(r, "b", 5, 3)}, {newParameter(r, "n", 3)}},
		frozen: []parameter{newParameter(r, "f", 3, 3)}}
}

// Two parameters of one shape that were exchanged fit, but differ from the copy in the
// module's state.
func TestVerifyFindsExchangedParameters(t *testing.T) {
	for _, half := range []tensor.DType{tensor.Float32, tensor.Float16, tensor.BFloat16} {
		u := example(2)
		u.half = half
		u.module = u.moduleState(t)
		u.groups[0][0].name, u.groups[0][1].name = "b", "a"
		for form, write := range map[string]func(testing.TB, *mem.Store, string){"ZeRO": u.write, "universal": u.universal} {
			s := new(mem.Store)
			write(t, s, "")
			ck := open(t, s)
			rep := must.Get(ck.Verify(t.Context(), nil))(t)
			var names []string
			for _, p := range rep.Problems {
				names = append(names, p.FQN)
				if !strings.Contains(p.Text, "element [0 0]") || p.File != "mp_rank_00_model_states.pt" {
					t.Errorf("%s, %v: problem %+v; want the element and the file", form, half, p)
				}
			}
			if !slices.Equal(names, []string{"model.a", "model.b"}) {
				t.Errorf("%s, %v: Verify has problems with %v; want model.a and model.b", form, half, names)
			}
			copies := must.Get(ck.(storage.CopyChecker).CheckCopies(t.Context(), func(fqn string) bool { return fqn == "model.n" }, storage.ReadOptions{}))(t)
			if copies.Tensors != 1 || len(copies.Problems) > 0 {
				t.Errorf("%s, %v: CheckCopies of one weight = %+v; want no problem", form, half, copies)
			}
		}
	}
}

// NaN and infinities are equal to their casts.
func TestCopiesThatAreNotNumbers(t *testing.T) {
	u := example(1)
	u.half = tensor.Float16
	w := u.groups[0][0].states[""]
	w[0], w[1], w[2] = float32(math.NaN()), float32(math.Inf(-1)), 1e30
	u.module = u.moduleState(t)
	for _, p := range u.module.Pairs {
		if p.Key == any("a") {
			p.Value.(*tensor.Tensor).Memory()[0] ^= 1 // another NaN
		}
	}
	s := new(mem.Store)
	u.write(t, s, "")
	if rep, err := open(t, s).Verify(t.Context(), nil); err != nil || len(rep.Problems) > 0 {
		t.Errorf("Verify = %+v, %v; want no problems", rep, err)
	}
}

// Tied names have the weight of the name that is trained, also if old files do not say
// that they are tied. ZeRO 3 has no other source of it.
func TestTiedNames(t *testing.T) {
	for _, stage := range []int{1, 2, 3} {
		for _, told := range []bool{true, false} {
			u := example(stage)
			u.module = u.moduleState(t)
			first := u.module.Pairs[0].Value
			u.module.Pairs = append(u.module.Pairs, value.Pair{Key: "tied", Value: first})
			if told {
				u.extra = map[string]any{"shared_params": map[string]any{"tied": "a"}}
			}
			s := new(mem.Store)
			u.write(t, s, "")
			ck := open(t, s)
			md := must.Get(ck.Metadata(t.Context()))(t)
			if stage == 3 && !told {
				_, _, err := ck.Find(t.Context(), "model.tied")
				if !errors.Is(err, storage.ErrCorrupt) || len(md.Missing) != 1 {
					t.Errorf("stage 3: the weight without a source is %v, missing %v; want ErrCorrupt", err, md.Missing)
				}
				continue
			}
			want := u.want(t)
			want["model.tied"] = want["model.a"]
			if stage < 3 {
				want["model16.tied"] = want["model16.a"]
			}
			check(t, ck, want)
			if md.Ties()["model.tied"] != "model.a" {
				t.Errorf("stage %d: ties are %v; want model.tied as model.a", stage, md.Ties())
			}
			for name := range md.Ties() {
				if strings.HasSuffix(name, ".step") {
					t.Errorf("%q is tied to another step: an optimizer would count it several times", name)
				}
			}
		}
	}
}

// Files of ranks that the save did not have are ignored, and noted.
func TestLeftoverRanks(t *testing.T) {
	for _, stage := range []int{1, 3} {
		s := new(mem.Store)
		old := example(stage)
		old.ranks = 4
		old.write(t, s, "")
		u := example(stage)
		u.write(t, s, "")
		ck := open(t, s)
		check(t, ck, u.want(t))
		if notes := strings.Join(ck.Storage().Notes, "\n"); !strings.Contains(notes, "zero_pp_rank_2_mp_rank_00") {
			t.Errorf("stage %d: notes %q; want the file of rank 2", stage, notes)
		}
	}
}

// An unreadable checkpoint is refused with the name of the file and the reason.
func TestRefused(t *testing.T) {
	put := func(name string) func(*testing.T, *mem.Store) {
		return func(t *testing.T, s *mem.Store) { storagetest.Put(t, s, name, []byte("x")) }
	}
	remove := func(name string) func(*testing.T, *mem.Store) {
		return func(t *testing.T, s *mem.Store) { storagetest.Remove(t, s, name) }
	}
	change := func(name string, with func(u *run) any) func(*testing.T, *mem.Store) {
		return func(t *testing.T, s *mem.Store) {
			storagetest.Put(t, s, name, must.Get(torchsave.Marshal(with(example(2))))(t))
		}
	}
	model := func(key string, v any) func(*testing.T, *mem.Store) {
		return change("mp_rank_00_model_states.pt", func(u *run) any {
			u.extra = map[string]any{key: v}
			return u.model(t, 0)
		})
	}
	optim := func(with func(o map[string]any)) func(*testing.T, *mem.Store) {
		return change("zero_pp_rank_1_mp_rank_00_optim_states.pt", func(u *run) any {
			o := u.optim(t, 1)
			with(o["optimizer_state_dict"].(map[string]any))
			return o
		})
	}
	size := func(n ...any) *value.Dict {
		return &value.Dict{Ordered: true, Pairs: []value.Pair{{Key: "a", Value: value.Tuple(n)}}}
	}
	for claim, c := range map[string]struct {
		stage  int
		damage func(*testing.T, *mem.Store)
		want   error
		text   string
	}{
		"a missing rank":             {2, remove("zero_pp_rank_1_mp_rank_00_optim_states.pt"), storage.ErrIncomplete, "zero_pp_rank_1_mp_rank_00_optim_states.pt"},
		"a missing first rank":       {2, remove("zero_pp_rank_0_mp_rank_00_optim_states.pt"), storage.ErrIncomplete, "zero_pp_rank_0_mp_rank_00_optim_states.pt"},
		"no model file":              {2, remove("mp_rank_00_model_states.pt"), storage.ErrIncomplete, "mp_rank_00_model_states.pt"},
		"frozen parts missing":       {3, remove("zero_pp_rank_1_mp_rank_00_model_states.pt"), storage.ErrIncomplete, "zero_pp_rank_1_mp_rank_00_model_states.pt"},
		"tensor parallel":            {2, put("mp_rank_01_model_states.pt"), storage.ErrVersion, "tensor parallel"},
		"tensor parallel, optimizer": {2, put("zero_pp_rank_0_mp_rank_01_optim_states.pt"), storage.ErrVersion, "mp_rank_01"},
		"tensor parallel, by record": {2, model("mp_world_size", int64(2)), storage.ErrVersion, "tensor parallel"},
		"pipeline parallel":          {2, put("layer_01-model_00-model_states.pt"), storage.ErrVersion, "pipeline parallel"},
		"expert parallel":            {2, put("layer_0_expert_3_mp_rank_00_model_states.pt"), storage.ErrVersion, "expert parallel"},
		"expert optimizer":           {2, put("expp_rank_0_mp_rank_00_optim_states.pt"), storage.ErrVersion, "expert parallel"},
		"expert groups":              {2, optim(func(o map[string]any) { o["partition_count"] = []any{int64(2), int64(1)} }), storage.ErrVersion, "expert parallel"},
		"expert layers":              {2, model("ds_autoep_layers", []any{"x"}), storage.ErrVersion, "expert parallel"},
		"without ZeRO":               {2, model("param_shapes", nil), storage.ErrVersion, "without ZeRO"},
		"order unknown":              {2, model("param_shapes", []any{map[string]any{"a": value.Tuple{int64(1)}, "b": value.Tuple{int64(1)}}}), storage.ErrVersion, "OrderedDict"},
		"stage 4":                    {2, optim(func(o map[string]any) { o["zero_stage"] = int64(4) }), storage.ErrVersion, "stage 4"},
		"no weights":                 {2, optim(func(o map[string]any) { delete(o, "single_partition_of_fp32_groups") }), storage.ErrVersion, "single_partition_of_fp32_groups"},
		"no number of ranks":         {2, optim(func(o map[string]any) { delete(o, "partition_count") }), storage.ErrVersion, "partition_count"},
		"another number of ranks":    {2, optim(func(o map[string]any) { o["partition_count"] = []any{int64(3), int64(3)} }), storage.ErrCorrupt, "two saves are mixed"},
		"other ranks in the model":   {2, model("dp_world_size", int64(5)), storage.ErrCorrupt, "two saves are mixed"},
		"another stage":              {2, optim(func(o map[string]any) { o["zero_stage"] = int64(1) }), storage.ErrCorrupt, "two saves are mixed"},
		"two sets of files":          {2, put("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"), storage.ErrCorrupt, "two saves are mixed"},
		"a weight too short":         {2, optim(func(o map[string]any) { o["single_partition_of_fp32_groups"].([]any)[0] = vector(3) }), storage.ErrCorrupt, "has 3 elements"},
		"a weight too long":          {2, optim(func(o map[string]any) { o["single_partition_of_fp32_groups"].([]any)[0] = vector(300) }), storage.ErrCorrupt, "elements"},
		"a group too few":            {2, model("param_shapes", []any{shapes(example(2).groups[0])}), storage.ErrCorrupt, "param_shapes"},
		"no tensor":                  {2, optim(func(o map[string]any) { o["single_partition_of_fp32_groups"] = []any{"x", "y"} }), storage.ErrCorrupt, "flat tensor"},
		"a name twice":               {2, model("param_shapes", []any{size(int64(1)), size(int64(1))}), storage.ErrCorrupt, "was before"},
		"a negative size":            {2, model("param_shapes", []any{size(int64(-1)), size()}), storage.ErrCorrupt, "param_shapes"},
		"a size that overflows":      {2, model("param_shapes", []any{size(int64(1)<<40, int64(1)<<40), size()}), storage.ErrCorrupt, "param_shapes"},
		"a size that is too large":   {2, model("param_shapes", []any{size(int64(1) << 50), &value.Dict{Ordered: true}}), storage.ErrCorrupt, "need"},
		"negative paddings": {2, change("zero_pp_rank_0_mp_rank_00_optim_states.pt", func(u *run) any {
			o := u.optim(t, 0)
			o["optimizer_state_dict"].(map[string]any)["param_alignment_paddings"] = []any{[]any{int64(-1)}}
			return o
		}), storage.ErrCorrupt, "param_alignment_paddings"},
		"more ranks than there can be": {2, func(t *testing.T, s *mem.Store) {
			u := example(2)
			u.extra = map[string]any{"dp_world_size": int64(math.MaxInt32)}
			storagetest.Put(t, s, "mp_rank_00_model_states.pt", must.Get(torchsave.Marshal(u.model(t, 0)))(t))
			o := u.optim(t, 0)
			o["optimizer_state_dict"].(map[string]any)["partition_count"] = []any{int64(math.MaxInt32)}
			storagetest.Put(t, s, "zero_pp_rank_0_mp_rank_00_optim_states.pt", must.Get(torchsave.Marshal(o))(t))
		}, storage.ErrIncomplete, "zero_pp_rank_2_mp_rank_00_optim_states.pt"},
		"gaps that are too large": {2, change("zero_pp_rank_0_mp_rank_00_optim_states.pt", func(u *run) any {
			o := u.optim(t, 0)
			o["optimizer_state_dict"].(map[string]any)["param_alignment_paddings"] = []any{[]any{int64(1) << 58}}
			return o
		}), storage.ErrCorrupt, "need"},
		"a copy of another shape":  {2, model("module", map[string]any{"a": vector(3)}), storage.ErrCorrupt, "shape"},
		"a file that is cut short": {2, put("zero_pp_rank_1_mp_rank_00_optim_states.pt"), storage.ErrCorrupt, "zero_pp_rank_1"},
	} {
		t.Run(claim, func(t *testing.T) {
			s := new(mem.Store)
			example(c.stage).write(t, s, "")
			c.damage(t, s)
			_, err := deepspeed.Format{}.Open(t.Context(), s)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Open = %v; want %v that says %q", err, c.want, c.text)
			}
		})
	}
}

// vector returns a tensor of n ones.
func vector(n int) *tensor.Tensor {
	return must.Value(tensor.Of([]int64{int64(n)}, slices.Repeat([]float32{1}, n)))
}

// A universal checkpoint lacks a file: the error names it.
func TestUniversalIncomplete(t *testing.T) {
	for _, stage := range []int{2, 3} {
		for _, lost := range []string{"zero/b/fp32.pt", "zero/b/exp_avg.pt"} {
			s := new(mem.Store)
			example(stage).universal(t, s, "")
			storagetest.Remove(t, s, lost)
			if _, err := (deepspeed.Format{}).Open(t.Context(), s); !errors.Is(err, storage.ErrIncomplete) || !strings.Contains(err.Error(), lost) {
				t.Errorf("Open = %v; want ErrIncomplete that names %s", err, lost)
			}
		}
	}
	for _, lost := range []string{"zero/optimizer_state.pt", "mp_rank_00_model_states.pt"} {
		s := new(mem.Store)
		example(2).universal(t, s, "")
		storagetest.Remove(t, s, lost)
		ck := open(t, s)
		if err := must.Get(ck.Metadata(t.Context()))(t).CheckWhole(nil); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), lost) {
			t.Errorf("CheckWhole = %v; want %v that names %s", err, storage.ErrCorrupt, lost)
		}
	}
	s := new(mem.Store)
	example(3).universal(t, s, "")
	storagetest.Remove(t, s, "zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt")
	if _, err := (deepspeed.Format{}).Open(t.Context(), s); !errors.Is(err, storage.ErrVersion) {
		t.Errorf("Open without shapes = %v; want ErrVersion", err)
	}
}

// States that have no element for each element of a parameter are kept as they are.
func TestStatesThatCannotBeCut(t *testing.T) {
	u := example(1)
	s := new(mem.Store)
	u.write(t, s, "")
	for r := range 2 {
		o := u.optim(t, r)
		base := o["optimizer_state_dict"].(map[string]any)["base_optimizer_state"].(map[string]any)
		base["state"].(*value.Dict).Pairs[0].Value.(map[string]any)["row"] = vector(2)
		storagetest.Put(t, s, fmt.Sprintf("zero_pp_rank_%d_mp_rank_00_optim_states.pt", r), must.Get(torchsave.Marshal(o))(t))
	}
	want := u.want(t)
	want["deepspeed.states.0.0.row"], want["deepspeed.states.0.1.row"] = vector(2), vector(2)
	ck := open(t, s)
	check(t, ck, want)
	if len(ck.Storage().Notes) != 1 {
		t.Errorf("notes: %q; want one about the state", ck.Storage().Notes)
	}
}

// Odd names are names; those that two things have get a number.
func TestOddNames(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	u := &run{stage: 3, ranks: 3, half: tensor.Float32, groups: [][]parameter{{newParameter(r, "", 2), newParameter(r, "a/../b", 2), newParameter(r, "ü.\n", 2), newParameter(r, "x.exp_avg", 2), newParameter(r, "x", 2)}}}
	s := new(mem.Store)
	u.write(t, s, "")
	check(t, open(t, s), u.want(t))
}

func TestNewWriterRefuses(t *testing.T) {
	if _, err := (deepspeed.Format{}).NewWriter(new(mem.Store), storage.WriteOptions{}); !errors.Is(err, storage.ErrOptions) || !strings.Contains(err.Error(), "torchdcp") {
		t.Errorf("NewWriter = %v; want ErrOptions that names other formats", err)
	}
}

// A step that is not a number is a value like any other.
func TestStepOfAnotherKind(t *testing.T) {
	u, s := example(2), new(mem.Store)
	u.write(t, s, "")
	for r := range u.ranks {
		o := u.optim(t, r)
		base := o["optimizer_state_dict"].(map[string]any)["base_optimizer_state"].(map[string]any)
		for _, p := range base["state"].(*value.Dict).Pairs {
			p.Value.(map[string]any)["step"] = []any{int64(3)}
		}
		storagetest.Put(t, s, fmt.Sprintf("zero_pp_rank_%d_mp_rank_00_optim_states.pt", r), must.Get(torchsave.Marshal(o))(t))
	}
	ck := must.Get(deepspeed.Format{}.Open(t.Context(), s))(t)
	defer ck.Close()
	if _, ok, err := ck.Find(t.Context(), "model."+u.groups[0][0].name); err != nil || !ok {
		t.Errorf("Find = %v, %v; want the weight", ok, err)
	}
}

// Optimizer files of another step are noticed in all stages: numbers when the checkpoint is
// opened, tensors when it is verified.
func TestFilesOfTwoSteps(t *testing.T) {
	const second = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
	for stage := 1; stage <= 3; stage++ {
		for _, ints := range []bool{true, false} {
			t.Run(fmt.Sprintf("stage %d, numbers %v", stage, ints), func(t *testing.T) {
				u, s := example(stage), new(mem.Store)
				u.intStep = ints
				u.write(t, s, "")
				ck := must.Get(deepspeed.Format{}.Open(t.Context(), s))(t)
				if rep := must.Get(ck.Verify(t.Context(), nil))(t); len(rep.Problems) > 0 {
					t.Fatalf("files of one step: %+v", rep.Problems)
				}
				must.Do(t, ck.Close())
				u.step = 4
				storagetest.Put(t, s, second, must.Get(torchsave.Marshal(u.optim(t, 1)))(t))
				ck, err := deepspeed.Format{}.Open(t.Context(), s)
				if ints {
					if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "of step 4, and on rank 0 of step 3: the files of two saves are mixed") {
						t.Errorf("Open = %v; want that two saves are mixed", err)
					}
					return
				}
				must.Do(t, err)
				defer ck.Close()
				rep := must.Get(ck.Verify(t.Context(), nil))(t)
				if len(rep.Problems) != 1 || !strings.Contains(rep.Problems[0].Text, "is 3, and 4 in its copy") || rep.Problems[0].File != second {
					t.Errorf("Verify found %+v; want the other step in %s", rep.Problems, second)
				}
			})
		}
	}
}

// stateOfGroup returns the states of a group in the state of a ZeRO optimizer.
func stateOfGroup(o map[string]any, group int) map[string]any {
	base, _ := o["base_optimizer_state"].(map[string]any)
	if base == nil {
		base = o["optimizer_state_dict"].(map[string]any)
	}
	return base["state"].(*value.Dict).Pairs[group].Value.(map[string]any)
}

// Partitions of a rank that share bytes are refused: one of them has the elements of the
// other.
func TestPartitionsThatOverlap(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, stage := range []int{1, 3} {
		u := &run{stage: stage, ranks: 2, half: tensor.BFloat16, groups: [][]parameter{{newParameter(r, "a", 4, 3)}, {newParameter(r, "b", 4, 3)}}}
		key := map[int]string{1: "single_partition_of_fp32_groups", 3: "fp32_flat_groups"}[stage]
		for claim, overlap := range map[string]func(o map[string]any){
			"weights": func(o map[string]any) { flats := o[key].([]any); flats[1] = flats[0] },
			"states of one group": func(o map[string]any) {
				s := stateOfGroup(o, 1)
				s["exp_avg_sq"] = s["exp_avg"]
			},
			"states of two groups": func(o map[string]any) { stateOfGroup(o, 1)["exp_avg"] = stateOfGroup(o, 0)["exp_avg"] },
			"weights and states":   func(o map[string]any) { stateOfGroup(o, 0)["exp_avg"] = o[key].([]any)[0] },
		} {
			s := new(mem.Store)
			u.write(t, s, "")
			o := u.optim(t, 1)
			overlap(o["optimizer_state_dict"].(map[string]any))
			storagetest.Put(t, s, "zero_pp_rank_1_mp_rank_00_optim_states.pt", must.Get(torchsave.Marshal(o))(t))
			_, err := deepspeed.Format{}.Open(t.Context(), s)
			if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "overlap") || !strings.Contains(err.Error(), "zero_pp_rank_1_mp_rank_00_optim_states.pt") {
				t.Errorf("stage %d, %s: Open = %v; want %v that names the file", stage, claim, err, storage.ErrCorrupt)
			}
		}
	}
}
