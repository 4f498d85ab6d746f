package megatron_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/megatron"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TestShuffled lays out parameters in orders that no release of Megatron has: the values show
// the order. Norms that are all ones then have states that may be exchanged, and a note says so.
func TestShuffled(t *testing.T) {
	for claim, j := range map[string]job{
		"one rank":                 {tp: 1, pp: 1, dp: 1, vpp: 1, layers: 3, shuffled: true},
		"tensor parallel, buckets": {tp: 2, pp: 1, dp: 3, vpp: 1, layers: 2, bucket: 150, shuffled: true},
		"pipeline, interleaved":    {tp: 1, pp: 2, dp: 1, vpp: 2, layers: 4, shuffled: true},
		"tied":                     {tp: 1, pp: 2, dp: 1, vpp: 1, layers: 2, tied: true, shuffled: true},
		"experts":                  {tp: 1, pp: 1, dp: 1, vpp: 1, ep: 2, layers: 2, shuffled: true},
	} {
		t.Run(claim, func(t *testing.T) {
			c := j.save(t)
			b, notes, err := megatron.Bind(c.md, megatron.Options{Match: c.match})
			must.Do(t, err)
			if len(notes) != 0 {
				t.Errorf("notes %q; want none", notes)
			}
			c.compare(t, b)
		})
	}

	c := job{tp: 1, pp: 1, dp: 1, vpp: 1, layers: 3, shuffled: true, ones: true}.save(t)
	_, notes, err := megatron.Bind(c.md, megatron.Options{Match: c.match})
	must.Do(t, err)
	if len(notes) != 1 || !strings.Contains(notes[0], "they may be exchanged") || !strings.Contains(notes[0], "norm") {
		t.Errorf("notes %q; want one that names norms and says that they may be exchanged", notes)
	}
}

// TestWrongOrder exchanges master weights, so that they are not where the chunks of the
// bucket say that parameters begin: no order is right.
func TestWrongOrder(t *testing.T) {
	for claim, change := range map[string]func([]int64) []int64{
		"turned by an alignment": func(v []int64) []int64 { return slices.Concat(v[64:], v[:64]) },
		"backwards":              func(v []int64) []int64 { slices.Reverse(v); return v },
		"all zero":               func(v []int64) []int64 { return make([]int64, len(v)) },
		"one wrong element":      func(v []int64) []int64 { v[0]++; return v },
	} {
		c := job{tp: 1, pp: 1, dp: 1, vpp: 1, layers: 2}.save(t)
		for name, v := range c.values {
			if strings.HasSuffix(name, ".param") {
				c.values[name] = change(slices.Clone(v))
			}
		}
		for _, unproven := range []bool{false, true} { // which is about other buckets
			b, _, err := megatron.Bind(c.md, megatron.Options{Match: c.match, Unproven: unproven})
			must.Do(t, err)
			if wrong := c.wrong(t, b); len(wrong) == 0 || claim == "one wrong element" && !slices.Equal(wrong, []string{"output_layer.weight"}) {
				t.Errorf("%s: the checks of %q fail", claim, wrong)
			}
		}
	}
}

// wrong returns the weights that are not the master weights, rounded.
func (c *checkpoint) wrong(t *testing.T, b *recipe.Binding) (out []string) {
	t.Helper()
	for _, k := range b.Checks {
		if ok := must.Get(c.match(k))(t); !ok && !slices.Contains(out, k.Other) {
			out = append(out, k.Other)
		}
	}
	return out
}

// inexact are changes of the metadata after which nothing proves the states of buckets.
var inexact = map[string]struct {
	change func(e *meta.Entry)
	reason string
}{
	"weights of 8 bits": {func(e *meta.Entry) {
		e.FQN = strings.Replace(e.FQN, "dtype_(torch.bfloat16", "dtype_(torch.uint8", 1)
	}, "torch.uint8"},
	"remainders of master weights": {func(e *meta.Entry) {
		if strings.HasSuffix(e.FQN, ".param") {
			e.Tensor.DType = tensor.Int16
		}
	}, "int16"},
	"no master weights": {func(e *meta.Entry) {
		e.FQN = strings.Replace(e.FQN, ".param", ".momentum", 1)
	}, "no state param"},
}

// TestUnproven takes states that no value proves if the caller allows it, at the places at
// which Megatron lays them out.
func TestUnproven(t *testing.T) {
	for claim, x := range inexact {
		t.Run(claim, func(t *testing.T) {
			c := job{tp: 2, pp: 1, dp: 2, vpp: 1, layers: 2, bucket: 200}.save(t)
			values := maps.Clone(c.values)
			for i := range c.md.Entries {
				e := &c.md.Entries[i]
				was := e.FQN
				x.change(e)
				c.values[e.FQN] = values[was]
			}
			slices.SortFunc(c.md.Entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })

			if _, _, err := megatron.Bind(c.md, megatron.Options{Match: c.match}); !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), x.reason) || !strings.Contains(err.Error(), "--set unproven=true") {
				t.Errorf("Bind = %v; want %v that says %q and how to take the states", err, recipe.ErrIncomplete, x.reason)
			}

			b, notes, err := megatron.Bind(c.md, megatron.Options{Unproven: true, Match: func(recipe.Check) (bool, error) {
				t.Error("values are compared that prove nothing")
				return false, nil
			}})
			must.Do(t, err)
			c.compare(t, b)
			if len(notes) != 2 || !strings.Contains(notes[0], "no value proves") || b.Variables[megatron.Unproven] != true {
				t.Errorf("notes %q, variables %v", notes, b.Variables)
			}
			for _, k := range b.Checks { // norms have the same states on both ranks
				if !megatron.IsState(k.Other) {
					t.Errorf("the check of %s compares with the weight %s", k.Source, k.Other)
				}
			}
		})
	}
}
