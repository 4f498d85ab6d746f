package plan_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func isMismatch(err error) bool { return errors.Is(err, plan.ErrMismatch) }

func TestLocalLoadPlanHasEveryItem(t *testing.T) {
	x := counting(t, 0, 8, 4)
	mem := save(t, plan.State{"st": x, "value": 1, "tensor": counting(t, 0, 10)})
	d := new(plan.DefaultLoad)
	state := plan.State{"st": sharded(t, rows(2), x, 1), "value": 0, "tensor": counting(t, 0, 10)}
	must.Do(t, d.SetUp(plan.LoadSetup{State: state, Metadata: mem.md, Rank: 1, Size: 2}))
	p := must.Get(d.LocalPlan())(t)
	want := &plan.LoadPlan{Items: []plan.ReadItem{
		{
			Kind: plan.KindTensor, Dest: meta.Index{FQN: "st", Offset: []int64{4, 0}}, DestOffsets: []int64{0, 0},
			Source: meta.Index{FQN: "st", Offset: []int64{0, 0}}, SourceOffsets: []int64{4, 0}, Lengths: []int64{4, 4},
		},
		{
			Kind: plan.KindTensor, Dest: meta.Index{FQN: "tensor", Offset: []int64{0}}, DestOffsets: []int64{0},
			Source: meta.Index{FQN: "tensor", Offset: []int64{0}}, SourceOffsets: []int64{0}, Lengths: []int64{10},
		},
		{Kind: plan.KindBytes, Dest: meta.Index{FQN: "value"}, Source: meta.Index{FQN: "value"}},
	}}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("LocalPlan: -want +got\n%s", diff)
	}
	if q, err := d.GlobalPlan([]*plan.LoadPlan{p}); err != nil || q[0] != p {
		t.Errorf("GlobalPlan = %v, %v; want the plans as they are", q, err)
	}
}

