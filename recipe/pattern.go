package recipe

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// pattern is a name with holes, such as model.layers.{i}.mlp.up_proj.weight.
type pattern struct {
	text string
	// literals are the texts around the holes: one more than holes.
	literals []string
	holes    []hole
}

// hole is a part of a name that a capture or an expression of captures fills.
type hole struct {
	text string // without the braces
	// wild means that the capture stands for any text, {name*}; then capture is its name.
	wild bool
	// capture is the name of the only capture, if the hole is only a capture.
	capture string
	expr    *expression // nil if capture is set
	// captures are the captures of the hole.
	captures []string
}

const (
	maxHoles   = 16
	maxPattern = 1024 // characters
)

// parsePattern reads a name with holes. isVariable tells variables from captures.
func parsePattern(text string, isVariable func(name string) bool) (*pattern, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("a name of more than %d characters", maxPattern)
	}

	p := &pattern{text: text}
	rest := text
	for {
		before, after, found := strings.Cut(rest, "{")
		if strings.Contains(before, "}") {
			return nil, errors.New("} without {")
		}

		p.literals = append(p.literals, before)
		if !found {
			break
		}

		inside, behind, closed := strings.Cut(after, "}")
		if !closed {
			return nil, errors.New("{ without }")
		}

		if len(p.holes) == maxHoles {
			return nil, fmt.Errorf("more than %d holes", maxHoles)
		}

		h, err := parseHole(strings.TrimSpace(inside), isVariable)
		if err != nil {
			return nil, fmt.Errorf("{%s}: %w", inside, err)
		}

		p.holes = append(p.holes, h)
		rest = behind
	}

	if text == "" {
		return nil, errors.New("a name is empty")
	}
	return p, nil
}

var identifier = regexp.MustCompile(`\A[A-Za-z_][A-Za-z0-9_]*\z`)

func parseHole(text string, isVariable func(name string) bool) (hole, error) {
	h := hole{text: text}
	name, wild := strings.CutSuffix(text, "*")
	if identifier.MatchString(name) && (wild || !isVariable(name)) {
		h.capture, h.wild, h.captures = name, wild, []string{name}
		return h, nil
	}

	var err error
	if h.expr, err = parseExpression(text); err == nil {
		h.captures = slices.DeleteFunc(slices.Clone(h.expr.names), isVariable)
	}
	return h, err
}

// fill returns the name for the values of the captures.
func (p *pattern) fill(e *environment) (string, error) {
	var b strings.Builder
	for i, h := range p.holes {
		b.WriteString(p.literals[i])
		var v any
		if h.expr != nil {
			var err error
			if v, err = h.expr.run(e); err != nil {
				return "", err
			}
		} else {
			v = e.captures[h.capture]
		}

		switch v := v.(type) {
		case int:
			if v < 0 {
				return "", fmt.Errorf("{%s} of %q is %d", h.text, p.text, v)
			}
			fmt.Fprint(&b, v)
		case string:
			b.WriteString(v)
		case nil:
			return "", &unknownError{what: h.text, why: e.why[h.text]}
		default:
			return "", fmt.Errorf("{%s} of %q is %v, which is neither a number nor a text", h.text, p.text, v)
		}
	}

	b.WriteString(p.literals[len(p.holes)])
	return b.String(), nil
}

// regexp returns an expression that matches all names of the pattern, with a group for
// each hole. lists has the texts that a capture may be.
func (p *pattern) regexp(lists map[string][]string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for i, h := range p.holes {
		b.WriteString(regexp.QuoteMeta(p.literals[i]))
		texts := lists[h.capture]
		switch {
		case h.wild:
			b.WriteString(`(.+)`)
		case h.expr == nil && texts != nil:
			quoted := make([]string, len(texts))
			for k, t := range texts {
				quoted[k] = regexp.QuoteMeta(t)
			}
			b.WriteString(`(` + strings.Join(quoted, "|") + `)`)
		case h.expr != nil:
			b.WriteString(`([^.]+)`)
		default:
			b.WriteString(`(0|[1-9][0-9]{0,8})`)
		}
	}

	b.WriteString(regexp.QuoteMeta(p.literals[len(p.holes)]) + `\z`)
	return regexp.MustCompile(b.String())
}

