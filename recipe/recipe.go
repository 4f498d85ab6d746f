// Package recipe has the language of conversions between the forms that frameworks give the
// same weights: other names, tensors that are split, joined, stacked, permuted or padded. A
// recipe describes both forms, so it works in both directions. Bind applies a recipe to the
// names and shapes of a checkpoint and proves that no element is lost; its result is a list
// of index maps (package remap), which package storage/view reads through. The package does
// no I/O. docs/recipes.md describes the language.
package recipe

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/cairn-ckpt/cairn/tensor"
)

var (
	// ErrSyntax reports a recipe that does not follow the language.
	ErrSyntax = errors.New("invalid recipe")
	// ErrVariable reports a variable that is not known, or that has an unknown or wrong value.
	ErrVariable = errors.New("variable")
	// ErrIncomplete reports a recipe and a checkpoint that do not fit: a name that no rule uses,
	// a tensor that is missing or would be made twice, or a shape that a rule does not expect.
	// No file was read or written.
	ErrIncomplete = errors.New("the recipe does not fit the checkpoint")
)

const (
	maxText      = 1 << 20 // bytes of a recipe
	maxRules     = 4096
	maxPatterns  = 16384 // names in all rules
	maxVariables = 1024
	maxList      = 4096 // characters of the values of a capture
)

// Recipe describes how two forms of the same weights correspond.
type Recipe struct {
	// Name identifies the recipe in messages, such as "megatron/llama" or the path of a
	// file.
	Name string
	// About describes the purpose of the recipe in one line.
	About string
	// Sides are the names of the two forms, such as "hf" and "megatron".
	Sides [2]string
	// Families are the families of models that the recipe is for: values of model_type in
	// config.json. Empty: any.
	Families []string
	// Text is the recipe as it was read, and SHA256 its digest in hexadecimal.
	Text   string
	SHA256 string

	variables []*definition
	known     map[string]bool // the names of the variables
	captures  map[string]*captureDef
	stacks    []*stack
	rules     []*rule
}

// captureDef says which values a capture has.
type captureDef struct {
	count *expression // the values are 0 to count-1; nil: list
	list  []string    // the values
	line  int
}

// stack says that tensors of one side are stacked along a dimension, one for each value of a
// capture, instead of having the value in their names.
type stack struct {
	side    int
	capture string
	when    *expression
	axis    *expression // the dimension; nil: 0
	line    int
}

// kind is the kind of a rule.
type kind uint8

const (
	mapRule  kind = iota // tensors of one side are tensors of the other
	dropRule             // names of one side have no counterpart
	fillRule             // tensors of one side have a constant value
)

// rule is one rule of a recipe.
type rule struct {
	line  int
	kind  kind
	sides [2][]*term // map: the tensors; fill: the tensor of one side; drop: names with captures
	when  *expression
	// optional means that the rule does not apply if the source has none of its names.
	optional bool
	// tied means that all tensors of the rule are one tensor under several names.
	tied bool
	add  float64 // the right side has this much more than the left
	// multiply is the constant by which elements of a side are the elements of the other side.
	// At most one side has one.
	multiply [2]*expression
	cast     [2]tensor.DType
	// quant says how the tensors of a side are quantised. Nil: they are not.
	quant [2]*quantization

	globs  [2][]glob  // drop: the names without captures; names with captures are in sides
	copyOf []*pattern // drop: the tensor that the dropped ones are copies of; the first name that exists
	reason string     // drop, fill, and map if a layout drops elements
	value  float64    // fill
	dtype  tensor.DType
}

// term is one tensor of a rule, or a family of tensors if its name has captures.
type term struct {
	// names are the names that the tensor may have. The first one is for writing.
	names  []*pattern
	layout *layout
	// given means that the layout is in the recipe.
	given bool
	// optional means that the tensor may be missing. It is never written.
	optional bool
}

// Parse reads a recipe. The error wraps ErrSyntax and names the line.
func Parse(name string, text []byte) (*Recipe, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("%w: %s: it has more than %d bytes", ErrSyntax, name, maxText)
	}

	p := &recipeParser{r: &Recipe{Name: name, Text: string(text), known: map[string]bool{}, captures: map[string]*captureDef{}}, paths: map[*rule]string{}}
	sum := sha256.Sum256(text)
	p.r.SHA256 = hex.EncodeToString(sum[:])
	if err := p.parse(text); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrSyntax, name, err)
	}
	return p.r, nil
}