func TestLoadPolicies(t *testing.T) {
	x := counting(t, 1, 4)
	mem := save(t, plan.State{"m": map[string]any{"x": x, "n": 7}, "step": 5})
	empty := func() *tensor.Tensor { return zeros(t, tensor.Float32, 4) }
	upper := func(s string) string { return strings.ToLower(s) }
	for name, c := range map[string]struct {
		d       *plan.DefaultLoad
		state   plan.State
		want    plan.State // nil: the state as it was
		missing []string
		errs    []error
		text    string
	}{
		"only the requested names": {
			d: &plan.DefaultLoad{}, state: plan.State{"step": 0}, want: plan.State{"step": 5},
		},
		"a missing name": {
			d: &plan.DefaultLoad{}, state: plan.State{"m": map[string]any{"y": empty()}},
			errs: []error{plan.ErrMismatch, plan.ErrMissing}, text: `"m.y": checkpoint and state do not match: "m.y" is not in the checkpoint`,
		},
		"missing names allowed": {
			d: &plan.DefaultLoad{AllowMissing: true}, state: plan.State{"z": 3, "a": empty(), "step": 0},
			want: plan.State{"z": 3, "a": empty(), "step": 5}, missing: []string{"a", "z"},
		},
		"some missing names allowed": {
			d:     &plan.DefaultLoad{AllowMissingFunc: func(fqn string) bool { return strings.HasSuffix(fqn, "step") }},
			state: plan.State{"a.step": 3, "b": 1}, errs: []error{plan.ErrMissing}, text: `"b": `,
		},
		"a missing name allowed by its name": {
			d:     &plan.DefaultLoad{AllowMissingFunc: func(fqn string) bool { return strings.HasSuffix(fqn, "step") }},
			state: plan.State{"a.step": 3}, want: plan.State{"a.step": 3}, missing: []string{"a.step"},
		},
		"no unexpected name": {
			d: &plan.DefaultLoad{RejectUnexpected: true}, state: plan.State{"m": map[string]any{"x": empty(), "n": 0}, "step": 0},
			want: plan.State{"m": map[string]any{"x": x, "n": 7}, "step": 5},
		},
		"unexpected names": {
			d: &plan.DefaultLoad{RejectUnexpected: true}, state: plan.State{"step": 0},
			errs: []error{plan.ErrMismatch, plan.ErrUnexpected}, text: `"m.n" is not asked for by the state`,
		},
		"renamed": {
			d: &plan.DefaultLoad{Rename: upper, RejectUnexpected: true}, state: plan.State{"M": map[string]any{"X": empty(), "N": 0}, "STEP": 0},
			want: plan.State{"M": map[string]any{"X": x, "N": 7}, "STEP": 5},
		},
		"two names for one": {
			d:     &plan.DefaultLoad{Rename: func(string) string { return "m.x" }},
			state: plan.State{"a": empty(), "b": empty()}, want: plan.State{"a": x, "b": x},
		},
		"renamed to a missing name": {
			d: &plan.DefaultLoad{Rename: func(s string) string { return "old." + s }}, state: plan.State{"step": 0},
			errs: []error{plan.ErrMissing}, text: `"step": checkpoint and state do not match: "old.step" is not in`,
		},
		"another size": {
			d: &plan.DefaultLoad{}, state: plan.State{"m": map[string]any{"x": zeros(t, tensor.Float32, 5)}},
			errs: []error{plan.ErrMismatch}, text: `"m.x": checkpoint and state do not match: size: the state wants [5], the checkpoint has [4]`,
		},
		"other dimensions": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": zeros(t, tensor.Float32, 4, 1)},
			errs: []error{plan.ErrMismatch}, text: "size",
		},
		"a tensor for a number": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": 3},
			errs: []error{plan.ErrMismatch}, text: `"m.x": checkpoint and state do not match: the checkpoint has a tensor, the state a value`,
		},
		"a tensor where nil stands": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": nil}, errs: []error{plan.ErrMismatch}, text: "the checkpoint has a tensor, the state a value",
		},
		"a tensor for a nil tensor": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": (*tensor.Tensor)(nil)}, errs: []error{plan.ErrMismatch}, text: "the state a nil *tensor.Tensor",
		},
		"a tensor for a nil sharded tensor": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": (*shard.Tensor)(nil)}, errs: []error{plan.ErrMismatch}, text: "the state a nil *shard.Tensor",
		},
		"a number for a tensor": {
			d: &plan.DefaultLoad{}, state: plan.State{"step": empty()}, errs: []error{plan.ErrMismatch}, text: "the checkpoint has a value, the state a tensor",
		},
		"another dtype, converted": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": zeros(t, tensor.Float64, 4)}, want: plan.State{"m.x": doubles(t, 1, 2, 3, 4)},
		},
		"floats as integers, refused": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": zeros(t, tensor.Int8, 4)},
			errs: []error{tensor.ErrCast, plan.ErrMismatch}, text: "cast=any",
		},
		"floats as integers, into a lossy tensor": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": zeros(t, tensor.Int8, 4).Lossy()}, want: plan.State{"m.x": ints(t, 1, 2, 3, 4)},
		},
		"floats as integers, allowed": {
			d: &plan.DefaultLoad{Cast: tensor.CastAny}, state: plan.State{"m.x": zeros(t, tensor.Int8, 4)}, want: plan.State{"m.x": ints(t, 1, 2, 3, 4)},
		},
		"a wider dtype, allowed": {
			d: &plan.DefaultLoad{Cast: tensor.CastWiden}, state: plan.State{"m.x": zeros(t, tensor.Float64, 4)}, want: plan.State{"m.x": doubles(t, 1, 2, 3, 4)},
		},
		"a narrower dtype, forbidden": {
			d: &plan.DefaultLoad{Cast: tensor.CastWiden}, state: plan.State{"m.x": zeros(t, tensor.BFloat16, 4)},
			errs: []error{plan.ErrMismatch, tensor.ErrCast}, text: `"m.x": checkpoint and state do not match: dtype: the state wants bfloat16, the checkpoint has float32`,
		},
		"a wider dtype, forbidden": {
			d: &plan.DefaultLoad{Cast: tensor.CastNone}, state: plan.State{"m.x": zeros(t, tensor.Float64, 4)}, errs: []error{tensor.ErrCast}, text: "dtype",
		},
		"the same dtype": {
			d: &plan.DefaultLoad{Cast: tensor.CastNone}, state: plan.State{"m.x": empty()}, want: plan.State{"m.x": x},
		},
		"a box outside of its tensor": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": &ramp{shape: []int64{4}, boxes: []tensor.Box{span(3, 2)}}},
			errs: []error{plan.ErrState, tensor.ErrShape}, text: `"m.x": invalid state`,
		},
		"a box of other dimensions": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": &ramp{shape: []int64{4}, boxes: []tensor.Box{{}}}}, errs: []error{plan.ErrState}, text: `"m.x"`,
		},
		"two values of one name": {
			d: &plan.DefaultLoad{}, state: plan.State{"m.x": 1, "m": map[string]any{"x": 1}}, errs: []error{plan.ErrState}, text: "have the same name",
		},
		"several problems, all of them": {
			d: &plan.DefaultLoad{}, state: plan.State{"a": 1, "b": 1, "m.x": 1, "step": 0},
			errs: []error{plan.ErrMissing}, text: "\"b\": checkpoint and state do not match: \"b\" is not in the checkpoint\n\"m.x\": ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := mem.load(c.d, c.state)
			for _, is := range c.errs {
				if !errors.Is(err, is) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("load = %v; want %v with %q", err, is, c.text)
				}
			}
			if c.errs != nil {
				return
			}
			if d := cmp.Diff(c.want, c.state, cmp.Comparer(tensor.Equal)); d != "" || err != nil {
				t.Errorf("load, %v: -want +got\n%s", err, d)
			}
			if d := cmp.Diff(c.missing, c.d.Missing()); d != "" {
				t.Errorf("Missing: -want +got\n%s", d)
			}
		})
	}
}

