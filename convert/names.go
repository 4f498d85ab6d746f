package convert

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// selectEntries returns the entries that the options select, and the names among them that
// cannot be read, if the options leave them out.
func selectEntries(md *meta.Metadata, o *Options) (selected []*meta.Entry, damaged []inspect.Missing, err error) {
	f, err := inspect.NewFilter(o.Select, o.Exclude)
	if err != nil {
		return nil, nil, err
	}

	var out []*meta.Entry
	for i := range md.Entries {
		if e := &md.Entries[i]; f.Keep(e.FQN) {
			out = append(out, e)
		}
	}

	lost := md.WithoutMissing(func(x *meta.Missing) bool {
		if x.Below {
			return !f.KeepBelow(x.FQN)
		}
		return !f.Keep(x.FQN)
	})
	if o.SkipDamaged {
		damaged = inspect.MissingNames(lost)
	} else if err := lost.CheckWhole(nil); err != nil {
		return nil, nil, err
	}

	if err := f.Check(); err != nil {
		return nil, nil, err
	}
	if len(out) == 0 {
		return nil, nil, ErrEmpty
	}
	return out, damaged, nil
}

// rule is a value for the names that match a pattern.
type rule[T any] struct {
	glob  string
	match func(name string) bool // nil: the rule has no pattern
	used  bool                   // it has matched
	value T
}

func (r *rule[T]) matches(name string) bool {
	ok := r.match != nil && r.match(name)
	r.used = r.used || ok
	return ok
}

// parseRules reads rules of the form "GLOB=VALUE", or "VALUE" without a pattern. The
// last equals sign counts: values have no equals signs.
func parseRules[T any](texts []string, parse func(string) (T, error)) ([]*rule[T], error) {
	var out []*rule[T]
	for _, text := range texts {
		i := strings.LastIndex(text, "=")
		v, err := parse(strings.TrimSpace(text[i+1:]))
		if err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrOption, text, err)
		}

		r := &rule[T]{value: v}
		if i >= 0 {
			r.glob = text[:i]
			if r.match, err = inspect.Glob(r.glob); err != nil {
				return nil, err
			}
		}
		out = append(out, r)
	}

	return out, nil
}

// checkUsed returns an error if a pattern matched no name: most likely it is mistyped.
func checkUsed[T any](rules []*rule[T]) error {
	for _, r := range rules {
		if r.match != nil && !r.used {
			return fmt.Errorf("%w: a name like %q", plan.ErrMissing, r.glob)
		}
	}
	return nil
}

// castTo returns the dtype in the target of a tensor of that name and dtype. Rules without a
// pattern are for floating-point tensors that are not quantised by a recipe: a stored number
// is meaningless without its scale. The last rule that applies counts.
func castTo(rules []*rule[tensor.DType], name string, from tensor.DType, quantized bool) tensor.DType {
	to := from
	for _, r := range rules {
		if r.matches(name) || r.match == nil && from.IsFloat() && !quantized {
			to = r.value
		}
	}
	return to
}

// Rename changes names by rules, and records which rules matched. It is not safe for
// concurrent use.
type Rename []renameRule

// renameRule rewrites the names that it matches.
type renameRule struct {
	text string
	re   *regexp.Regexp
	to   string
	all  bool // every match in a name, not only the first
	used bool // it has matched
}

// ParseRename reads rules, each in one of two forms:
//
//	FROM=TO      names of the form FROM become TO. A star in FROM stands for any
//	             characters, as few as possible; the stars in TO stand for the
//	             same, in order. A backslash takes the next character as it is.
//	s/RE/TO/     the first match of the regular expression RE becomes TO; with a
//	             g behind the last slash every match does. $1 or ${1} in TO is
//	             the first group. Any character can stand in the place of the
//	             slash.
//
// So "model.*=*" takes a prefix away, "*=model.*" puts one in front,
// "*.attn.*=*.attention.*" replaces a part and `s/^h\.(\d+)\./layers.$1./` uses a
// group. Errors wrap ErrOption.
func ParseRename(rules []string) (Rename, error) {
	var out Rename
	for _, text := range rules {
		r, err := parseRename(text)
		if err != nil {
			return nil, fmt.Errorf("%w: rename %q: %w", ErrOption, text, err)
		}
		r.text = text
		out = append(out, r)
	}

	return out, nil
}

func parseRename(text string) (renameRule, error) {
	if isSubstitution(text) {
		return parseSubstitution(text)
	}

	from, to, ok := cutPlain(text, '=')
	if !ok {
		return renameRule{}, fmt.Errorf("want FROM=TO or s/RE/TO/")
	}

	parts, outs := splitStars(from), splitStars(to)
	if len(outs) > len(parts) {
		return renameRule{}, fmt.Errorf("more stars in TO than in FROM")
	}

	var re, repl strings.Builder
	for i, p := range parts {
		if i > 0 {
			re.WriteString("(.*?)")
		}
		re.WriteString(regexp.QuoteMeta(p))
	}

	for i, p := range outs {
		if i > 0 {
			fmt.Fprintf(&repl, "${%d}", i)
		}
		repl.WriteString(strings.ReplaceAll(p, "$", "$$"))
	}

	compiled, err := regexp.Compile(`(?s)\A` + re.String() + `\z`)
	return renameRule{re: compiled, to: repl.String()}, err
}

