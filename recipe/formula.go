package recipe

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The language of formulas: numbers without fractions, texts, true and false, lists; ??,
// or, and, not, comparisons, in, + - * / %, calls of functions, members of config and of
// args. A value
// may be unknown. Then everything that is computed from it is unknown, except by ??.

const (
	maxDepth  = 40      // of nested parentheses and operators
	maxNumber = 1 << 53 // bounds the numbers
)

// node is a part of a formula. eval returns nil if the value is unknown and no error says
// which variable is.
type node interface {
	eval(e *environment) (any, error)
}

type (
	constNode struct{ value any }
	nameNode  struct{ name string }
	// memberNode is a member of config or args, such as config.rope_scaling.factor.
	memberNode struct {
		of   string
		path []string
	}
	listNode []node
	callNode struct {
		name string
		args []node
	}
	unaryNode struct {
		op string
		x  node
	}
	binaryNode struct {
		op   string
		x, y node
	}
)

// formulaParser parses a formula by recursive descent.
type formulaParser struct {
	words []string
	at    int
	depth int
	names []string
}

// parseFormula reads a formula. names are its variables and captures.
func parseFormula(text string) (root node, names []string, err error) {
	words, err := formulaWords(text)
	if err != nil {
		return nil, nil, err
	}

	p := &formulaParser{words: words}
	if root, err = p.coalesce(); err != nil {
		return nil, nil, err
	}
	if p.at < len(words) {
		return nil, nil, fmt.Errorf("%q is in the wrong place", words[p.at])
	}
	return root, slices.Compact(slices.Sorted(slices.Values(p.names))), nil
}

// formulaWords divides a formula into words. The first character of a text is a quote.
func formulaWords(text string) ([]string, error) {
	var out []string
	for i := 0; i < len(text); {
		c := text[i]
		n := 1
		switch {
		case c == ' ' || c == '\t' || c == '\n':
			i++
			continue
		case isWord(c):
			for i+n < len(text) && isWord(text[i+n]) {
				n++
			}
		case c == '"' || c == '\'':
			end := strings.IndexByte(text[i+1:], c)
			if end < 0 {
				return nil, errors.New("a text does not end")
			}
			n = end + 2
		case len(text) > i+1 && slices.Contains([]string{"==", "!=", "<=", ">=", "??"}, text[i:i+2]):
			n = 2
		case !strings.ContainsRune("()[],.+-*/%<>", rune(c)):
			return nil, fmt.Errorf("%q has no meaning in a formula", string([]rune(text[i:])[:1]))
		}

		out = append(out, text[i:i+n])
		i += n
	}

	return out, nil
}

// peek returns the next word, or "".
func (p *formulaParser) peek() string {
	if p.at < len(p.words) {
		return p.words[p.at]
	}
	return ""
}

// take skips the next word if it is one of these, and returns it.
func (p *formulaParser) take(words ...string) (string, bool) {
	if w := p.peek(); w != "" && slices.Contains(words, w) {
		p.at++
		return w, true
	}
	return "", false
}

// level parses operands that are joined by operators of one level, from the left.
func (p *formulaParser) level(next func() (node, error), ops ...string) (node, error) {
	x, err := next()
	for err == nil {
		op, ok := p.take(ops...)
		if !ok {
			return x, nil
		}
		var y node
		if y, err = next(); err == nil {
			x = &binaryNode{op, x, y}
		}
	}

	return nil, err
}

func (p *formulaParser) coalesce() (node, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, fmt.Errorf("more than %d levels", maxDepth)
	}
	defer func() { p.depth-- }()
	return p.level(p.or, "??")
}

func (p *formulaParser) or() (node, error)  { return p.level(p.and, "or") }
func (p *formulaParser) and() (node, error) { return p.level(p.not, "and") }

func (p *formulaParser) not() (node, error) {
	if _, ok := p.take("not"); !ok {
		return p.compare()
	}
	if p.depth++; p.depth > maxDepth {
		return nil, fmt.Errorf("more than %d levels", maxDepth)
	}
	defer func() { p.depth-- }()
	x, err := p.not()
	return &unaryNode{"not", x}, err
}

func (p *formulaParser) compare() (node, error) {
	x, err := p.sum()
	if err != nil {
		return nil, err
	}

	op, ok := p.take("==", "!=", "<", "<=", ">", ">=", "in")
	if !ok {
		return x, nil
	}

	y, err := p.sum()
	return &binaryNode{op, x, y}, err
}

func (p *formulaParser) sum() (node, error)     { return p.level(p.product, "+", "-") }
func (p *formulaParser) product() (node, error) { return p.level(p.primary, "*", "/", "%") }