func ints(t failer, v ...int8) *tensor.Tensor {
	x := must.Get(tensor.Of([]int64{int64(len(v))}, v))(t)
	return x
}

func doubles(t failer, v ...float64) *tensor.Tensor {
	x := must.Get(tensor.Of([]int64{int64(len(v))}, v))(t)
	return x
}

func TestManyLoadErrorsAreCut(t *testing.T) {
	mem := save(t, plan.State{"x": counting(t, 0, 4)})
	s := plan.State{"x": zeros(t, tensor.BFloat16, 4)}
	for i := range 25 {
		s[fmt.Sprintf("k%02d", i)] = 1
	}
	err := mem.load(&plan.DefaultLoad{Cast: tensor.CastNone}, s)
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != 21 || !strings.HasPrefix(lines[19], `"k19"`) || lines[20] != "and 6 more" || !errors.Is(err, tensor.ErrCast) {
		t.Errorf("load = %v; want twenty problems and six more, wrapping all", err)
	}
	md := &meta.Metadata{}
	for i := range 25 {
		md.Entries = append(md.Entries, meta.Entry{FQN: fmt.Sprintf("k%02d", i), Bytes: &meta.Bytes{}})
	}
	err = (&memory{md: md}).load(&plan.DefaultLoad{RejectUnexpected: true}, plan.State{})
	if lines := strings.Split(fmt.Sprint(err), "\n"); len(lines) != 21 || lines[20] != "and 5 more" {
		t.Errorf("load = %v; want twenty unexpected names and five more", err)
	}
}

