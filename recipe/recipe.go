// Package recipe has the language of conversions between the forms that frameworks give
// the same weights: other names, tensors that are split, joined, stacked, permuted or
// padded. A recipe describes both forms, so it works in both directions. Bind applies a
// recipe to the names and shapes of a checkpoint and proves that nothing is lost; its
// result is a list of index maps (package remap), which package storage/view reads
// through. The package does no I/O. docs/recipes.md describes the language.
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
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/cairn-ckpt/cairn/tensor"
)

var (
	// ErrSyntax reports a recipe that does not follow the language.
	ErrSyntax = errors.New("invalid recipe")
	// ErrVariable reports a variable that is not known, or whose value is not known.
	ErrVariable = errors.New("variable")
	// ErrIncomplete reports a recipe and a checkpoint that do not fit: a name that no rule
	// uses, a tensor that is missing or would be made twice, or a shape that a rule does
	// not expect. Nothing was read or written.
	ErrIncomplete = errors.New("the recipe does not fit the checkpoint")
)

const (
	maxText  = 1 << 20 // bytes of a recipe
	maxRules = 4096
)

// Recipe describes how two forms of the same weights correspond.
type Recipe struct {
	// Name identifies the recipe in messages, such as "megatron/llama" or the path of a
	// file.
	Name string
	// About says in one line what the recipe is for.
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

// stack says that tensors of one side are stacked along a leading dimension, one for each
// value of a capture, instead of having the value in their names.
type stack struct {
	side    int
	capture string
	when    *expression
	line    int
}

// kind is what a rule does.
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
	sides [2][]*term // map: the tensors; fill: the tensor of one side
	when  *expression
	// optional means that the rule does not apply if the source has none of its names.
	optional bool
	// tied means that all tensors of the rule are one tensor under several names.
	tied bool
	add  float64 // what the right side has more than the left
	cast [2]tensor.DType

	globs  [2][]glob // drop: the names
	reason string    // drop, fill
	value  float64   // fill
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
	p := &recipeParser{r: &Recipe{Name: name, Text: string(text), captures: map[string]*captureDef{}}}
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
		return false, fmt.Errorf("%w: the recipe %s is for %s and %s, not %s", ErrVariable, r.Name, r.Sides[0], r.Sides[1], from)
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

func (r *Recipe) hasVariable(name string) bool {
	return slices.ContainsFunc(r.variables, func(d *definition) bool { return d.name == name })
}

// checkPadding is a variable of every recipe. If it is false, the zeros of a layout may
// have any value in a source.
const checkPadding = "check_padding"

type recipeParser struct {
	r     *Recipe
	lines map[string]int // of keys, by their path
}

// lineError is an error in one line of a recipe.
func lineError(line int, format string, args ...any) error {
	return fmt.Errorf("line %d: %w", line, fmt.Errorf(format, args...))
}

func (p *recipeParser) parse(text []byte) error {
	var doc map[string]any
	if err := toml.Unmarshal(text, &doc); err != nil {
		if e, ok := errors.AsType[*toml.DecodeError](err); ok {
			row, _ := e.Position()
			return lineError(row, "%s", strings.TrimPrefix(e.Error(), "toml: "))
		}
		return err
	}
	var err error
	if p.lines, err = keyLines(text); err != nil {
		return err
	}
	known := []string{"about", "sides", "families", "variables", "defaults", "captures", "stack", "rule", "drop", "fill"}
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		if !slices.Contains(known, key) {
			return lineError(p.lines[key], "unknown key %q; known are %s", key, strings.Join(known, ", "))
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
		p.r.variables = append(p.r.variables, &definition{name: checkPadding, value: true, fallback: true})
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
	return nil
}

// keyLines returns the line of each key. The path of a key in the third table [[rule]] is
// "rule.2.key".
func keyLines(text []byte) (map[string]int, error) {
	lines := map[string]int{}
	counts := map[string]int{}
	var parser unstable.Parser
	parser.Reset(text)
	table := ""
	for parser.NextExpression() {
		e := parser.Expression()
		var keys []string
		line := 0
		for it := e.Key(); it.Next(); {
			if n := it.Node(); line == 0 {
				line = parser.Shape(n.Raw).Start.Line
			}
			keys = append(keys, string(it.Node().Data))
		}
		path := strings.Join(keys, ".")
		switch e.Kind {
		case unstable.ArrayTable:
			table = fmt.Sprintf("%s.%d", path, counts[path])
			counts[path]++
			lines[table] = line
			if _, ok := lines[path]; !ok {
				lines[path] = line
			}
		case unstable.Table:
			table = path
			lines[table] = line
		case unstable.KeyValue:
			if table != "" {
				path = table + "." + path
			}
			lines[path] = line
		}
	}
	return lines, parser.Error()
}

func (p *recipeParser) header(doc map[string]any) error {
	var ok bool
	if about, has := doc["about"]; has {
		if p.r.About, ok = about.(string); !ok {
			return lineError(p.lines["about"], "about is not a text")
		}
	}
	if families, has := doc["families"]; has {
		var err error
		if p.r.Families, err = textList(families); err != nil {
			return lineError(p.lines["families"], "families: %w", err)
		}
	}
	sides, err := textList(doc["sides"])
	if err != nil || len(sides) != 2 || sides[0] == sides[1] {
		return lineError(max(1, p.lines["sides"]), `sides: want the names of the two forms, such as ["hf", "megatron"]`)
	}
	for i, s := range sides {
		if !identifier.MatchString(s) || slices.Contains(ruleKeys, s) {
			return lineError(p.lines["sides"], "sides: %q cannot be the name of a form", s)
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
		return nil, lineError(p.lines[name], "%s is not a table", name)
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
		line := p.lines[table+"."+name]
		if !identifier.MatchString(name) || name == configName || slices.Contains(functions, name) {
			return lineError(line, "%q cannot be the name of a variable", name)
		}
		if p.r.hasVariable(name) {
			return lineError(line, "%s is defined twice", name)
		}
		d := &definition{name: name, line: line, fallback: table == "defaults"}
		if text, ok := t[name].(string); ok {
			d.expr, err = parseExpression(text)
		} else {
			d.value, err = plainValue(t[name])
		}
		if err != nil {
			return lineError(line, "%s: %w", name, err)
		}
		p.r.variables = append(p.r.variables, d)
	}
	return nil
}

func (p *recipeParser) captures(doc map[string]any) error {
	t, err := p.table(doc, "captures")
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		line := p.lines["captures."+name]
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
			return lineError(p.lines["stack"]+p.lines["stack."+side], "stack: want a table for %s or %s", p.r.Sides[0], p.r.Sides[1])
		}
		for _, capture := range slices.Sorted(maps.Keys(of)) {
			line := max(p.lines["stack."+side+"."+capture], p.lines["stack."+side])
			text, ok := of[capture].(string)
			if b, isBool := of[capture].(bool); isBool {
				text, ok = fmt.Sprint(b), true
			}
			if !ok {
				return lineError(line, "%s: want a condition", capture)
			}
			s := &stack{side: i, capture: capture, line: line}
			if s.when, err = parseExpression(text); err != nil {
				return lineError(line, "%s: %w", capture, err)
			}
			p.r.stacks = append(p.r.stacks, s)
		}
	}
	return nil
}

// ruleKeys are the keys of rules, apart from the names of the sides.
var ruleKeys = []string{"when", "optional", "tie", "add", "cast", "reason", "value", "dtype"}

// keysOf are the keys that each table has.
var keysOf = map[string][]string{
	"rule": {"when", "optional", "tie", "add", "cast"},
	"drop": {"when", "reason"},
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
		return lineError(p.lines[table], "%s: write [[%s]] before each one", table, table)
	}
	for i := range list {
		path := fmt.Sprintf("%s.%d", table, i)
		t, ok := list[i].(map[string]any)
		if !ok {
			return lineError(p.lines[table], "%s is not a table", table)
		}
		if len(p.r.rules) == maxRules {
			return lineError(p.lines[path], "more than %d rules", maxRules)
		}
		r, err := p.rule(t, table, path)
		if err != nil {
			return err
		}
		p.r.rules = append(p.r.rules, r)
	}
	return nil
}