// isSubstitution reports whether a rule is of the form s/RE/TO/.
func isSubstitution(text string) bool {
	if len(text) < 2 || text[0] != 's' {
		return false
	}
	d := text[1]
	return strings.ContainsRune("/|#,!:", rune(d)) && strings.Count(text[2:], string(rune(d))) >= 2
}

func parseSubstitution(text string) (renameRule, error) {
	sep := text[1]
	re, rest, ok := cutPlain(text[2:], sep)
	if !ok {
		return renameRule{}, fmt.Errorf("want s/RE/TO/")
	}

	to, flags, ok := cutPlain(rest, sep)
	if !ok || flags != "" && flags != "g" {
		return renameRule{}, fmt.Errorf("want s/RE/TO/ or s/RE/TO/g")
	}

	unescape := strings.NewReplacer(`\`+string(rune(sep)), string(rune(sep)))
	compiled, err := regexp.Compile(unescape.Replace(re))
	return renameRule{re: compiled, to: unescape.Replace(to), all: flags == "g"}, err
}

// cutPlain cuts s around the first sep that no backslash is before.
func cutPlain(s string, sep byte) (before, after string, found bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case sep:
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

// splitStars returns the parts of s between the stars, without backslashes.
func splitStars(s string) []string {
	var out []string
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '*':
			out = append(out, b.String())
			b.Reset()
			continue
		case s[i] == '\\' && i+1 < len(s):
			i++
		}
		b.WriteByte(s[i])
	}

	return append(out, b.String())
}

// Apply returns the new name of a name.
func (r Rename) Apply(name string) string {
	for i := range r {
		name = r[i].apply(name)
	}
	return name
}

// Check returns an error that wraps plan.ErrMissing if a rule did not match any name
// that was passed to Apply: most likely it is mistyped.
func (r Rename) Check() error {
	for i := range r {
		if !r[i].used {
			return fmt.Errorf("%w: a name for the rule %q", plan.ErrMissing, r[i].text)
		}
	}
	return nil
}

func (r *renameRule) apply(name string) string {
	at := r.re.FindStringSubmatchIndex(name)
	if at == nil {
		return name
	}

	r.used = true
	if r.all {
		return r.re.ReplaceAllString(name, r.to)
	}

	out := append([]byte(nil), name[:at[0]]...)
	out = r.re.ExpandString(out, r.to, name, at)
	return string(out) + name[at[1]:]
}

// renamedPath returns the new path of an entry that is renamed to name. The steps at
// the beginning and the end that the name still contains stay as they are, so that
// lists stay lists. The steps between them are keys.
func renamedPath(old meta.Path, name string) meta.Path {
	if old == nil {
		return nil
	}

	n, rest := keep(name, len(old), func(i int) string { return old[len(old)-1-i].String() }, func(s, step string) (string, bool) {
		return strings.CutSuffix(s, "."+step)
	})
	begin, end := old[:len(old)-n], old[len(old)-n:]
	steps := len(begin)
	if rest == "" {
		steps = 0
	}

	n, rest = keep(rest, steps, func(i int) string { return begin[i].String() }, func(s, step string) (string, bool) {
		return strings.CutPrefix(s, step+".")
	})
	out := append(meta.Path(nil), begin[:n]...)
	if rest != "" {
		for k := range strings.SplitSeq(rest, ".") {
			out = append(out, meta.Key(k))
		}
	}

	return append(out, end...)
}

// keep cuts steps off a name, one after the other, as long as the name has them. It
// returns their number and the rest of the name.
func keep(name string, steps int, step func(i int) string, cut func(name, step string) (string, bool)) (int, string) {
	for n := range steps {
		if name == step(n) {
			return n + 1, ""
		}
		rest, ok := cut(name, step(n))
		if !ok {
			return n, name
		}
		name = rest
	}
	return steps, name
}

// place returns a path as the key of a map.
func place(p meta.Path) string {
	var b strings.Builder
	for _, s := range p {
		b.WriteString(s.String())
		b.WriteByte(0)
	}
	return b.String()
}

// reconcile makes paths that were changed one by one fit together: the same place is not a
// map for one of them and a list for another, a state is a map, and a value has no contents,
// unless it is a value with tensors inside. paths are by name; paths without a place in the
// tree become nil.
func reconcile(paths []meta.Path, open map[string]bool) {
	leaves, maps := map[string]bool{}, map[string]bool{"": true}
	for _, p := range paths {
		if p == nil {
			continue
		}
		leaves[place(p)] = true
		for i, s := range p {
			if !s.List {
				maps[place(p[:i])] = true
			}
		}
	}

	for n, p := range paths {
		out := append(meta.Path(nil), p...)
		for i, s := range p {
			at := place(p[:i])
			if i > 0 && leaves[at] && !open[at] {
				out = nil
				break
			}
			if s.List && maps[at] {
				out[i] = meta.Key(strconv.Itoa(s.Pos))
			}
		}

		paths[n] = out
	}
}