// without returns the pattern without the number {capture} of a step of its path, and whether
// it has such a step: "layers.{i}.mlp" and "layers_{i}.mlp" become "layers.mlp".
func (p *pattern) without(capture string) (*pattern, bool) {
	for i, h := range p.holes {
		before := p.literals[i]
		if h.capture != capture || h.wild || !strings.HasSuffix(before, ".") && !strings.HasSuffix(before, "_") || !strings.HasPrefix(p.literals[i+1], ".") {
			continue
		}
		last := before[len(before)-1:]
		q := &pattern{
			text:     strings.Replace(p.text, last+"{"+h.text+"}.", ".", 1),
			literals: slices.Concat(p.literals[:i], []string{strings.TrimSuffix(before, last) + p.literals[i+1]}, p.literals[i+2:]),
			holes:    slices.Concat(p.holes[:i], p.holes[i+1:]),
		}
		return q, true
	}
	return p, false
}

// filled returns the pattern with the values of the holes that have only variables, as far as
// they are known.
func (p *pattern) filled(e *environment) *pattern {
	q := &pattern{text: p.literals[0], literals: []string{p.literals[0]}}
	for i, h := range p.holes {
		after := p.literals[i+1]
		if text, ok := h.fixed(e); ok {
			q.literals[len(q.literals)-1] += text + after
			q.text += text + after
			continue
		}
		q.literals, q.holes = append(q.literals, after), append(q.holes, h)
		q.text += "{" + h.text + "}" + after
	}
	if len(q.holes) == len(p.holes) {
		return p
	}
	return q
}

// fixed returns the text of a hole that does not depend on captures.
func (h *hole) fixed(e *environment) (string, bool) {
	if h.expr == nil || len(h.captures) > 0 {
		return "", false
	}
	switch v, _ := h.expr.run(e); v := v.(type) {
	case string:
		return v, len(v) <= maxPattern
	case int:
		return strconv.Itoa(v), v >= 0
	}
	return "", false
}

// shape returns the pattern with each hole, and each number of a name, as {}. Names are
// compared with patterns in this form.
func (p *pattern) shape() string { return strings.ReplaceAll(p.openShape(), "*", "{}") }

// openShape is shape, with a star for each hole that has only variables: it may stand for
// several steps of a path, or for none.
func (p *pattern) openShape() string {
	out := nameShape(p.literals[0])
	for i, h := range p.holes {
		if len(h.captures) == 0 {
			out += "*"
		} else {
			out += "{}"
		}
		out += nameShape(p.literals[i+1])
	}
	return out
}

var numbers = regexp.MustCompile(`[0-9]+`)

func nameShape(name string) string { return numbers.ReplaceAllString(name, "{}") }

// glob matches names: a star stands for any characters.
type glob struct {
	parts []string // between the stars
}

func parseGlob(text string) (glob, error) {
	if text == "" {
		return glob{}, errors.New("a pattern is empty")
	}
	if len(text) > maxPattern {
		return glob{}, fmt.Errorf("a pattern of more than %d characters", maxPattern)
	}
	return glob{strings.Split(text, "*")}, nil
}

// match reports whether the glob matches all of a name.
func (g glob) match(name string) bool {
	last := len(g.parts) - 1
	if last == 0 {
		return name == g.parts[0]
	}

	rest, ok := strings.CutPrefix(name, g.parts[0])
	if !ok {
		return false
	}

	for _, part := range g.parts[1:last] { // the first place for each is as good as any
		at := strings.Index(rest, part)
		if at < 0 {
			return false
		}
		rest = rest[at+len(part):]
	}

	return strings.HasSuffix(rest, g.parts[last])
}
