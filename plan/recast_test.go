package plan_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// narrowed saves float32 as another dtype.
func narrowed(to tensor.DType) func(string, tensor.DType) tensor.DType {
	return func(_ string, d tensor.DType) tensor.DType {
		if d == tensor.Float32 {
			return to
		}
		return d
	}
}

func TestSavePlanHasNewNamesAndDTypes(t *testing.T) {
	d := &plan.DefaultSave{
		Rename: func(fqn string) string { return strings.Replace(fqn, "model.", "z/", 1) },
		DType: func(fqn string, d tensor.DType) tensor.DType {
			if fqn == "model.w" {
				return tensor.BFloat16
			}
			return d
		},
	}
	p := localPlan(t, d, plan.State{"model": map[string]any{"w": counting(t, 0, 4), "n": 1}, "w": counting(t, 0, 4)})
	found := map[string]*plan.Info{}
	for i := range p.Items {
		found[p.Items[i].FQN()] = p.Items[i].Info
	}
	if len(found) != 3 || found["z/n"] == nil || found["z/n"].Path != nil {
		t.Fatalf("the plan has %v; want z/n without a path, z/w and w", found)
	}
	if in := found["z/w"]; in == nil || in.DType != tensor.BFloat16 || in.Path != nil {
		t.Errorf("z/w is %+v; want bfloat16 without a path", in)
	}
	if in := found["w"]; in == nil || in.DType != tensor.Float32 || len(in.Path) != 1 {
		t.Errorf("w is %+v; want float32 with its path", in)
	}
}

// Two ranks rename and cast, and a third layout loads: the elements equal the result of
// tensor.Cast.
func TestRenamedAndCastStateLoads(t *testing.T) {
	x := counting(t, 1.0/3, 8, 4)
	// The new names are in the opposite order.
	d := plan.DefaultSave{DType: narrowed(tensor.BFloat16), Rename: func(fqn string) string { return map[string]string{"a": "y", "b": "x", "c": "w"}[fqn] }}
	var states []plan.State
	for rank := range 2 {
		states = append(states, plan.State{"a": sharded(t, rows(2), x, rank), "b": counting(t, 0.1, 3), "c": "text"})
	}
	mem := saveBy(t, d, states...)
	got := plan.State{"y": zeros(t, tensor.Float32, 8, 4), "x": zeros(t, tensor.BFloat16, 3), "w": ""}
	mem.mustLoad(t, got)
	for name, was := range map[string]*tensor.Tensor{"y": x, "x": counting(t, 0.1, 3)} {
		want := must.Get(tensor.Cast(was, tensor.BFloat16))(t)
		now := must.Get(tensor.Cast(got[name].(*tensor.Tensor), tensor.BFloat16))(t)
		if !tensor.Equal(want, now) {
			t.Errorf("%s is %v; want %v", name, now.Contents(), want.Contents())
		}
	}
	if got["w"] != "text" {
		t.Errorf("w is %v; want text", got["w"])
	}
}

// A tensor that is converted while it is read is the same for any sequence of reads, also
// of a view that is not contiguous and of elements that become larger.
func TestCastStream(t *testing.T) {
	const n = 40_000 // more than are converted at once
	view := must.Get(counting(t, -1000, 3, n).Transpose(0, 1))(t)
	for _, to := range []tensor.DType{tensor.BFloat16, tensor.Float64, tensor.Complex64} {
		d := &plan.DefaultSave{DType: narrowed(to)}
		p := localPlan(t, d, plan.State{"x": view})
		data, err := d.Resolve(&p.Items[0])
		if err != nil || data.Stream == nil || data.Stream.DType() != to || data.Tensor != nil {
			t.Fatalf("Resolve = %+v, %v; want a stream of %v", data, err, to)
		}
		cast := must.Get(tensor.Cast(view, to))(t)
		want, got := cast.Contents(), make([]byte, cast.NumBytes())
		for off, step := 0, 1; off < len(got); step = step*3 + 1 { // neither end lies between elements
			end := min(off+step, len(got))
			must.Do(t, data.Stream.ReadAt(t.Context(), got[off:end], int64(off)))
			off = end
		}
		if !bytes.Equal(got, want) {
			t.Errorf("the stream of %v differs from tensor.Cast", to)
		}
		if err := data.Stream.ReadAt(t.Context(), make([]byte, 2), int64(len(want))-1); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("a read beyond the end = %v; want ErrShape", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := data.Stream.ReadAt(ctx, make([]byte, 2), 0); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled read = %v; want Canceled", err)
		}
		if err := data.Stream.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSaveRefusesNewNamesAndDTypes(t *testing.T) {
	for name, c := range map[string]struct {
		d    plan.DefaultSave
		text string
	}{
		"a name twice":    {plan.DefaultSave{Rename: func(string) string { return "same" }}, `also renamed to "same"`},
		"an empty name":   {plan.DefaultSave{Rename: func(string) string { return "" }}, `"a"`},
		"an unknown type": {plan.DefaultSave{DType: narrowed(tensor.DType(99))}, `"a"`},
		"numbers lost":    {plan.DefaultSave{DType: narrowed(tensor.Int8)}, "fractions"},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.d
			must.Do(t, d.SetUp(plan.SaveSetup{State: plan.State{"a": counting(t, 0, 2), "b": 1}, Size: 1}))
			if _, err := d.LocalPlan(); !errors.Is(err, plan.ErrState) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("LocalPlan = %v; want ErrState with %s", err, c.text)
			}
		})
	}
}

// Two names of one tensor have one alias, unless they are saved in different dtypes.
func TestAliasOfCastTensors(t *testing.T) {
	x := counting(t, 0, 2)
	d := &plan.DefaultSave{DType: func(fqn string, d tensor.DType) tensor.DType {
		if fqn == "c" {
			return tensor.Float16
		}
		return d
	}}
	p := localPlan(t, d, plan.State{"a": x, "b": x, "c": x})
	a, b, c := p.Items[0].Alias, p.Items[1].Alias, p.Items[2].Alias
	if a == 0 || a != b || c != 0 {
		t.Errorf("a, b and c have the aliases %d, %d and %d; want the same number for a and b, and none for c", a, b, c)
	}
}

// A part is not converted if its dtype differs from the dtype of its tensor: storage refuses
// it.
func TestPartOfOtherDTypeIsNotCast(t *testing.T) {
	x := cut(t, counting(t, 0, 2), span(0, 2))
	d := &plan.DefaultSave{DType: narrowed(tensor.Float16)}
	p := localPlan(t, d, plan.State{"x": other{x}})
	data, err := d.Resolve(&p.Items[0])
	if err != nil || data.Stream != nil || data.Tensor == nil {
		t.Errorf("Resolve = %+v, %v; want the part as it is", data, err)
	}
}

// other has parts of float32 and says that they are float64.
type other struct{ *ramp }

func (other) DType() tensor.DType { return tensor.Float64 }