// reserved are words that cannot be names.
var reserved = []string{"and", "or", "not", "in", "true", "false"}

func (p *formulaParser) primary() (node, error) {
	w := p.peek()
	p.at++
	switch {
	case w == "":
		return nil, errors.New("it ends too early")
	case w == "(":
		x, err := p.coalesce()
		if _, ok := p.take(")"); err == nil && !ok {
			err = errors.New("( without )")
		}
		return x, err
	case w == "[":
		list, err := p.items("]")
		return listNode(list), err
	case w == "-":
		if n, err := strconv.ParseInt(p.peek(), 10, 64); err == nil && n <= maxNumber {
			p.at++
			return &constNode{int(-n)}, nil
		}
		return nil, errors.New("- without a number")
	case w[0] == '"' || w[0] == '\'':
		return &constNode{w[1 : len(w)-1]}, nil
	case w == "true" || w == "false":
		return &constNode{w == "true"}, nil
	case w[0] >= '0' && w[0] <= '9':
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil || n > maxNumber {
			return nil, fmt.Errorf("%q is not a number", w)
		}
		return &constNode{int(n)}, nil
	case !identifier.MatchString(w) || slices.Contains(reserved, w):
		return nil, fmt.Errorf("%q is in the wrong place", w)
	}

	return p.name(w)
}

// name parses an operand that begins with a name.
func (p *formulaParser) name(w string) (node, error) {
	if _, ok := p.take("("); ok {
		if !slices.Contains(functions, w) {
			return nil, fmt.Errorf("there is no function %s; there are %s", w, strings.Join(functions, ", "))
		}
		args, err := p.items(")")
		return &callNode{w, args}, err
	}

	if w != configName && w != argsName {
		p.names = append(p.names, w)
		return &nameNode{w}, nil
	}

	m := &memberNode{of: w}
	for {
		if _, ok := p.take("."); !ok {
			break
		}
		step := p.peek()
		if !identifier.MatchString(step) {
			return nil, fmt.Errorf("%q cannot be a member of %s", step, w)
		}
		p.at++
		m.path = append(m.path, step)
	}

	if len(m.path) == 0 {
		return nil, fmt.Errorf("%s without a member, such as %s.hidden_size", w, w)
	}
	return m, nil
}

// items parses a list up to its end.
func (p *formulaParser) items(end string) ([]node, error) {
	out := []node{}
	if _, ok := p.take(end); ok {
		return out, nil
	}

	for {
		x, err := p.coalesce()
		if err != nil {
			return nil, err
		}

		out = append(out, x)
		if _, ok := p.take(end); ok {
			return out, nil
		}

		if _, ok := p.take(","); !ok {
			return nil, fmt.Errorf("a list without %s", end)
		}
	}
}

func (n *constNode) eval(*environment) (any, error) { return n.value, nil }

func (n *nameNode) eval(e *environment) (any, error) {
	if v, ok := e.captures[n.name]; ok {
		return v, nil
	}
	v := e.variable(n.name)
	if v == nil {
		return nil, &unknownError{what: n.name, why: e.why[n.name]}
	}
	return v, nil
}

func (n *memberNode) eval(e *environment) (any, error) {
	var v any = e.config
	if n.of == argsName {
		v = e.args
	}

	for _, step := range n.path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, nil
		}
		v = m[step]
	}

	if v == nil {
		return nil, nil
	}
	return v, nil
}

