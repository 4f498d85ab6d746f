package deepspeed_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// run is a run of DeepSpeed that the tests make up. Its methods write the files that
// DeepSpeed would write.
type run struct {
	stage, ranks int
	half         tensor.DType // of the module; Float32: no mixed precision
	padded       bool         // the weights keep their padding, as BF16_Optimizer has them
	silent       bool         // the optimizer files do not name the stage
	elastic      bool         // the states are lists without padding
	intStep      bool         // steps are numbers
	step         int64        // of the optimizer; zero: 3
	groups       [][]parameter
	frozen       []parameter
	align        int64 // parameters begin at multiples of this, up to stage 2
	module       *value.Dict
	extra        map[string]any // of the model file
}

// parameter is a parameter with its weight and its states.
type parameter struct {
	name   string
	shape  []int64
	states map[string][]float32 // "" is the weight
}

var stateNames = []string{"", "exp_avg", "exp_avg_sq"}

// newParameter makes a parameter with numbers that have no equals and that 16 bits hold
// only in part.
func newParameter(r *rand.Rand, name string, shape ...int64) parameter {
	p := parameter{name, shape, map[string][]float32{}}
	n := must.Value(tensor.NumElements(shape))
	for _, s := range stateNames {
		v := make([]float32, n)
		for i := range v {
			v[i] = r.Float32()*4 - 2
		}
		p.states[s] = v
	}
	return p
}

// randomRun makes a run of random options and sizes.
func randomRun(r *rand.Rand) *run {
	u := &run{stage: 1 + r.IntN(3), ranks: 1 + r.IntN(9), half: []tensor.DType{tensor.Float32, tensor.Float16, tensor.BFloat16}[r.IntN(3)]}
	u.padded, u.elastic, u.intStep = r.IntN(3) == 0, r.IntN(4) == 0 && u.stage < 3, r.IntN(3) == 0
	u.silent = u.padded && u.stage == 1
	if r.IntN(3) == 0 && u.stage < 3 {
		u.align = int64(1 + r.IntN(16))
	}
	number := 0
	params := func(n int) (out []parameter) {
		for range n {
			shape := make([]int64, r.IntN(4))
			for d := range shape {
				shape[d] = int64(r.IntN(9))
				if r.IntN(4) > 0 {
					shape[d]++
				}
			}
			out = append(out, newParameter(r, fmt.Sprintf("layers.%d.weight", number), shape...))
			number++
		}
		return out
	}
	u.groups = append(u.groups, params(1+r.IntN(6)))
	for range r.IntN(3) {
		u.groups = append(u.groups, params(1+r.IntN(6)))
	}
	u.frozen = params(r.IntN(3))
	return u
}

// tensorOf returns values as a tensor of a dtype, and the expected tensor in fp32.
func tensorOf(t testing.TB, d tensor.DType, shape []int64, v []float32) *tensor.Tensor {
	t.Helper()
	src := must.Get(tensor.Of(shape, v))(t)
	if d == tensor.Float32 {
		return src
	}
	dst := must.Get(tensor.New(d, shape))(t)
	must.Do(t, tensor.Convert(dst, src, tensor.CastAny))
	return dst
}

// flat returns the flat buffer of a state of a group, and how long it is without padding.
func (u *run) flat(g int, state string) (buf []float32, lean int) {
	pads := u.paddings(g)
	for k, p := range u.groups[g] {
		buf = append(buf, p.states[state]...)
		if k < len(u.groups[g])-1 {
			buf = append(buf, make([]float32, pads[k])...)
		}
	}
	lean = len(buf)
	for len(buf)%(2*u.ranks) > 0 {
		buf = append(buf, 99)
	}
	return buf, lean
}

// paddings returns the elements between the parameters of a group.
func (u *run) paddings(g int) []int64 {
	out, at := make([]int64, len(u.groups[g])), int64(0)
	for k, p := range u.groups[g] {
		at += int64(len(p.states[""]))
		if u.align > 0 && k < len(out)-1 {
			out[k] = (u.align - at%u.align) % u.align
		}
		at += out[k]
	}
	return out
}

