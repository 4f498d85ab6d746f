package recipe_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

// FuzzParse checks that no text makes Parse panic, and that its errors wrap ErrSyntax.
func FuzzParse(f *testing.F) {
	for _, r := range recipe.Shipped() {
		f.Add([]byte(r.Text))
	}
	f.Add([]byte(model))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := recipe.Parse("fuzz", text)
		if err != nil && !errors.Is(err, recipe.ErrSyntax) || err == nil && r.Text != string(text) {
			t.Error(err)
		}
	})
}

// FuzzBind checks that no recipe and no names make Bind panic, and that a recipe that fits
// uses each element once. names has a line for each tensor, with its shape: "x.0.w 2 3".
func FuzzBind(f *testing.F) {
	f.Add([]byte(model), "embed 7 5\nl.0.q 12 5\nl.0.k 6 5\nl.0.v 6 5\nl.0.e.0.up 4 5\nl.0.e.1.up 4 5", `{"heads": 4, "kv": 2}`, false)
	f.Add([]byte(model), "tokens 7 5\nm.0.qkv 24 5\nm.0.up 2 4 5", `{"heads": 4, "kv": 2}`, true)
	f.Add([]byte(rule("x.{i}", "y.{i + 1}")), "x.0 1\nx.1 1", "", false)
	f.Add([]byte(rule("x [n (1 + 1)]", "y [n + n]")), "x 6", "", false)
	f.Add([]byte(rule("{rest*}", "m.{rest*}")), "a 1\nb", "", false)
	f.Add([]byte(rule("x.{e} [n, ...]", "x [e, ..., n]")), "x 3 5 1099511627776", "", true)
	f.Add([]byte(rule("x.{i} [n (1 + 1)]", "y [i, n + zeros(k) + n]")+"[variables]\nk = 1099511627776\n[captures]\ni = 2"), "x.0 6\nx.1 6", "", false)
	f.Add([]byte(rule("x.{i} [n, m]", "y [i, m, n + zeros(3)]")+"quantize = {b = {dtype = 'float8_e4m3fn', block = [2, 3]}}"), "x.0 4 5\nx.1 4 5", "", false)
	f.Add([]byte(rule("x", "y")+"quantize = {a = {dtype = 'float8_e5m2', scale = '.s'}}"), "y 4 0", "", true)
	// Hundreds of thousands of names are within the bounds, but take seconds.
	slow := regexp.MustCompile(`(^|[^0-9])[1-9][0-9]{4,7}([^0-9]|$)`)
	f.Fuzz(func(t *testing.T, text []byte, names, config string, reverse bool) {
		if slow.Match(text) || slow.MatchString(names) || slow.MatchString(config) {
			return
		}
		r, err := recipe.Parse("fuzz", text)
		if err != nil {
			return
		}
		from := shapes{}
		for line := range strings.Lines(names) {
			words := strings.Fields(line)
			if len(words) == 0 || meta.CheckFQN(words[0]) != nil {
				continue
			}
			shape := []int64{}
			for _, w := range words[1:] {
				var n int64
				if json.Unmarshal([]byte(w), &n) == nil {
					shape = append(shape, n)
				}
			}
			if _, err := tensor.NumBytes(tensor.Float32, shape); err == nil && len(shape) <= tensor.MaxDims {
				from[words[0]] = shape
			}
		}
		var o recipe.Options
		_ = json.Unmarshal([]byte(config), &o.Config) // without a configuration if it is not JSON
		side := r.Sides[0]
		if reverse {
			side = r.Sides[1]
		}
		b, err := recipe.Bind(r, side, from.metadata(), o)
		if err != nil {
			return
		}
		for i := range b.Tensors {
			x := &b.Tensors[i]
			var pieces []remap.Piece
			for _, p := range x.Parts {
				pieces = append(pieces, p.Map)
			}
			shape := x.Shape
			if q := x.Quantized; q != nil {
				shape = q.Shape
			}
			if err := remap.Exact(shape, pieces); err != nil {
				t.Fatalf("%s: %v", x.Name, err)
			}
		}
		used := map[string]bool{}
		for _, x := range b.Tensors {
			for _, p := range x.Parts {
				used[p.Source] = true
			}
		}
		for _, c := range b.Checks {
			used[c.Source] = true
		}
		for _, d := range b.Dropped {
			used[d.Name] = true
		}
		for name, shape := range from {
			n, _ := tensor.NumElements(shape)
			if !used[name] && n > 0 && !strings.Contains(string(text), "drop(") {
				t.Fatalf("%s is not used", name)
			}
		}
	})
}
