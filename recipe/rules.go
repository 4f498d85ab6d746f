package recipe

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/tensor"
)

// ruleKeys are the keys of rules, apart from the names of the sides.
var ruleKeys = []string{"when", "optional", "tie", "add", "multiply", "cast", "quantize", "reason", "copy_of", "value", "dtype"}

// keysOf are the keys that each table has.
var keysOf = map[string][]string{
	"rule": {"when", "optional", "tie", "add", "multiply", "cast", "quantize", "reason"},
	"drop": {"when", "reason", "copy_of"},
	"fill": {"when", "reason", "value", "dtype"},
}

// rules reads the tables [[rule]], [[drop]] or [[fill]].
func (p *recipeParser) rules(doc map[string]any, table string) error {
	v, ok := doc[table]
	if !ok {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		return lineError(p.line(table), "%s: write [[%s]] before each one", table, table)
	}
	for i := range list {
		path := fmt.Sprintf("%s.%d", table, i)
		t, ok := list[i].(map[string]any)
		if !ok {
			return lineError(p.line(table), "%s is not a table", table)
		}
		if len(p.r.rules) == maxRules {
			return lineError(p.line(path), "more than %d rules", maxRules)
		}
		r, err := p.rule(t, table, path)
		if err != nil {
			return err
		}
		p.r.rules = append(p.r.rules, r)
		p.paths[r] = path
	}
	return nil
}

func (p *recipeParser) rule(t map[string]any, table, path string) (*rule, error) {
	r := &rule{line: p.line(path), kind: map[string]kind{"rule": mapRule, "drop": dropRule, "fill": fillRule}[table]}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		line := p.line(path + "." + key)
		if side := slices.Index(p.r.Sides[:], key); side >= 0 {
			if err := p.side(r, side, t[key]); err != nil {
				return nil, lineError(line, "%s: %w", key, err)
			}
			continue
		}
		if !slices.Contains(keysOf[table], key) {
			return nil, lineError(line, "unknown key %q in [[%s]]; known are %s", key, table, strings.Join(append(p.r.Sides[:], keysOf[table]...), ", "))
		}
		if err := p.option(r, key, t[key]); err != nil {
			return nil, lineError(line, "%s: %w", key, err)
		}
	}
	if err := p.check(r); err != nil {
		return nil, lineError(r.line, "%w", err)
	}
	return r, nil
}

// side reads the tensors of one side of a rule.
func (p *recipeParser) side(r *rule, side int, v any) error {
	texts, err := textList(v)
	if err != nil {
		return err
	}
	if len(texts) == 0 {
		return errors.New("want a name")
	}
	for _, text := range texts {
		if err := p.count(text); err != nil {
			return err
		}
		if r.kind == dropRule {
			if err := p.dropped(r, side, text); err != nil {
				return err
			}
			continue
		}
		t, err := p.term(text)
		if err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		r.sides[side] = append(r.sides[side], t)
	}
	return nil
}

// count counts the names of a text. The error says that the recipe has too many.
func (p *recipeParser) count(text string) error {
	if p.patterns += 1 + strings.Count(text, "|"); p.patterns > maxPatterns {
		return fmt.Errorf("more than %d names in all rules", maxPatterns)
	}
	return nil
}

// dropped reads a name of a rule that drops names: with captures, or with stars.
func (p *recipeParser) dropped(r *rule, side int, text string) error {
	if !strings.ContainsAny(text, "{}") {
		g, err := parseGlob(text)
		r.globs[side] = append(r.globs[side], g)
		return err
	}
	n, err := parsePattern(text, p.r.hasVariable)
	if err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	if strings.Contains(text, "*") {
		return fmt.Errorf("%q: write either captures or *, which stands for any characters", text)
	}
	r.sides[side] = append(r.sides[side], &term{names: []*pattern{n}, layout: &layout{dims: []dim{{}}, rest: 0}})
	return nil
}

