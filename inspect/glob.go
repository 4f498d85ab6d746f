package inspect

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ErrPattern reports a glob that cannot be understood.
var ErrPattern = errors.New("malformed pattern")

// Glob returns a function that matches whole names against a pattern: a star
// stands for any characters, dots too, a question mark for one, and [ab-d] or
// [!ab-d] for one of a set. A backslash takes the next character as it is. A
// pattern without any of these matches a name and everything below it, at a dot;
// the empty one matches no name. The error wraps ErrPattern.
func Glob(pattern string) (func(name string) bool, error) {
	if pattern != "" && !strings.ContainsAny(pattern, `*?[\`) {
		return func(name string) bool { return Below(name, pattern) }, nil
	}
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for rest := pattern; rest != ""; {
		re, n, err := globStep(rest)
		if err != nil {
			return nil, fmt.Errorf("%w %q: %w", ErrPattern, pattern, err)
		}
		b.WriteString(re)
		rest = rest[n:]
	}
	b.WriteString(`\z`)
	re, err := regexp.Compile(b.String())
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", ErrPattern, pattern, err)
	}
	return re.MatchString, nil
}

// globStep returns the regular expression of the first element of p, and its
// length in p.
func globStep(p string) (re string, n int, err error) {
	switch p[0] {
	case '*':
		return ".*", 1, nil
	case '?':
		return ".", 1, nil
	case '[':
		return globSet(p)
	case '\\':
		if len(p) == 1 {
			return "", 0, errors.New("it ends with a backslash")
		}
		return regexp.QuoteMeta(p[1:2]), 2, nil
	}
	return regexp.QuoteMeta(p[:1]), 1, nil
}

// globSet is globStep for a set of characters.
func globSet(p string) (re string, n int, err error) {
	end := strings.IndexByte(p, ']')
	if end < 2 {
		return "", 0, errors.New("[ without characters or ]")
	}
	set := p[1:end]
	not := ""
	if rest, ok := strings.CutPrefix(set, "!"); ok {
		not, set = "^", rest
	}
	if set == "" {
		return "", 0, errors.New("[! without characters")
	}
	quote := strings.NewReplacer(`\`, `\\`, `[`, `\[`, `^`, `\^`)
	return "[" + not + quote.Replace(set) + "]", end + 1, nil
}