// partition returns the part of a state of a group that a rank has.
func (u *run) partition(g, rank int, state string, padded bool) []float32 {
	if u.stage == 3 {
		var out []float32
		for _, p := range u.groups[g] {
			out = append(out, u.piece(p, state, rank)...)
		}
		return out
	}
	buf, lean := u.flat(g, state)
	piece := len(buf) / u.ranks
	out := buf[rank*piece : (rank+1)*piece]
	if !padded {
		out = out[:max(0, min(piece, lean-rank*piece))]
	}
	return out
}

// piece returns the piece of a parameter that a rank has in stage 3.
func (u *run) piece(p parameter, state string, rank int) []float32 {
	v := p.states[state]
	n := (len(v) + u.ranks - 1) / u.ranks
	padded := append(append([]float32{}, v...), make([]float32, n*u.ranks-len(v))...)
	return padded[rank*n : (rank+1)*n]
}

// moduleState returns the state of the module: whole tensors, or none in stage 3.
func (u *run) moduleState(t testing.TB) *value.Dict {
	out := &value.Dict{Ordered: true}
	add := func(name string, v any) { out.Pairs = append(out.Pairs, value.Pair{Key: name, Value: v}) }
	for _, g := range append(append([][]parameter{}, u.groups...), u.frozen) {
		for _, p := range g {
			shape, v := p.shape, p.states[""]
			if u.stage == 3 {
				shape, v = []int64{0}, nil
			}
			add(p.name, tensorOf(t, u.half, shape, v))
		}
	}
	add("steps_seen", must.Get(tensor.Of([]int64{1}, []int64{7}))(t))
	return out
}

// shapes returns the shapes of parameters by name.
func shapes(params []parameter) *value.Dict {
	d := &value.Dict{Ordered: true}
	for _, p := range params {
		size := value.Tuple{}
		for _, n := range p.shape {
			size = append(size, n)
		}
		d.Pairs = append(d.Pairs, value.Pair{Key: p.name, Value: &value.Object{Module: "torch", Name: "Size", Call: true, Args: value.Tuple{size}}})
	}
	return d
}

// model returns the content of the model file of a rank.
func (u *run) model(t testing.TB, rank int) map[string]any {
	var groups []any
	for _, g := range u.groups {
		groups = append(groups, shapes(g))
	}
	if u.module == nil {
		u.module = u.moduleState(t)
	}
	out := map[string]any{
		"module": u.module, "buffer_names": []any{"steps_seen"}, "param_shapes": groups, "frozen_param_shapes": nil, "frozen_param_fragments": nil,
		"shared_params": map[string]any{}, "dp_world_size": int64(u.ranks), "mp_world_size": int64(1), "global_steps": int64(3), "ds_version": "0.19.8",
		"epoch": int64(1),
	}
	if u.stage == 3 && len(u.frozen) > 0 {
		fragments := &value.Dict{Ordered: true}
		for _, p := range u.frozen {
			v := u.piece(p, "", rank)
			fragments.Pairs = append(fragments.Pairs, value.Pair{Key: p.name, Value: tensorOf(t, u.half, []int64{int64(len(v))}, v)})
		}
		out["frozen_param_shapes"], out["frozen_param_fragments"] = shapes(u.frozen), fragments
	}
	for k, v := range u.extra {
		out[k] = v
	}
	return out
}

// optim returns the content of the optimizer file of a rank.
func (u *run) optim(t testing.TB, rank int) map[string]any {
	vector := func(v []float32) any { return must.Get(tensor.Of([]int64{int64(len(v))}, v))(t) }
	var flats, states, options, pads, counts []any
	byNumber := &value.Dict{}
	for g := range u.groups {
		flats = append(flats, vector(u.partition(g, rank, "", u.padded)))
		s := map[string]any{"step": u.stepOf(t)}
		for _, name := range stateNames[1:] {
			s[name] = vector(u.partition(g, rank, name, !u.elastic))
		}
		states = append(states, s)
		byNumber.Pairs = append(byNumber.Pairs, value.Pair{Key: int64(g), Value: s})
		options = append(options, map[string]any{"lr": 0.5, "params": []any{int64(g)}})
		var p []any
		for _, n := range u.paddings(g) {
			p = append(p, n)
		}
		pads, counts = append(pads, p), append(counts, int64(u.ranks))
	}
	var base any = map[string]any{"state": byNumber, "param_groups": options}
	if u.elastic {
		base = states
	}
	out := map[string]any{"zero_stage": int64(u.stage), "loss_scaler": 1.0, "partition_count": counts, "single_partition_of_fp32_groups": flats,
		"base_optimizer_state": base, "param_alignment_paddings": pads}
	if u.stage == 3 {
		out = map[string]any{"zero_stage": int64(3), "partition_count": int64(u.ranks), "fp32_flat_groups": flats, "optimizer_state_dict": base}
	}
	if u.silent {
		delete(out, "zero_stage")
	}
	return map[string]any{"optimizer_state_dict": out, "ds_version": "0.19.8"}
}