func (n listNode) eval(e *environment) (any, error) {
	out := make([]any, len(n))
	for i, x := range n {
		var err error
		if out[i], err = x.eval(e); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (n *callNode) eval(e *environment) (any, error) {
	if n.name == "if" {
		return n.branch(e)
	}

	args := make([]any, len(n.args))
	for i, x := range n.args {
		v, err := known(x, e)
		if err != nil {
			return nil, err
		}
		args[i] = v
	}

	return e.call(n.name, args)
}

// branch returns the second argument if the first is true, and the third otherwise. The
// other one may be unknown.
func (n *callNode) branch(e *environment) (any, error) {
	if len(n.args) != 3 {
		return nil, errors.New("if: want a condition, its value if it holds, and its value otherwise")
	}

	v, err := known(n.args[0], e)
	if err != nil {
		return nil, err
	}

	switch v {
	case true:
		return n.args[1].eval(e)
	case false:
		return n.args[2].eval(e)
	}

	return nil, fmt.Errorf("if: %v is not true or false", v)
}

func (n *unaryNode) eval(e *environment) (any, error) {
	b, err := truth(n.x, e)
	return !b, err
}

// truth returns the value of a node that is true or false.
func truth(n node, e *environment) (bool, error) {
	v, err := known(n, e)
	if err != nil {
		return false, err
	}

	b, ok := v.(bool)
	if !ok {
		what := "a part of it"
		switch n := n.(type) {
		case *nameNode:
			what = n.name
		case *memberNode:
			what = n.of + "." + strings.Join(n.path, ".")
		}
		return false, variableErrorf("%s is %s, not true or false", what, shown(v))
	}
	return b, nil
}

// shown returns a value as messages have it: a text has quotes.
func shown(v any) string {
	if text, ok := v.(string); ok {
		return strconv.Quote(text)
	}
	return fmt.Sprint(v)
}

// known returns the value of a node, or an error that says that it is unknown.
func known(n node, e *environment) (any, error) {
	v, err := n.eval(e)
	if err == nil && v == nil {
		what := "a value"
		if m, ok := n.(*memberNode); ok {
			what = m.of + "." + strings.Join(m.path, ".")
		}
		err = &unknownError{what: what}
	}
	return v, err
}

func (n *binaryNode) eval(e *environment) (any, error) {
	switch n.op {
	case "??":
		v, err := n.x.eval(e)
		if _, unknown := errors.AsType[*unknownError](err); unknown || err == nil && v == nil {
			return n.y.eval(e)
		}

		if err == nil {
			err = n.contradicted(v, e)
		}
		if err != nil {
			return nil, err
		}
		return v, nil
	case "and", "or":
		return n.logic(e)
	case "==", "!=":
		x, err := n.x.eval(e)
		if err != nil {
			return nil, err
		}
		y, err := n.y.eval(e)
		if err != nil {
			return nil, err
		}
		return same(x, y) == (n.op == "=="), nil
	}

	x, err := known(n.x, e)
	if err != nil {
		return nil, err
	}

	y, err := known(n.y, e)
	if err != nil {
		return nil, err
	}
	if n.op == "in" {
		list, ok := y.([]any)
		if !ok {
			return nil, fmt.Errorf("%v in %v: want a list", x, y)
		}
		return slices.ContainsFunc(list, func(v any) bool { return same(x, v) }), nil
	}

	a, okA := x.(int)
	b, okB := y.(int)
	if !okA || !okB {
		return nil, fmt.Errorf("%v %s %v: want numbers without fractions", x, n.op, y)
	}
	return arithmetic(n.op, a, b)
}

// contradicted returns an error if n is config.A ?? args.B and the two are different
// numbers. Then the configuration is of another model: shapes may fit nevertheless, such as
// with half as many heads of twice the size.
func (n *binaryNode) contradicted(v any, e *environment) error {
	x, ok1 := n.x.(*memberNode)
	y, ok2 := n.y.(*memberNode)
	if !ok1 || !ok2 || x.of != configName || y.of != argsName {
		return nil
	}

	w, err := y.eval(e)
	a, ok1 := v.(int)
	b, ok2 := w.(int)
	if err != nil || !ok1 || !ok2 || a == b {
		return err
	}
	return variableErrorf("%s is %d in config.json, but the job that wrote the checkpoint had %s=%d: config.json is of another model",
		strings.Join(x.path, "."), a, strings.Join(y.path, "."), b)
}

// same reports whether two values are equal.
func same(x, y any) bool {
	a, okA := x.([]any)
	b, okB := y.([]any)
	if okA || okB {
		return okA && okB && slices.EqualFunc(a, b, same)
	}

	if _, ok := x.(map[string]any); ok {
		return false
	}
	if _, ok := y.(map[string]any); ok {
		return false
	}
	return x == y
}

func (n *binaryNode) logic(e *environment) (any, error) {
	x, err := truth(n.x, e)
	if err != nil || x == (n.op == "or") {
		return x, err
	}
	return truth(n.y, e)
}

// arithmetic computes with numbers. A division has to leave no remainder.
func arithmetic(op string, a, b int) (any, error) {
	r := 0
	switch op {
	case "<":
		return a < b, nil
	case "<=":
		return a <= b, nil
	case ">":
		return a > b, nil
	case ">=":
		return a >= b, nil
	case "+":
		r = a + b
	case "-":
		r = a - b
	case "*":
		if a != 0 && (b > maxNumber/abs(a) || b < -maxNumber/abs(a)) {
			return nil, fmt.Errorf("%d * %d is too large", a, b)
		}
		r = a * b
	case "/", "%":
		if b == 0 || op == "/" && a%b != 0 {
			return nil, fmt.Errorf("%d cannot be divided by %d", a, b)
		}
		if op == "/" {
			return a / b, nil
		}
		return a % b, nil
	}

	if r > maxNumber || r < -maxNumber {
		return nil, fmt.Errorf("%d %s %d is too large", a, op, b)
	}
	return r, nil
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}
