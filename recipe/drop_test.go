package recipe_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TestCopyOf checks which tensors are compared before they are dropped as copies.
func TestCopyOf(t *testing.T) {
	const keep = "[[rule]]\na = 'x.{i}'\nb = 'y.{i}'\n[[drop]]\nreason = 'again'\n"
	two := shapes{"x.0": {2, 3}, "x.1": {4}}
	stacked := sides + "[captures]\ni = 2\n[stack]\na = {i = true}\n[[rule]]\na = 'x.{i}.w'\nb = 'y.{i}.w'\n[[drop]]\nreason = 'again'\n"
	for _, c := range []struct {
		name, text string
		from       shapes
		set        map[string]any
		checks     string // the expected comparisons; if err is empty
		err        string
	}{
		{"captures", sides + keep + "a = 'copy.{i}'\ncopy_of = 'x.{i}'", two.with("copy.0", 2, 3).with("copy.1", 4), nil, "copy.0=x.0 copy.1=x.1", ""},
		{"a copy that is not there", sides + keep + "a = 'copy.{i}'\ncopy_of = 'x.{i}'", two.with("copy.1", 4), nil, "copy.1=x.1", ""},
		{"no copy", sides + keep + "a = 'copy.{i}'\ncopy_of = 'z'", two, nil, "", ""},
		{"a formula", sides + keep + "a = 'copy.{i + 1}'\ncopy_of = 'x.{i}'", two.with("copy.2", 4), nil, "copy.2=x.1", ""},
		{"a star", sides + keep + "a = 'copy.*'\ncopy_of = 'x.1'", two.with("copy.a", 4).with("copy.b", 4), nil, "copy.a=x.1 copy.b=x.1", ""},
		{"a star that matches the original", sides + keep + "a = '*.1'\ncopy_of = 'x.1'", two.with("copy.1", 4), nil, "copy.1=x.1", ""},
		{"the second name", sides + keep + "a = 'copy'\ncopy_of = 'head | x.1'", two.with("copy", 4), nil, "copy=x.1", ""},
		{"a condition", sides + "[variables]\nfirst = 1\n" + keep + "when = 'i < first'\na = 'copy.{i}'\ncopy_of = 'x.{i}'", two.with("copy.0", 2, 3), nil, "copy.0=x.0", ""},
		{"a condition that does not hold", sides + "[variables]\nfirst = 1\n" + keep + "when = 'i < first'\na = 'copy.{i}'\ncopy_of = 'x.{i}'", two.with("copy.1", 4), nil, "", `no rule uses "copy.1"`},
		{"padding is not checked", sides + keep + "a = 'copy.{i}'\ncopy_of = 'x.{i}'", two.with("copy.1", 4), map[string]any{"check_padding": false}, "copy.1=x.1", ""},
		{"stacked", stacked + "a = 'copy.{i}.w'\ncopy_of = 'x.{i}.w'", shapes{"x.w": {2, 3}, "copy.w": {2, 3}}, nil, "copy.w=x.w", ""},
		{"no original", sides + keep + "a = 'copy'\ncopy_of = 'head | tail'", two.with("copy", 4), nil, "", `the rule in line 5: the recipe does not fit the checkpoint: it drops "copy" as a copy of "head" or "tail", which the checkpoint does not have`},
		{"another shape", sides + keep + "a = 'copy'\ncopy_of = 'x.1'", two.with("copy", 5), nil, "", `it drops "copy" ([5] of float32) as a copy of "x.1" ([4] of float32), but the two differ in shape or dtype`},
		{"itself", sides + keep + "a = 'copy'\ncopy_of = 'copy'", two.with("copy", 5), nil, "", `it drops "copy" as a copy of "copy", which is dropped too (line 5): name a tensor that a rule uses`},
		{"copies of each other", sides + keep + "a = 'p'\ncopy_of = 'q'\n[[drop]]\nreason = 'again'\na = 'q'\ncopy_of = 'p'", two.with("p", 5).with("q", 5), nil, "", `the rule in line 5: the recipe does not fit the checkpoint: it drops "p" as a copy of "q", which is dropped too (line 9)`},
		{"an original that no rule uses", sides + keep + "a = 'p'\ncopy_of = 'q'", two.with("p", 5).with("q", 5), nil, "", `no rule uses "q"`},
		{"a copy that a rule uses", sides + keep + "a = 'x.0'\ncopy_of = 'x.1'", two, nil, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := recipe.Parse("test", []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			b, err := recipe.Bind(r, "a", c.from.metadata(), recipe.Options{Set: c.set})
			if c.err != "" {
				if !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			prove(t, c.from, b)
			var checks, dropped, want []string
			for _, x := range b.Checks {
				checks = append(checks, x.Source+"="+x.Other)
				want = append(want, x.Source+": again; a copy of "+x.Other)
			}
			for _, d := range b.Dropped {
				dropped = append(dropped, d.Name+": "+d.Reason)
			}
			if strings.Join(checks, " ") != c.checks || !slices.Equal(dropped, want) {
				t.Errorf("%v, want %s; dropped %q, want %q", checks, c.checks, dropped, want)
			}
		})
	}
}

// TestCopyOfTypes checks that a tensor is not a copy of another type, or of a value.
func TestCopyOfTypes(t *testing.T) {
	r, err := recipe.Parse("test", []byte(sides+"[[rule]]\na = 'x'\nb = 'x'\n[[drop]]\nreason = 'again'\na = 'y'\ncopy_of = 'x'"))
	if err != nil {
		t.Fatal(err)
	}
	md := shapes{"x": {2}, "y": {2}}.metadata()
	md.Entries[1].Tensor.DType = tensor.BFloat16
	if _, err := recipe.Bind(r, "a", md, recipe.Options{}); !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), `it drops "y" ([2] of bfloat16) as a copy of "x" ([2] of float32)`) {
		t.Error(err)
	}
	md.Entries[1].Tensor, md.Entries[1].Bytes = nil, &meta.Bytes{}
	if _, err := recipe.Bind(r, "a", md, recipe.Options{}); !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), `it drops "y", which is not a tensor, as a copy of "x"`) {
		t.Error(err)
	}
}