// Reverse reports whether from is the second side of the recipe. The error wraps
// ErrVariable if the recipe has no such side.
func (r *Recipe) Reverse(from string) (bool, error) {
	i := slices.Index(r.Sides[:], from)
	if i < 0 {
		return false, variableErrorf("the recipe %s is for %s and %s, not %s", r.Name, r.Sides[0], r.Sides[1], from)
	}
	return i == 1, nil
}

// Variables returns the names of the variables that can be set, in order.
func (r *Recipe) Variables() []string {
	var out []string
	for _, d := range r.variables {
		out = append(out, d.name)
	}
	slices.Sort(out)
	return out
}

func (r *Recipe) hasVariable(name string) bool { return r.known[name] }

// define adds a variable.
func (r *Recipe) define(d *definition) {
	r.variables = append(r.variables, d)
	r.known[d.name] = true
}

// checkPadding is a variable of every recipe. If it is false, the zeros of a layout may
// have any value in a source.
const checkPadding = "check_padding"

type recipeParser struct {
	r        *Recipe
	lines    map[string]int // of keys, by their path
	patterns int            // names in all rules
	paths    map[*rule]string
}

// line returns the line of a key, or of the nearest key above it that has one.
func (p *recipeParser) line(path string) int {
	for {
		if line, ok := p.lines[path]; ok {
			return line
		}
		dot := strings.LastIndexByte(path, '.')
		if dot < 0 {
			return 1
		}
		path = path[:dot]
	}
}

// lineError is an error in one line of a recipe.
func lineError(line int, format string, args ...any) error {
	return fmt.Errorf("line %d: %w", line, fmt.Errorf(format, args...))
}

func (p *recipeParser) parse(text []byte) error {
	var linesErr error
	if p.lines, linesErr = keyLines(text); errors.Is(linesErr, errManyKeys) {
		return linesErr
	}

	var doc map[string]any
	if err := toml.Unmarshal(text, &doc); err != nil {
		if e, ok := errors.AsType[*toml.DecodeError](err); ok {
			row, _ := e.Position()
			return lineError(row, "%s", strings.TrimPrefix(e.Error(), "toml: "))
		}
		return err
	}

	if linesErr != nil {
		return linesErr
	}

	known := []string{"about", "sides", "families", "variables", "defaults", "captures", "stack", "rule", "drop", "fill"}
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		if !slices.Contains(known, key) {
			return lineError(p.line(key), "unknown key %q; known are %s", key, strings.Join(known, ", "))
		}
	}

	if err := p.header(doc); err != nil {
		return err
	}

	for _, table := range []string{"variables", "defaults"} {
		if err := p.definitions(doc, table); err != nil {
			return err
		}
	}

	if !p.r.hasVariable(checkPadding) {
		p.r.define(&definition{name: checkPadding, value: true, fallback: true})
	}

	if !p.r.hasVariable(carryStates) {
		p.r.define(&definition{name: carryStates, value: false, fallback: true})
	}

	if err := p.captures(doc); err != nil {
		return err
	}
	if err := p.stacks(doc); err != nil {
		return err
	}

	for _, table := range []string{"rule", "drop", "fill"} {
		if err := p.rules(doc, table); err != nil {
			return err
		}
	}

	slices.SortStableFunc(p.r.rules, func(a, b *rule) int { return a.line - b.line })
	if len(p.r.rules) == 0 {
		return errors.New("it has no rules")
	}
	return p.checkNames()
}

func (p *recipeParser) header(doc map[string]any) error {
	var ok bool
	if about, has := doc["about"]; has {
		if p.r.About, ok = about.(string); !ok {
			return lineError(p.line("about"), "about is not a text")
		}
	}

	if families, has := doc["families"]; has {
		var err error
		if p.r.Families, err = textList(families); err != nil {
			return lineError(p.line("families"), "families: %w", err)
		}
	}

	sides, err := textList(doc["sides"])
	if err != nil || len(sides) != 2 || sides[0] == sides[1] {
		return lineError(p.line("sides"), `sides: want the names of the two forms, such as ["hf", "megatron"]`)
	}

	for i, s := range sides {
		if !identifier.MatchString(s) || slices.Contains(ruleKeys, s) {
			return lineError(p.line("sides"), "sides: %q cannot be the name of a form", s)
		}
		p.r.Sides[i] = s
	}

	return nil
}

// textList returns v, a text or a list of texts, as a list.
func textList(v any) ([]string, error) {
	switch v := v.(type) {
	case string:
		return []string{v}, nil
	case []any:
		out := make([]string, len(v))
		for i := range v {
			var ok bool
			if out[i], ok = v[i].(string); !ok {
				return nil, fmt.Errorf("%v is not a text", v[i])
			}
		}
		return out, nil
	}
	return nil, errors.New("want a text or a list of texts")
}

