package recipe

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// expression is a formula of variables and captures, such as "heads / kv_heads".
type expression struct {
	text  string
	root  node
	names []string // the variables and captures
}

const (
	maxExpression = 1000 // characters
	// maxValue bounds the value of an expression: the bytes of its texts and the number
	// of its elements. Without it, a few variables could double a list many times.
	maxValue  = 1 << 16
	maxNested = 16 // lists in lists
)

// functions are the functions of expressions.
var functions = []string{"has", "number_of", "ceil_to", "sqrt", "if"}

// parseExpression reads a formula.
func parseExpression(text string) (*expression, error) {
	if len(text) > maxExpression {
		return nil, fmt.Errorf("an expression of more than %d characters", maxExpression)
	}
	root, names, err := parseFormula(text)
	if err != nil {
		return nil, fmt.Errorf("%.60q: %w", text, err)
	}
	return &expression{text: text, root: root, names: names}, nil
}

// numberOrFormula reads a number of a recipe, or a formula for one.
func numberOrFormula(v any) (*expression, error) {
	if text, ok := v.(string); ok {
		return parseExpression(text)
	}
	x, err := number(v)
	if err != nil {
		return nil, errors.New("want a number or a formula")
	}
	plain, err := smallValue(x)
	return &expression{text: fmt.Sprint(v), root: &constNode{plain}}, err
}

// variableErrorf returns an error that wraps ErrVariable, without its text.
func variableErrorf(format string, args ...any) error {
	return &variableError{fmt.Errorf(format, args...)}
}

type variableError struct{ error }

func (e *variableError) Unwrap() []error { return []error{e.error, ErrVariable} }

// unknownError reports a variable without a value. It wraps ErrVariable.
type unknownError struct {
	what string
	why  error // nil: nobody has set it
}

// broken reports whether the value has an error, so that it does not help to find the value
// elsewhere.
func (e *unknownError) broken() bool {
	if e.why == nil {
		return false
	}
	u, ok := errors.AsType[*unknownError](e.why)
	return !ok || u.broken()
}

func (e *unknownError) Unwrap() error { return ErrVariable }

func (e *unknownError) Error() string {
	text := fmt.Sprintf("the value of %s is not known", e.what)
	root := e.why // in a chain of variables, the last one names the missing variable
	for u, ok := errors.AsType[*unknownError](root); ok && u.why != nil; u, ok = errors.AsType[*unknownError](root) {
		root = u.why
	}
	if root != nil {
		text += " (" + root.Error() + ")"
	}
	return text
}

// run returns the value of the expression. It is nil if it is unknown.
func (x *expression) run(e *environment) (any, error) {
	v, err := x.root.eval(e)
	if err == nil {
		v, err = smallValue(v)
	}
	if _, unknown := errors.AsType[*unknownError](err); err != nil && !unknown {
		err = fmt.Errorf("%s: %w", x.text, err)
	}
	return v, err
}

// smallValue is plainValue for values of a recipe, which are bounded.
func smallValue(v any) (any, error) { return (&plainer{left: maxValue}).value(v, maxNested) }

// plainValue returns numbers without a fraction as int.
func plainValue(v any) (any, error) {
	return (&plainer{left: math.MaxInt}).value(v, math.MaxInt)
}

// plainer makes values of files plain.
type plainer struct{ left int } // how large the rest of the value may be

func (p *plainer) value(v any, depth int) (any, error) {
	size := 1
	if text, ok := v.(string); ok {
		size += len(text)
	}

	if p.left -= size; p.left < 0 || depth < 0 {
		return nil, errors.New("the value is too large")
	}

	switch v := v.(type) {
	case nil, bool, string, int:
		return v, nil
	case int64:
		return int(v), nil
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int(v), nil
		}
		return v, nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			var err error
			if out[i], err = p.value(v[i], depth-1); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			var err error
			if out[k], err = p.value(x, depth-1); err != nil {
				return nil, err
			}
		}
		return out, nil
	}

	return nil, fmt.Errorf("%v is of a type that recipes do not have", v)
}

// configName is the name of the configuration in expressions.
const configName = "config"

// argsName is the name of the training job's arguments in expressions.
const argsName = "args"