func (p *recipeParser) rule(t map[string]any, table, path string) (*rule, error) {
	r := &rule{line: p.lines[path], kind: map[string]kind{"rule": mapRule, "drop": dropRule, "fill": fillRule}[table]}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		line := max(p.lines[path+"."+key], r.line)
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
		if r.kind == dropRule {
			g, err := parseGlob(text)
			if err != nil {
				return err
			}
			r.globs[side] = append(r.globs[side], g)
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
		r.add, err = number(v)
	case "value":
		r.value, err = number(v)
	case "reason":
		var ok bool
		if r.reason, ok = v.(string); !ok {
			return errors.New("want a text")
		}
	case "dtype":
		text, _ := v.(string)
		r.dtype, err = tensor.LookupDType(text)
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
	case int64:
		return float64(v), nil
	case float64:
		return v, nil
	}
	return 0, errors.New("want a number")
}

// check checks that the parts of a rule fit together.
func (p *recipeParser) check(r *rule) error {
	switch r.kind {
	case dropRule:
		if len(r.globs[0])+len(r.globs[1]) == 0 {
			return fmt.Errorf("want the names to drop, of %s or %s", p.r.Sides[0], p.r.Sides[1])
		}
		if strings.TrimSpace(r.reason) == "" {
			return errors.New("a rule that drops names needs a reason")
		}
		return nil
	case fillRule:
		if len(r.sides[0])+len(r.sides[1]) != 1 {
			return errors.New("want one tensor, of one side")
		}
		t := slices.Concat(r.sides[0], r.sides[1])[0]
		if !t.given || t.layout.rest >= 0 || t.optional || len(t.names) != 1 {
			return errors.New("want a name with a layout")
		}
		if !r.dtype.Valid() {
			return errors.New("want a dtype")
		}
		if strings.TrimSpace(r.reason) == "" {
			return errors.New("a rule that fills a tensor needs a reason, which is also the reason to drop it in the other direction")
		}
		return nil
	}
	for i, side := range r.sides {
		if len(side) == 0 {
			return fmt.Errorf("want tensors of %s", p.r.Sides[i])
		}
	}
	return p.checkParts(r)
}