// write writes the checkpoint into a folder of a store.
func (u *run) write(t testing.TB, s *mem.Store, dir string) {
	t.Helper()
	put := func(name string, v any) {
		storagetest.Put(t, s, dir+name, must.Get(torchsave.Marshal(v))(t))
	}
	for r := range u.ranks {
		put(fmt.Sprintf("zero_pp_rank_%d_mp_rank_00_optim_states.pt", r), u.optim(t, r))
		if u.stage == 3 {
			put(fmt.Sprintf("zero_pp_rank_%d_mp_rank_00_model_states.pt", r), u.model(t, r))
		}
	}
	if u.stage < 3 {
		put("mp_rank_00_model_states.pt", u.model(t, 0))
	}
}

// universal writes the checkpoint that ds_to_universal makes of the run.
func (u *run) universal(t testing.TB, s *mem.Store, dir string) {
	t.Helper()
	put := func(name string, v any) {
		storagetest.Put(t, s, dir+name, must.Get(torchsave.Marshal(v))(t))
	}
	for _, g := range u.groups {
		for _, p := range g {
			for _, state := range stateNames {
				file := state
				if file == "" {
					file = "fp32"
				}
				v := p.states[state]
				if u.stage == 3 {
					put("zero/"+p.name+"/"+file+".pt", must.Get(tensor.Of([]int64{int64(len(v))}, v))(t))
					continue
				}
				put("zero/"+p.name+"/"+file+".pt", map[string]any{"param": tensorOf(t, tensor.Float32, p.shape, v), "cat_dim": int64(0)})
			}
			if u.stage < 3 {
				put("zero/"+p.name+"/step.pt", u.stepOf(t))
			}
		}
	}
	root := u.optim(t, 0)["optimizer_state_dict"].(map[string]any)
	if u.stage < 3 {
		delete(root, "base_optimizer_state")
		delete(root, "single_partition_of_fp32_groups")
	}
	put("zero/optimizer_state.pt", root)
	for r := range u.ranks {
		if u.stage == 3 {
			put(fmt.Sprintf("zero_pp_rank_%d_mp_rank_00_model_states.pt", r), u.model(t, r))
		} else if r == 0 {
			put("mp_rank_00_model_states.pt", u.model(t, r))
		}
	}
}

func (u *run) stepOf(t testing.TB) any {
	n := cmp.Or(u.step, 3)
	if u.intStep {
		return n
	}
	return must.Get(tensor.Of([]int64{}, []float32{float32(n)}))(t)
}

// want returns the tensors of the checkpoint.
func (u *run) want(t testing.TB) map[string]*tensor.Tensor {
	out := map[string]*tensor.Tensor{"model.steps_seen": must.Get(tensor.Of([]int64{1}, []int64{7}))(t)}
	for _, g := range u.groups {
		for _, p := range g {
			out["model."+p.name] = tensorOf(t, tensor.Float32, p.shape, p.states[""])
			for _, s := range stateNames[1:] {
				out["optimizer.state."+p.name+"."+s] = tensorOf(t, tensor.Float32, p.shape, p.states[s])
			}
			out["optimizer.state."+p.name+".step"] = must.Get(tensor.Of([]int64{}, []float32{3}))(t)
			if u.stage < 3 && u.half != tensor.Float32 {
				out["model16."+p.name] = tensorOf(t, u.half, p.shape, p.states[""])
			}
		}
	}
	for _, p := range u.frozen {
		half := tensorOf(t, u.half, p.shape, p.states[""])
		if u.stage < 3 && u.half != tensor.Float32 {
			out["model16."+p.name] = half
		}
		wide := must.Get(tensor.New(tensor.Float32, p.shape))(t)
		must.Do(t, tensor.Convert(wide, half, tensor.CastAny))
		out["model."+p.name] = wide
	}
	return out
}
