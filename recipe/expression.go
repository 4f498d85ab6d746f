package recipe

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"
)

// expression is a formula of variables and captures, such as "div(heads, kv_heads)". It
// has no loops, and can only call the functions of environment.
type expression struct {
	text    string
	program *vm.Program
	names   []string // the variables and captures
}

const (
	maxExpression = 1000 // characters
	maxNodes      = 200
)

// functions are the functions of expressions. The environment has them.
var functions = []string{"has", "number_of", "div", "ceil_to"}

// parseExpression compiles a formula.
func parseExpression(text string) (*expression, error) {
	if len(text) > maxExpression {
		return nil, fmt.Errorf("an expression of more than %d characters", maxExpression)
	}
	tree, err := parser.Parse(text)
	if err != nil {
		return nil, plainError(err)
	}
	c := &collector{}
	ast.Walk(&tree.Node, c)
	if c.err != nil {
		return nil, c.err
	}
	options := []expr.Option{expr.AllowUndefinedVariables(), expr.DisableAllBuiltins(), expr.MaxNodes(maxNodes), expr.Optimize(false)}
	program, err := expr.Compile(text, options...)
	if err != nil {
		return nil, plainError(err)
	}
	names := slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(c.names))), func(n string) bool {
		return slices.Contains(functions, n) || n == configName
	})
	return &expression{text: text, program: program, names: names}, nil
}

// plainError returns an error of the library in one line.
func plainError(err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(strings.TrimSpace(text))
}

// collector finds the names of an expression. It refuses parts of the language that could
// take much time or memory.
type collector struct {
	names []string
	err   error
}

func (c *collector) Visit(node *ast.Node) {
	refuse := func(what string) {
		if c.err == nil {
			c.err = fmt.Errorf("%s cannot be used in a recipe", what)
		}
	}
	switch n := (*node).(type) {
	case *ast.IdentifierNode:
		c.names = append(c.names, n.Value)
	case *ast.BuiltinNode:
		refuse(n.Name)
	case *ast.PredicateNode, *ast.PointerNode:
		refuse("a closure")
	case *ast.VariableDeclaratorNode:
		refuse("let")
	case *ast.CallNode:
		if f, ok := n.Callee.(*ast.IdentifierNode); !ok || !slices.Contains(functions, f.Value) {
			refuse(fmt.Sprintf("the function %s", n.Callee))
		}
	case *ast.BinaryNode:
		switch n.Operator {
		case "..", "**", "^", "matches", "contains", "startsWith", "endsWith", "|":
			refuse("the operator " + n.Operator)
		}
	}
}

// unknownError reports a variable without a value.
type unknownError struct {
	what string
	why  error // nil: nobody has set it
}

func (e *unknownError) Error() string {
	text := fmt.Sprintf("the value of %s is not known", e.what)
	if e.why != nil {
		text += " (" + e.why.Error() + ")"
	}
	return text
}

// run returns the value of the expression. It is nil if it is unknown.
func (x *expression) run(e *environment) (any, error) {
	env := map[string]any{configName: e.config}
	for name, fn := range e.functions {
		env[name] = fn
	}
	var unknown *unknownError
	for _, name := range x.names {
		v, captured := e.captures[name]
		if !captured {
			v = e.variable(name)
		}
		if env[name] = v; v == nil && unknown == nil {
			unknown = &unknownError{what: name, why: e.why[name]}
		}
	}
	v, err := vm.Run(x.program, env)
	if err != nil {
		if unknown != nil {
			return nil, unknown
		}
		return nil, fmt.Errorf("%s: %w", x.text, plainError(err))
	}
	return plainValue(v)
}

// plainValue returns numbers without a fraction as int.
func plainValue(v any) (any, error) {
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
			if out[i], err = plainValue(v[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			var err error
			if out[k], err = plainValue(x); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return nil, fmt.Errorf("%v is of a type that recipes do not have", v)
}

// configName is the name of the configuration in expressions.
const configName = "config"

// environment has the values of variables while a recipe is bound to a checkpoint.
type environment struct {
	config    map[string]any
	set       map[string]any // by the user
	defs      map[string]*definition
	captures  map[string]any // of the current instance of a rule
	functions map[string]any

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

func newEnvironment(r *Recipe, names *nameList, config, set map[string]any) (*environment, error) {
	e := &environment{
		defs: map[string]*definition{}, captures: map[string]any{},
		values: map[string]any{}, why: map[string]error{}, active: map[string]bool{},
	}
	plain, err := plainValue(config)
	if err != nil {
		return nil, err
	}
	e.config, _ = plain.(map[string]any)
	if e.config == nil {
		e.config = map[string]any{}
	}
	for _, d := range r.variables {
		e.defs[d.name] = d
	}
	if plain, err = plainValue(set); err != nil {
		return nil, err
	}
	e.set, _ = plain.(map[string]any)
	for name := range e.set {
		if e.defs[name] == nil {
			return nil, fmt.Errorf("%w: %s is not a variable of the recipe %s; it has %s", ErrVariable, name, r.Name, strings.Join(slices.Sorted(maps.Keys(e.defs)), ", "))
		}
	}
	e.functions = map[string]any{
		"has":       func(g string) (bool, error) { n, err := names.count(g); return n > 0, err },
		"number_of": names.count,
		"div": func(a, b int) (int, error) {
			if b == 0 || a%b != 0 {
				return 0, fmt.Errorf("%d cannot be divided by %d", a, b)
			}
			return a / b, nil
		},
		"ceil_to": func(a, b int) (int, error) {
			if b <= 0 || a < 0 || a > maxSize-b {
				return 0, fmt.Errorf("%d cannot be rounded up to a multiple of %d", a, b)
			}
			return (a + b - 1) / b * b, nil
		},
	}
	return e, nil
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
			return false, &unknownError{what: x.text}
		}
		return false, fmt.Errorf("%s is %v, not true or false", x.text, v)
	}
	return b, nil
}