// A name that one rank does not ask for may be asked for by another.
func TestRejectUnexpected(t *testing.T) {
	mem := save(t, plan.State{"a": 1, "b": 2, "c": 3})
	local := func(d *plan.DefaultLoad, s plan.State) *plan.LoadPlan {
		must.Do(t, d.SetUp(plan.LoadSetup{State: s, Metadata: mem.md}))
		p := must.Get(d.LocalPlan())(t)
		return p
	}
	d := &plan.DefaultLoad{RejectUnexpected: true}
	plans := []*plan.LoadPlan{local(d, plan.State{"a": 0}), local(d, plan.State{"b": 0, "a": 0}), local(d, plan.State{})}
	if _, err := d.GlobalPlan(plans); !errors.Is(err, plan.ErrUnexpected) || strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"c"`) {
		t.Errorf("GlobalPlan = %v; want ErrUnexpected about c alone", err)
	}
	plans[2] = local(d, plan.State{"c": 0})
	if got, err := d.GlobalPlan(plans); err != nil || len(got) != 3 {
		t.Errorf("GlobalPlan = %v, %v; want the plans", got, err)
	}
	plans[1] = local(new(plan.DefaultLoad), plan.State{"c": 0})
	if _, err := d.GlobalPlan(plans); !errors.Is(err, plan.ErrState) || !strings.Contains(err.Error(), "rank 1") {
		t.Errorf("GlobalPlan with a rank of other options = %v; want ErrState about rank 1", err)
	}
}

func TestLoadFillsTensorsInPlace(t *testing.T) {
	x := counting(t, 1, 4, 6)
	mem := save(t, plan.State{"x": x})
	whole := zeros(t, tensor.Float32, 6, 4)
	view := must.Get(whole.Transpose(0, 1))(t)
	state := plan.State{"x": view}
	mem.mustLoad(t, state)
	if want, _ := x.Transpose(0, 1); !tensor.Equal(whole, want.Clone()) || state["x"] != view {
		t.Error("a strided view was not filled in place")
	}
}

// Two parts of a rank that begin at the same place are both filled.
func TestLoadPartsWithSameOffset(t *testing.T) {
	x := counting(t, 1, 4)
	mem := save(t, plan.State{"x": x})
	got := cut(t, zeros(t, tensor.Float32, 4), span(0, 0), span(0, 2), span(0, 4), span(0, 2))
	mem.mustLoad(t, plan.State{"x": got})
	for i, b := range got.boxes {
		if want, _ := x.Narrow(b); !tensor.Equal(got.parts[i], want) {
			t.Errorf("part %d, %v, holds other elements than were saved", i, b)
		}
	}
}

// A planner between may have lost the hint: then the first part that has
// elements is meant.
func TestLoadIgnoresWrongHint(t *testing.T) {
	x := counting(t, 1, 4)
	d := new(plan.DefaultLoad)
	parts := cut(t, x, span(2, 0), span(0, 2), span(2, 2))
	must.Do(t, d.SetUp(plan.LoadSetup{State: plan.State{"x": parts}, Metadata: save(t, plan.State{"x": x}).md}))
	p := must.Get(d.LocalPlan())(t)
	for _, hint := range []int32{-1, 0, 1, 2, 99} {
		it := p.Items[len(p.Items)-1]
		it.Dest.Hint = hint
		if got, err := d.ResolveTensor(&it); err != nil || !tensor.Equal(got, parts.parts[2]) {
			t.Errorf("ResolveTensor with hint %d = %v, %v; want the part at [2]", hint, got, err)
		}
	}
}

func TestResolveTensorRefuses(t *testing.T) {
	x := counting(t, 1, 4)
	mem := save(t, plan.State{"x": x, "v": 1})
	d := new(plan.DefaultLoad)
	short := &ramp{shape: []int64{4}, boxes: []tensor.Box{span(0, 2), span(2, 2)}, parts: []*tensor.Tensor{x}}
	must.Do(t, d.SetUp(plan.LoadSetup{State: plan.State{"x": short, "v": 1}, Metadata: mem.md}))
	must.Get(d.LocalPlan())(t)
	read := func(fqn string, offset, length int64) *plan.ReadItem {
		return &plan.ReadItem{
			Kind: plan.KindTensor, Dest: meta.Index{FQN: fqn, Offset: []int64{offset}}, DestOffsets: []int64{0}, Lengths: []int64{length},
		}
	}
	for name, c := range map[string]struct {
		it   *plan.ReadItem
		text string
	}{
		"another name":                    {read("y", 0, 2), `"y" is not in this rank's state`},
		"another place":                   {read("x", 1, 2), `"x": invalid state: no part at [1]`},
		"a value":                         {read("v", 0, 2), `"v": invalid state: it is not a tensor on this rank`},
		"a part of another shape":         {read("x", 0, 2), `"x": invalid state: part 0 is`},
		"a part that its owner withholds": {read("x", 2, 2), `"x": part 1 of 1`},
	} {
		if got, err := d.ResolveTensor(c.it); got != nil || err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: ResolveTensor = %v, %v; want %q", name, got, err, c.text)
		}
	}
	short.parts = []*tensor.Tensor{counting(t, 0, 2)}
	if _, err := d.ResolveTensor(read("x", 0, 3)); !errors.Is(err, tensor.ErrShape) {
		t.Errorf("ResolveTensor of more than the part: %v; want ErrShape", err)
	}
	if err := d.LoadBytes(&plan.ReadItem{Dest: meta.Index{FQN: "y"}}, value.JSON, []byte("1")); !errors.Is(err, plan.ErrState) {
		t.Errorf("LoadBytes of another name: %v; want ErrState", err)
	}
	if err := d.LoadBytes(&plan.ReadItem{Dest: meta.Index{FQN: "v"}}, value.JSON, []byte("[")); !errors.Is(err, value.ErrEncoding) || !strings.Contains(err.Error(), `"v"`) {
		t.Errorf("LoadBytes of half a value: %v; want ErrEncoding about v", err)
	}
}

func TestLoadNeedsMetadata(t *testing.T) {
	if err := new(plan.DefaultLoad).SetUp(plan.LoadSetup{State: plan.State{"a": 1}}); !errors.Is(err, plan.ErrProtocol) {
		t.Errorf("SetUp = %v; want ErrProtocol", err)
	}
}

