package convert_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

func TestRenameRules(t *testing.T) {
	for _, c := range []struct {
		rules      []string
		name, want string
	}{
		{nil, "a.b", "a.b"},
		{[]string{"model.*=*"}, "model.w", "w"},
		{[]string{"model.*=*"}, "xmodel.w", "xmodel.w"},
		{[]string{"*=model.*"}, "w", "model.w"},
		{[]string{"*.attn.*=*.attention.*"}, "l.0.attn.q.attn.k", "l.0.attention.q.attn.k"},
		{[]string{"a*c=x"}, "abc", "x"},
		{[]string{"a.*.b.*=*"}, "a.1.b.2", "1"},
		{[]string{`a\*=b`}, "a*", "b"},
		{[]string{"cost=$1"}, "cost", "$1"},
		{[]string{`a\=b=c`}, "a=b", "c"},
		{[]string{`s/^model\.//`}, "model.model.w", "model.w"},
		{[]string{`s/a/b/`}, "aaa", "baa"},
		{[]string{`s/a/b/g`}, "aaa", "bbb"},
		{[]string{`s/layers\.(\d+)/h.${1}x/`}, "m.layers.12.w", "m.h.12x.w"},
		{[]string{`s|a/b|c\|d|`}, "a/b", "c|d"},
		{[]string{"a=b", "b=c", "s/c/d/"}, "a", "d"},
		{[]string{"step=steps"}, "step", "steps"},
	} {
		r, err := convert.ParseRename(c.rules)
		if err != nil {
			t.Errorf("ParseRename(%q) = %v", c.rules, err)
			continue
		}
		if got := r.Apply(c.name); got != c.want {
			t.Errorf("%q applied to %q = %q; want %q", c.rules, c.name, got, c.want)
		}
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	src := open(t, saved(t, 2))
	for claim, c := range map[string]struct {
		o    convert.Options
		want error
		text string
	}{
		"a rule without a target":         {convert.Options{Rename: []string{"abc"}}, convert.ErrOption, "FROM=TO"},
		"more stars than there were":      {convert.Options{Rename: []string{"a.*=*.*"}}, convert.ErrOption, "stars"},
		"a wrong regular expression":      {convert.Options{Rename: []string{"s/(/x/"}}, convert.ErrOption, "missing closing"},
		"unknown flags":                   {convert.Options{Rename: []string{"s/a/x/z"}}, convert.ErrOption, "s/RE/TO/g"},
		"an unknown dtype":                {convert.Options{DType: []string{"float17"}}, convert.ErrOption, "float17"},
		"a wrong glob":                    {convert.Options{Select: []string{"["}}, inspect.ErrPattern, "["},
		"a pattern without a match":       {convert.Options{Select: []string{"modle.*"}}, plan.ErrMissing, "modle.*"},
		"an exclusion without a match":    {convert.Options{Exclude: []string{"x.*"}}, plan.ErrMissing, "x.*"},
		"a new name without a match":      {convert.Options{Rename: []string{"modle.*=*"}}, plan.ErrMissing, "modle.*=*"},
		"a rule after its names are gone": {convert.Options{Rename: []string{"step=x", "step=y"}}, plan.ErrMissing, "step=y"},
		"a dtype without a match":         {convert.Options{DType: []string{"x.*=float32"}}, plan.ErrMissing, "x.*"},
		"a placement without a match":     {convert.Options{WorldSize: 2, Placements: []string{"x.*=R"}}, plan.ErrMissing, "x.*"},
		"no name left":                    {convert.Options{Exclude: []string{"*"}}, convert.ErrEmpty, ""},
		"names that become one":           {convert.Options{Rename: []string{"model.layers.*.w=w"}}, convert.ErrCollision, `"model.layers.0.w" and "model.layers.1.w"`},
		"an empty name":                   {convert.Options{Rename: []string{"step="}}, meta.ErrInvalid, `"step"`},
		"merged and sharded":              {convert.Options{Merge: true, WorldSize: 2}, convert.ErrOption, "not both"},
		"placements without ranks":        {convert.Options{Placements: []string{"*=R"}}, convert.ErrOption, "mesh"},
		"too many placements":             {convert.Options{WorldSize: 2, Placements: []string{"*=R,R"}}, convert.ErrOption, "1 dimensions"},
		"no placement":                    {convert.Options{WorldSize: 2, Placements: []string{"*=P"}}, convert.ErrOption, `"P"`},
		"a world unlike its mesh":         {convert.Options{WorldSize: 5, Mesh: []int{2, 2}}, convert.ErrOption, "5 ranks"},
		"an empty mesh":                   {convert.Options{Mesh: []int{0}}, convert.ErrOption, ""},
		"a negative world":                {convert.Options{WorldSize: -1}, convert.ErrOption, ""},
		"more ranks than anybody has":     {convert.Options{WorldSize: 1 << 30}, convert.ErrOption, "at most"},
		"a mesh larger than any integer":  {convert.Options{Mesh: []int{1 << 31, 1 << 31, 1 << 31}}, convert.ErrOption, ""},
	} {
		t.Run(claim, func(t *testing.T) {
			_, err := convert.Plan(t.Context(), src, &c.o)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Plan = %v; want %v with %q", err, c.want, c.text)
			}
		})
	}
}