// copyOf reads the names of the tensor that dropped tensors are copies of.
func (p *recipeParser) copyOf(v any) ([]*pattern, error) {
	text, ok := v.(string)
	if !ok {
		return nil, errors.New("want the name of a tensor")
	}
	if err := p.count(text); err != nil {
		return nil, err
	}
	var out []*pattern
	for name := range strings.SplitSeq(text, "|") {
		n, err := parsePattern(strings.TrimSpace(name), p.r.hasVariable)
		if err == nil && strings.ContainsAny(name, "*[") {
			err = errors.New("want a name without * and without a layout")
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		out = append(out, n)
	}
	return out, nil
}

// term reads "NAME | NAME [LAYOUT]", with a question mark after the names if the tensor is
// optional.
func (p *recipeParser) term(text string) (*term, error) {
	names, shape, given := strings.Cut(text, "[")
	t := &term{layout: &layout{dims: []dim{{}}, rest: 0}, given: given}
	if given {
		shape, ok := strings.CutSuffix(strings.TrimSpace(shape), "]")
		if !ok {
			return nil, errors.New("the layout does not end with ]")
		}
		var err error
		if t.layout, err = parseLayout(shape); err != nil {
			return nil, fmt.Errorf("layout: %w", err)
		}
	}
	names = strings.TrimSpace(names)
	names, t.optional = strings.CutSuffix(names, "?")
	for name := range strings.SplitSeq(names, "|") {
		n, err := parsePattern(strings.TrimSpace(name), p.r.hasVariable)
		if err != nil {
			return nil, err
		}
		for _, c := range n.captures() {
			if slices.Contains(t.layout.all(), c) {
				return nil, fmt.Errorf("{%s} is in the name, so it cannot be an axis too", c)
			}
		}
		t.names = append(t.names, n)
	}
	return t, nil
}

func (p *recipeParser) option(r *rule, key string, v any) (err error) {
	switch key {
	case "when":
		text, ok := v.(string)
		if !ok {
			return errors.New("want a condition, as a text")
		}
		r.when, err = parseExpression(text)
	case "optional":
		var ok bool
		if r.optional, ok = v.(bool); !ok {
			return errors.New("want true or false")
		}
	case "tie":
		var ok bool
		if r.tied, ok = v.(bool); !ok {
			return errors.New("want true or false")
		}
	case "add":
		if r.add, err = number(v); err == nil && (math.IsNaN(r.add) || math.IsInf(r.add, 0)) {
			err = errors.New("want a finite number")
		}
	case "value":
		r.value, err = number(v)
	case "reason":
		var ok bool
		if r.reason, ok = v.(string); !ok {
			return errors.New("want a text")
		}
	case "copy_of":
		r.copyOf, err = p.copyOf(v)
	case "dtype":
		text, _ := v.(string)
		r.dtype, err = tensor.LookupDType(text)
	case "multiply":
		err = p.multiply(r, v)
	case "quantize":
		err = p.quantize(r, v)
	case "cast":
		t, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf(`want a table such as { %s = "float32" }`, p.r.Sides[1])
		}
		for _, side := range slices.Sorted(maps.Keys(t)) {
			i := slices.Index(p.r.Sides[:], side)
			text, _ := t[side].(string)
			if i < 0 {
				return fmt.Errorf("unknown side %q", side)
			}
			if r.cast[i], err = tensor.LookupDType(text); err != nil {
				return err
			}
		}
	}
	return err
}

func number(v any) (float64, error) {
	switch v := v.(type) {
	case int:
		return float64(v), nil
	case int64:
		if n := float64(v); n < 1<<63 && int64(n) == v {
			return n, nil
		}
		return 0, fmt.Errorf("%d is too large", v)
	case float64:
		return v, nil
	}
	return 0, errors.New("want a number")
}

// checkValue returns an error unless elements of a dtype can have a value. Floating-point
// numbers may round it, but not to an infinity.
func checkValue(d tensor.DType, v float64) error {
	x, err := tensor.Full(tensor.Float64, []int64{}, v)
	if err == nil {
		x, err = tensor.Cast(x, d)
	}
	if err == nil {
		x, err = tensor.Cast(x, tensor.Float64)
	}
	if err != nil {
		return err
	}
	got, err := tensor.Values[float64](x)
	if err != nil {
		return err
	}
	kept := got[0] == v || math.IsNaN(got[0]) && math.IsNaN(v)
	rounded := d != tensor.Float8E8M0FNU && (d.IsFloat() || d.IsComplex()) && !math.IsInf(got[0], 0) && !math.IsNaN(got[0])
	if !kept && !rounded {
		return fmt.Errorf("the value %v would become %v as %v", v, got[0], d)
	}
	return nil
}