// table returns a table of the document.
func (p *recipeParser) table(doc map[string]any, name string) (map[string]any, error) {
	v, ok := doc[name]
	if !ok {
		return nil, nil
	}
	t, ok := v.(map[string]any)
	if !ok {
		return nil, lineError(p.line(name), "%s is not a table", name)
	}
	return t, nil
}

// definitions reads the variables. A text is an expression.
func (p *recipeParser) definitions(doc map[string]any, table string) error {
	t, err := p.table(doc, table)
	if err != nil {
		return err
	}

	for _, name := range slices.Sorted(maps.Keys(t)) {
		line := p.line(table + "." + name)
		if !identifier.MatchString(name) || name == configName || name == argsName || slices.Contains(functions, name) {
			return lineError(line, "%q cannot be the name of a variable", name)
		}
		if p.r.hasVariable(name) {
			return lineError(line, "%s is defined twice", name)
		}
		if len(p.r.variables) == maxVariables {
			return lineError(line, "more than %d variables", maxVariables)
		}

		d := &definition{name: name, line: line, fallback: table == "defaults"}
		if text, ok := t[name].(string); ok {
			d.expr, err = parseExpression(text)
		} else {
			d.value, err = smallValue(t[name])
		}
		if err != nil {
			return lineError(line, "%s: %w", name, err)
		}

		p.r.define(d)
	}

	return nil
}

func (p *recipeParser) captures(doc map[string]any) error {
	t, err := p.table(doc, "captures")
	if err != nil {
		return err
	}

	for _, name := range slices.Sorted(maps.Keys(t)) {
		line := p.line("captures." + name)
		if !identifier.MatchString(name) || p.r.hasVariable(name) {
			return lineError(line, "%q cannot be the name of a capture", name)
		}

		c := &captureDef{line: line}
		switch v := t[name].(type) {
		case string:
			c.count, err = parseExpression(v)
		case []any:
			c.list, err = textList(v)
			if err == nil && (len(c.list) == 0 || len(slices.Compact(slices.Sorted(slices.Values(c.list)))) != len(c.list)) {
				err = errors.New("want a list of different texts")
			} else if err == nil && len(strings.Join(c.list, "|")) > maxList {
				err = fmt.Errorf("the texts have more than %d characters", maxList)
			}
		case int64:
			c.count, err = parseExpression(fmt.Sprint(v))
		default:
			err = errors.New("want the number of values, as an expression, or a list of texts")
		}
		if err != nil {
			return lineError(line, "%s: %w", name, err)
		}

		p.r.captures[name] = c
	}

	return nil
}

func (p *recipeParser) stacks(doc map[string]any) error {
	t, err := p.table(doc, "stack")
	if err != nil {
		return err
	}

	for _, side := range slices.Sorted(maps.Keys(t)) {
		i := slices.Index(p.r.Sides[:], side)
		of, ok := t[side].(map[string]any)
		if i < 0 || !ok {
			return lineError(p.line("stack."+side), "stack: want a table for %s or %s", p.r.Sides[0], p.r.Sides[1])
		}

		for _, capture := range slices.Sorted(maps.Keys(of)) {
			line := p.line("stack." + side + "." + capture)
			s, err := parseStack(of[capture])
			if err != nil {
				return lineError(line, "%s: %w", capture, err)
			}
			s.side, s.capture, s.line = i, capture, line
			p.r.stacks = append(p.r.stacks, s)
		}
	}

	return nil
}

// parseStack reads a condition, or a table of a condition and an axis.
func parseStack(v any) (s *stack, err error) {
	s = &stack{}
	t, table := v.(map[string]any)
	if table {
		for _, key := range slices.Sorted(maps.Keys(t)) {
			if key != "when" && key != "axis" {
				return nil, fmt.Errorf("unknown key %q; known are when, axis", key)
			}
		}
		v = t["when"]
		if axis, has := t["axis"]; has {
			if s.axis, err = numberOrFormula(axis); err != nil {
				return nil, fmt.Errorf("axis: %w", err)
			}
		}
	}

	text, ok := v.(string)
	if b, isBool := v.(bool); isBool {
		text, ok = fmt.Sprint(b), true
	}
	if !ok {
		return nil, errors.New(`want a condition, or a table such as { when = "scanned", axis = 1 }`)
	}
	s.when, err = parseExpression(text)
	return s, err
}