// A planner serves one load after the other.
func TestLoadPlannerIsReusable(t *testing.T) {
	d := &plan.DefaultLoad{AllowMissing: true}
	for i, s := range []plan.State{{"a": 0, "gone": 1}, {"a": 0}} {
		if err := save(t, plan.State{"a": i}).load(d, s); err != nil || s["a"] != i {
			t.Errorf("load %d: %v, %v", i, s, err)
		}
		if got, want := len(d.Missing()), 1-i; got != want {
			t.Errorf("load %d: %d names missing; want %d", i, got, want)
		}
	}
}

// Numbers of 8 bits that have scales beside them are not converted.
func TestLoadQuantized(t *testing.T) {
	const f8, e5 = tensor.Float8E4M3FN, tensor.Float8E5M2
	mem := save(t, plan.State{
		"w": zeros(t, f8, 4, 2), "w_scale_inv": zeros(t, tensor.Float32, 1, 1),
		"v": zeros(t, e5, 4, 2), "v_scale": zeros(t, tensor.BFloat16, 1),
		"plain": zeros(t, f8, 4, 2), "plain_scale_inv_too": zeros(t, tensor.Float32, 1), "plain_scale": 3,
		"wide": zeros(t, tensor.BFloat16, 4, 2), "wide_scale_inv": zeros(t, tensor.Float32, 1, 1),
	})
	for name, c := range map[string]struct {
		d     *plan.DefaultLoad
		fqn   string
		dtype tensor.DType
		says  string // of the error
	}{
		"as it is":              {&plan.DefaultLoad{}, "w", f8, ""},
		"as bfloat16":           {&plan.DefaultLoad{}, "w", tensor.BFloat16, `"w": checkpoint and state do not match: dtype: the state wants bfloat16, the checkpoint has float8_e4m3fn numbers that mean nothing without their scales "w_scale_inv"`},
		"as another 8-bit type": {&plan.DefaultLoad{}, "w", e5, `"w_scale_inv"`},
		"with any cast":         {&plan.DefaultLoad{Cast: tensor.CastAny}, "w", tensor.Float32, `Want float8_e4m3fn and the scales`},
		"another ending":        {&plan.DefaultLoad{}, "v", tensor.Float32, `"v_scale"`},
		"renamed":               {&plan.DefaultLoad{Rename: func(string) string { return "w" }}, "x", tensor.Float32, `"w_scale_inv"`},
		"without scales":        {&plan.DefaultLoad{}, "plain", tensor.BFloat16, ""},
		"of 16 bits":            {&plan.DefaultLoad{}, "wide", tensor.Float32, ""},
	} {
		err := mem.load(c.d, plan.State{c.fqn: zeros(t, c.dtype, 4, 2)})
		if c.says == "" && err != nil || c.says != "" && (!isMismatch(err) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v; want a mismatch with %q", name, err, c.says)
		}
	}
}