// environment has the values of variables while a recipe is bound to a checkpoint.
type environment struct {
	config   map[string]any
	args     map[string]any
	set      map[string]any // by the user
	defs     map[string]*definition
	captures map[string]any // of the current instance of a rule
	names    *nameList      // of the checkpoint

	values map[string]any   // of the variables that were evaluated; nil: unknown
	why    map[string]error // why a variable is unknown
	active map[string]bool  // variables that are being evaluated
}

// definition is a variable of a recipe.
type definition struct {
	name  string
	value any         // a constant, if expr is nil
	expr  *expression // nil: a constant
	line  int
	// fallback means that the value is only used if shapes do not tell it.
	fallback bool
}

func newEnvironment(r *Recipe, names *nameList, o Options) (*environment, error) {
	e := &environment{
		defs: map[string]*definition{}, captures: map[string]any{},
		values: map[string]any{}, why: map[string]error{}, active: map[string]bool{},
	}
	plain, err := plainValue(o.Config)
	if err != nil {
		return nil, err
	}

	e.config, _ = plain.(map[string]any)
	if plain, err = plainValue(o.Args); err != nil {
		return nil, err
	}

	e.args, _ = plain.(map[string]any)
	for _, d := range r.variables {
		e.defs[d.name] = d
	}

	if plain, err = plainValue(o.Set); err != nil {
		return nil, err
	}

	e.set, _ = plain.(map[string]any)
	for name := range e.set {
		if e.defs[name] == nil {
			return nil, variableErrorf("%s is not a variable of the recipe %s; it has %s", name, r.Name, strings.Join(slices.Sorted(maps.Keys(e.defs)), ", "))
		}
	}

	e.names = names
	return e, nil
}

// call calls a function.
func (e *environment) call(name string, args []any) (any, error) {
	if name == "ceil_to" {
		if len(args) != 2 {
			return nil, errors.New("ceil_to: want a number and the number of which it becomes a multiple")
		}
		a, okA := args[0].(int)
		b, okB := args[1].(int)
		if !okA || !okB {
			return nil, fmt.Errorf("ceil_to: %v and %v are not whole numbers", args[0], args[1])
		}
		return ceilTo(a, b)
	}

	if name == "sqrt" {
		return squareRoot(args)
	}

	if len(args) != 1 {
		return nil, fmt.Errorf("%s: want a pattern of names", name)
	}

	pattern, ok := args[0].(string)
	if !ok {
		return nil, fmt.Errorf("%s: %v is not a text", name, args[0])
	}

	n, err := e.names.count(pattern)
	if name == "has" {
		return n > 0, err
	}
	return n, err
}

func squareRoot(args []any) (any, error) {
	if len(args) != 1 {
		return nil, errors.New("sqrt: want a number")
	}
	x, err := number(args[0])
	if err == nil && x < 0 {
		err = fmt.Errorf("%v has no square root", args[0])
	}
	if err != nil {
		return nil, fmt.Errorf("sqrt: %w", err)
	}
	return plainValue(math.Sqrt(x))
}

func ceilTo(a, b int) (int, error) {
	if b <= 0 || a < 0 || a > maxSize-b {
		return 0, fmt.Errorf("%d cannot be rounded up to a multiple of %d", a, b)
	}
	return (a + b - 1) / b * b, nil
}

// variable returns the value of a variable, or nil if it is unknown.
func (e *environment) variable(name string) any {
	if v, ok := e.set[name]; ok {
		return v
	}
	if v, ok := e.values[name]; ok {
		return v
	}

	d := e.defs[name]
	if d == nil || e.active[name] {
		if d != nil {
			e.why[name] = fmt.Errorf("line %d: it depends on itself", d.line)
		}
		return nil
	}

	v := d.value
	if d.expr != nil {
		e.active[name] = true
		captures := e.captures
		e.captures = nil // variables do not depend on captures
		var err error
		if v, err = d.expr.run(e); err != nil {
			e.why[name] = fmt.Errorf("line %d: %w", d.line, err)
		}
		e.captures = captures
		delete(e.active, name)
	}

	e.values[name] = v
	return v
}

// condition returns the value of a condition. Nil is true.
func (e *environment) condition(x *expression) (bool, error) {
	if x == nil {
		return true, nil
	}

	v, err := x.run(e)
	if err != nil {
		return false, err
	}

	b, ok := v.(bool)
	if !ok {
		if v == nil {
			return false, &unknownError{what: x.text, why: e.why[x.text]}
		}
		return false, variableErrorf("%s is %s, not true or false", x.text, shown(v))
	}
	return b, nil
}
