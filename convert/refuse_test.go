package convert_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// odd returns a store with objects that not every format holds.
func odd(t *testing.T) *mem.Store {
	s := &mem.Store{Name: "source"}
	save(t, s, plan.State{
		"w":    storagetest.Filled(t, tensor.Float32, []int64{4}, 1),
		"plan": &value.Object{Module: "somebody", Name: "Own", Call: true, Args: value.Tuple{int64(1)}},
		"step": 3,
	})
	return s
}

func TestObjectsThatTheTargetCannotHold(t *testing.T) {
	for _, c := range []struct {
		format  string
		refused []string
	}{
		{formats.Native, nil},
		{formats.TorchDCP, []string{"plan"}},
		{formats.Torch, []string{"plan"}},
		{formats.Hyper, []string{"plan"}},
		{formats.HF, []string{"plan", "step"}},
	} {
		t.Run(c.format, func(t *testing.T) {
			src := open(t, odd(t))
			dst := &mem.Store{Name: "target"}
			_, err := run(context.Background(), src, &convert.Options{Merge: true}, toFormat(c.format, dst))
			e, refused := errors.AsType[*convert.RefusedError](err)
			if refused != (c.refused != nil) || !refused && err != nil {
				t.Fatalf("Run = %v; want %v refused", err, c.refused)
			}
			if !refused {
				return
			}
			if !errors.Is(err, storage.ErrNotRepresentable) || !slices.Equal(namesOf(e.Objects), c.refused) || len(e.Tensors) > 0 {
				t.Errorf("Run = %v; want %v refused by name", err, c.refused)
			}
			if left := storagetest.Names(t, dst); len(left) > 0 {
				t.Errorf("%v were written before that", left)
			}
			rep, err := run(context.Background(), src, &convert.Options{Merge: true, SkipObjects: true}, toFormat(c.format, dst))
			if err != nil || !slices.Equal(rep.Skipped, c.refused) {
				t.Errorf("Run without objects = %+v, %v; want %v skipped", rep, err, c.refused)
			}
			if got := digests(t, dst); got["w"].Kind == "" || len(got) != 3-len(c.refused) {
				t.Errorf("the target holds %v", got)
			}
		})
	}
}

func namesOf(rs []convert.Refused) []string {
	var out []string
	for _, r := range rs {
		out = append(out, r.Name)
	}
	return out
}

func TestTypesThatTheTargetLacksAreRefusedByName(t *testing.T) {
	s := &mem.Store{Name: "source"}
	state := plan.State{"step": 3}
	for i := range 12 {
		state[fmt.Sprintf("c%02d", i)] = storagetest.Filled(t, tensor.Complex128, []int64{2}, byte(i))
	}
	save(t, s, state)
	dst := &mem.Store{Name: "target"}
	_, err := run(context.Background(), open(t, s), &convert.Options{Merge: true, SkipObjects: true}, toFormat(formats.HF, dst))
	e, ok := errors.AsType[*convert.RefusedError](err)
	if !ok || len(e.Tensors) != 12 {
		t.Fatalf("Run = %v; want 12 tensors refused", err)
	}
	if text := err.Error(); !strings.Contains(text, `"c09"`) || strings.Contains(text, `"c10"`) || !strings.Contains(text, "and 3 more") {
		t.Errorf("the error names %s; want ten names and how many more", text)
	}
	_, err = run(context.Background(), open(t, s), &convert.Options{Merge: true, SkipObjects: true, DType: []string{"*=float32"}, Cast: tensor.CastAny}, toFormat(formats.HF, dst))
	if err != nil {
		t.Errorf("Run after a cast = %v", err)
	}
}

func TestNumbersOutOfRangeAreRefusedByName(t *testing.T) {
	s := &mem.Store{Name: "source"}
	n := must.Get(tensor.Of([]int64{4}, []int64{1, -7, 300, 2}))(t)
	save(t, s, plan.State{"n": n, "x": storagetest.Filled(t, tensor.Float32, []int64{2}, 1)})
	for name, c := range map[string]struct {
		rule string
		cast tensor.CastPolicy
		want []string // in the error
	}{
		"out of range":            {rule: "n=int8", want: []string{`"n"`, "300", "cast=any"}},
		"in range":                {rule: "n=int16"},
		"out of range, allowed":   {rule: "n=int8", cast: tensor.CastAny},
		"fractions":               {rule: "x=int64", want: []string{`"x"`, "float32 to int64", "cast=any"}},
		"fractions, allowed":      {rule: "x=int64", cast: tensor.CastAny},
		"not a wider type":        {rule: "float16", cast: tensor.CastWiden, want: []string{`"x"`}},
		"floats that are rounded": {rule: "float16"},
	} {
		t.Run(name, func(t *testing.T) {
			dst := &mem.Store{Name: "target"}
			_, err := run(t.Context(), open(t, s), &convert.Options{DType: []string{c.rule}, Cast: c.cast}, toFormat(formats.Native, dst))
			if (err == nil) != (c.want == nil) || err != nil && !errors.Is(err, tensor.ErrCast) {
				t.Fatalf("Run = %v; want an error: %v", err, c.want != nil)
			}
			for _, word := range c.want {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("Run = %v; want it to have %s", err, word)
				}
			}
			if left := storagetest.Names(t, dst); err != nil && slices.Contains(left, "cairn.json") {
				t.Errorf("Run wrote %v", left)
			}
		})
	}
}

func TestCheckWritesNothing(t *testing.T) {
	job := must.Get(convert.Plan(t.Context(), open(t, odd(t)), &convert.Options{Merge: true}))(t)
	for format, want := range map[string]error{formats.Native: nil, formats.Torch: storage.ErrNotRepresentable} {
		dst := &mem.Store{Name: "target"}
		to := toFormat(format, dst)
		if _, err := convert.Check(t.Context(), job, to); !errors.Is(err, want) {
			t.Errorf("Check(%s) = %v; want %v", format, err, want)
		}
		if left := storagetest.Names(t, dst); len(left) > 0 {
			t.Errorf("Check(%s) wrote %v", format, left)
		}
	}
}