// A tensor that the state has under several names is read once, from the first of them that
// the checkpoint has.
func TestLoadFillsATiedTensorOnce(t *testing.T) {
	x, y := counting(t, 1, 4, 2), counting(t, 50, 4, 2)
	mem := save(t, plan.State{"a": x, "b": y, "c": x, "wide": counting(t, 0, 8), "half": zeros(t, tensor.Float16, 4, 2), "value": 3})
	w := zeros(t, tensor.Float32, 4, 2)
	share := func() *shard.Tensor { return sharded(t, rows(2), zeros(t, tensor.Float32, 4, 2), 1) }
	s := share()
	bytes, _ := w.Bytes()
	again := must.Get(tensor.FromBytes(tensor.Float32, []int64{4, 2}, bytes))(t)
	turned := must.Get(w.Transpose(0, 1))(t)
	flat := must.Get(tensor.FromBytes(tensor.Float32, []int64{8}, bytes))(t)
	upper := func(name string) string { return strings.ToLower(name) }
	for name, c := range map[string]struct {
		d     *plan.DefaultLoad
		state plan.State
		reads string // the names that are read
		says  string // of the error
	}{
		"three names":               {&plan.DefaultLoad{}, plan.State{"a": w, "b": w, "c": w}, "a", ""},
		"names of a map":            {&plan.DefaultLoad{Rename: func(n string) string { return strings.TrimPrefix(n, "m.") }}, plan.State{"m": map[string]any{"b": w, "c": w}}, "b", ""},
		"the same memory":           {&plan.DefaultLoad{}, plan.State{"b": w, "c": again}, "b", ""},
		"a share":                   {&plan.DefaultLoad{}, plan.State{"a": s, "c": s}, "a", ""},
		"shares of the same memory": {&plan.DefaultLoad{}, plan.State{"a": s, "c": sharedWith(t, s)}, "a", ""},
		"other shares":              {&plan.DefaultLoad{}, plan.State{"a": s, "c": share()}, "a c", ""},
		"other memory":              {&plan.DefaultLoad{}, plan.State{"a": w, "c": zeros(t, tensor.Float32, 4, 2)}, "a c", ""},
		"the first is missing":      {&plan.DefaultLoad{}, plan.State{"0": w, "b": w, "c": w}, "b", ""},
		"the last is missing":       {&plan.DefaultLoad{}, plan.State{"c": w, "d": w}, "c", ""},
		"renamed":                   {&plan.DefaultLoad{Rename: upper}, plan.State{"C": w, "D": w}, "c", ""},
		"all are missing":           {&plan.DefaultLoad{}, plan.State{"d": w, "e": w}, "", `"e" is not in the checkpoint`},
		"a second of another shape": {&plan.DefaultLoad{}, plan.State{"a": w, "wide": again}, "", "size: the state wants [4 2], the checkpoint has [8]"},
		"a second of another dtype": {&plan.DefaultLoad{Cast: tensor.CastNone}, plan.State{"a": w, "half": again}, "", "dtype: the state wants float32, the checkpoint has float16"},
		"a value":                   {&plan.DefaultLoad{}, plan.State{"a": w, "value": again}, "", "the checkpoint has a value"},
		"another view":              {&plan.DefaultLoad{}, plan.State{"a": turned, "c": w}, "", "size: the state wants [2 4]"},
		"memory of another shape":   {&plan.DefaultLoad{}, plan.State{"a": w, "wide": flat}, "a wide", ""},
		"empty tensors":             {&plan.DefaultLoad{AllowMissing: true}, plan.State{"x": zeros(t, tensor.Float32, 0), "y": zeros(t, tensor.Float32, 0)}, "", ""},
	} {
		d := c.d
		must.Do(t, d.SetUp(plan.LoadSetup{State: c.state, Metadata: mem.md, Size: 1}))
		p, err := d.LocalPlan()
		if c.says != "" {
			if !isMismatch(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v; want a mismatch with %q", name, err, c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var reads []string
		for _, it := range p.Items {
			reads = append(reads, it.Source.FQN)
		}
		if got := strings.Join(reads, " "); got != c.reads {
			t.Errorf("%s: reads %q; want %q", name, got, c.reads)
		}
	}
	d := new(plan.DefaultLoad)
	if err := mem.load(d, plan.State{"a": w, "b": w}); err != nil || !tensor.Equal(w, x) || len(d.Missing()) > 0 {
		t.Errorf("load = %v, missing %q; want the values of the first name", err, d.Missing())
	}
}

// sharedWith returns a share with the memory of s.
func sharedWith(t *testing.T, s *shard.Tensor) *shard.Tensor {
	t.Helper()
	out := must.Get(shard.New(s.Layout(), s.GlobalShape(), s.Rank(), s.Local()))(t)
	return out
}

// keeping is a planner that keeps the map that it is given.
type keeping struct {
	plan.DefaultLoad
	given plan.State
}

func (k *keeping) SetUp(s plan.LoadSetup) error {
	k.given = s.State
	return k.DefaultLoad.SetUp(s)
}

// Names that a planner assigns after its SetUp are names of the state.
func TestAssignedNamesAreOfTheState(t *testing.T) {
	mem := save(t, plan.State{"m": map[string]any{"v": 1}, "n": 2})
	for name, known := range map[string]bool{"n": true, "m.v": true, "m.x": false, "x": false} {
		state, k := plan.State{"m": map[string]any{"v": 0}, "n": 0}, new(keeping)
		done := must.Get(plan.LoadSetup{State: state, Metadata: mem.md, Size: 1}.SetUp(k))(t)
		k.given[name] = 7
		err := done()
		slots := must.Get(plan.Flatten(state))(t)
		switch {
		case !known && (!errors.Is(err, plan.ErrProtocol) || len(slots) != 2):
			t.Errorf("%s: done = %v, the state is %v; want ErrProtocol", name, err, state)
		case known && (err != nil || slots[name].Value() != 7):
			t.Errorf("%s: done = %v, the state is %v; want 7", name, err, state)
		}
	}
}