// checkParts checks that the two sides of a rule have the same parts, with the same axes.
func (p *recipeParser) checkParts(r *rule) error {
	if r.tied {
		for _, side := range r.sides {
			if side[0].optional {
				return errors.New("tie: the first tensor of a side cannot be optional")
			}
			for _, t := range side[1:] {
				if t.layout.String() != side[0].layout.String() {
					return errors.New("tie: the tensors of a side have different layouts")
				}
			}
		}
		if !slices.Equal(r.captures(0), r.captures(1)) {
			return errors.New("tie: both sides need the same captures")
		}
	} else if slices.ContainsFunc(slices.Concat(r.sides[0], r.sides[1]), func(t *term) bool { return t.optional }) {
		return errors.New("only a tensor that is tied can be optional (?)")
	}
	left, right := r.parts(0), r.parts(1)
	if len(left) != len(right) {
		return fmt.Errorf("%s has %d parts, %s has %d", p.r.Sides[0], len(left), p.r.Sides[1], len(right))
	}
	for i := range left {
		a, b := left[i].words(), right[i].words()
		if !slices.Equal(a, b) {
			return fmt.Errorf("part %d of %s has the axes %v, of %s %v", i+1, p.r.Sides[0], a, p.r.Sides[1], b)
		}
		ra, rb := left[i].term.layout.rest >= 0, right[i].term.layout.rest >= 0
		if ra != rb {
			return fmt.Errorf("part %d has the remaining dimensions ... only on one side: give both a layout", i+1)
		}
	}
	for _, side := range r.sides {
		for _, t := range side {
			if len(t.names) > 1 && slices.ContainsFunc(t.names[1:], func(q *pattern) bool {
				return !slices.Equal(q.captures(), t.names[0].captures())
			}) {
				return errors.New("the names of a tensor have different captures")
			}
		}
	}
	return nil
}

// rpart is one part of a side of a rule.
type rpart struct {
	term *term
	part lpart
}

// parts returns the parts of a side that have a counterpart on the other side. Copies are
// the same part.
func (r *rule) parts(side int) []rpart {
	terms := r.sides[side]
	if r.tied {
		terms = terms[:1]
	}
	var out []rpart
	for _, t := range terms {
		for _, p := range t.layout.parts() {
			if !p.fill {
				out = append(out, rpart{t, p})
			}
		}
	}
	return out
}

// words returns the axes and captures of the part, sorted. An axis may be a capture on the
// other side.
func (p rpart) words() []string {
	out := append(p.part.axes(p.term.layout), p.term.names[0].captures()...)
	slices.Sort(out)
	return slices.Compact(out)
}

// captures returns the captures of a name, in order.
func (p *pattern) captures() []string {
	var out []string
	for _, h := range p.holes {
		out = append(out, h.captures...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// captures returns the captures in the names of a side.
func (r *rule) captures(side int) []string {
	var out []string
	for _, t := range r.sides[side] {
		for _, n := range t.names {
			for _, c := range n.captures() {
				if !slices.Contains(out, c) {
					out = append(out, c)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}