func TestSelectedNamesAreConverted(t *testing.T) {
	src := saved(t, 2)
	dst, rep := converted(t, src, &convert.Options{
		Select: []string{"model.*", "step"}, Exclude: []string{"*.layers.1.*", "*.m"}, Rename: []string{"model.layers.*=h.*", "model.*=*"},
		DType: []string{"bfloat16", "model.norm=float32"},
	})
	got := digests(t, dst)
	want := []string{"empty", "h.0.w", "h.2.w", "ids", "norm", "scale", "step"}
	if d := cmp.Diff(want, slices.Sorted(maps.Keys(got))); d != "" {
		t.Errorf("names: -want +got\n%s", d)
	}
	for name, dtype := range map[string]string{"h.0.w": "bfloat16", "norm": "float32", "ids": "int64", "scale": "bfloat16"} {
		if got[name].DType != dtype {
			t.Errorf("%s is %s; want %s", name, got[name].DType, dtype)
		}
	}
	if rep.Tensors != 6 || rep.Objects != 1 {
		t.Errorf("report %+v; want 6 tensors and an object", rep)
	}
	state, _, err := cairn.LoadNew(t.Context(), dst, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, ok := state["h"].([]any)
	if !ok || len(h) != 3 || h[1] != nil {
		t.Errorf("h = %v; want a list with a gap: what was renamed keeps its structure", state["h"])
	}
}

func TestRenamedPathsAreConsistent(t *testing.T) {
	src := saved(t, 1)
	for claim, rules := range map[string][]string{
		"a list without its parents":      {"model.layers.*=*"},
		"a list that becomes a map":       {"model.norm=model.layers.norm"},
		"a value inside of a value":       {"model.norm=step.norm"},
		"everything at the top":           {`s/\./_/g`},
		"everything one deeper":           {"*=x.*"},
		"a list within another":           {"model.layers.*=model.layers.0.inner.*", "model.norm=model.layers.0.norm"},
		"a position and a key of a digit": {"model.norm=model.layers.7"},
	} {
		t.Run(claim, func(t *testing.T) {
			dst, _ := converted(t, src, &convert.Options{Rename: rules})
			state, _, err := cairn.LoadNew(t.Context(), dst, nil)
			if err != nil {
				t.Fatalf("LoadNew = %v", err)
			}
			again := cairn.State{}
			maps.Copy(again, state)
			if _, err := cairn.Load(t.Context(), dst, again, &cairn.LoadOptions{RejectUnexpected: true}); err != nil {
				t.Errorf("Load = %v", err)
			}
		})
	}
}