// TestDropBesideAnyText checks that rules for certain names and rules that drop names come
// before {rest*}, wherever they are in the file, in both directions.
func TestDropBesideAnyText(t *testing.T) {
	const rest = "[[rule]]\na = 'm.{rest*}'\nb = '{rest*}'\n"
	for _, c := range []struct {
		name, rules, from string
		names             []string
		made, dropped     string
		err               string
	}{
		{name: "a drop", rules: "[[drop]]\na = 'm.o.*'\nreason = 'r'\n", from: "a", names: []string{"m.w", "m.o.x"}, made: "w", dropped: "m.o.x"},
		{name: "a drop of the other side", rules: "[[drop]]\nb = 'o.*'\nreason = 'r'\n", from: "b", names: []string{"w", "o.x"}, made: "m.w", dropped: "o.x"},
		{name: "a drop that is not for this side", rules: "[[drop]]\nb = 'm.o.*'\nreason = 'r'\n", from: "a", names: []string{"m.w", "m.o.x"}, made: "o.x w"},
		{name: "a drop with captures", rules: "[[drop]]\nb = 'o.{i}'\nreason = 'r'\n", from: "b", names: []string{"w", "o.0", "o.1"}, made: "m.w", dropped: "o.0 o.1"},
		{name: "a drop with a false condition", rules: "[[drop]]\nwhen = 'false'\na = 'm.o.*'\nreason = 'r'\n", from: "a", names: []string{"m.w", "m.o.x"}, made: "o.x w"},
		{name: "a copy of a name that {rest*} uses", rules: "[[drop]]\na = 'm.v'\ncopy_of = 'm.w'\nreason = 'r'\n", from: "a", names: []string{"m.w", "m.v"}, made: "w", dropped: "m.v"},
		{name: "a fill, backwards", rules: "[[fill]]\nb = 'bias.{i} [2]'\nreason = 'r'\ndtype = 'int8'\n", from: "b", names: []string{"w", "bias.0"}, made: "m.w", dropped: "bias.0"},
		{name: "a fill", rules: "[captures]\ni = 1\n[[fill]]\nb = 'bias.{i} [2]'\nreason = 'r'\ndtype = 'int8'\n", from: "a", names: []string{"m.w"}, made: "bias.0 w"},
		{name: "a fill of a name that is there", rules: "[captures]\ni = 1\n[[fill]]\nb = 'bias.{i} [2]'\nreason = 'r'\ndtype = 'int8'\n", from: "a", names: []string{"m.w", "m.bias.0"}, err: `makes "bias.0" too`},
		{name: "a rule for one name", rules: "[[rule]]\na = 'm.w'\nb = 'weight'\n", from: "a", names: []string{"m.w", "m.x"}, made: "weight x"},
		{name: "a rule and a drop", rules: "[[rule]]\na = 'm.w'\nb = 'weight'\n[[drop]]\na = 'm.w'\nreason = 'r'\n", from: "a", names: []string{"m.w", "m.x"}, made: "weight x"},
		{name: "a drop of everything", rules: "[[drop]]\na = '*'\nreason = 'r'\n", from: "a", names: []string{"m.w"}, err: "no name that other rules leave matches m.{rest*}"},
	} {
		for place, text := range map[string]string{"before": sides + c.rules + rest, "after": sides + rest + c.rules} {
			t.Run(c.name+" "+place, func(t *testing.T) {
				r, err := recipe.Parse("test", []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				s := shapes{}
				for _, n := range c.names {
					s[n] = []int64{2}
				}
				b, err := recipe.Bind(r, c.from, s.metadata(), recipe.Options{})
				if c.err != "" {
					if !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), c.err) {
						t.Errorf("%v, want %s", err, c.err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				var made, dropped []string
				for _, x := range b.Tensors {
					made = append(made, x.Name)
				}
				for _, d := range b.Dropped {
					dropped = append(dropped, d.Name)
				}
				if strings.Join(made, " ") != c.made || strings.Join(dropped, " ") != c.dropped {
					t.Errorf("made %v, want %s; dropped %v, want %s", made, c.made, dropped, c.dropped)
				}
			})
		}
	}
}

func TestGroup(t *testing.T) {
	got := recipe.Group([]recipe.Dropped{
		{Name: "args", Reason: "a setting"}, {Name: "l.0.x", Reason: "state"}, {Name: "l.1.x", Reason: "state"}, {Name: "l.2.x", Reason: "a setting"}, {Name: "l.5.x", Reason: "state"},
	})
	want := []recipe.Dropped{{Name: "args", Reason: "a setting"}, {Name: "l.2.x", Reason: "a setting"}, {Name: "l.{0..1,5}.x (3 names)", Reason: "state"}}
	if !slices.Equal(got, want) {
		t.Errorf("Group = %q; want %q", got, want)
	}
}
