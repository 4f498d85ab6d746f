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
	_, err = run(context.Background(), open(t, s), &convert.Options{Merge: true, SkipObjects: true, DType: []string{"*=float32"}}, toFormat(formats.HF, dst))
	if err != nil {
		t.Errorf("Run after a cast = %v", err)
	}
}

func TestCheckWritesNothing(t *testing.T) {
	job, err := convert.Plan(t.Context(), open(t, odd(t)), &convert.Options{Merge: true})
	if err != nil {
		t.Fatal(err)
	}
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
