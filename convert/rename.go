package convert

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/cairn-ckpt/cairn/plan"
)

// Rename changes names by rules, and remembers which of them matched. It is not
// safe for concurrent use.
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

// splitStars returns what stands between the stars of s, without backslashes.
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

// Apply returns what the rules make of a name.
func (r Rename) Apply(name string) string {
	for i := range r {
		name = r[i].apply(name)
	}
	return name
}

// Check returns an error that wraps plan.ErrMissing if a rule matched none of the
// names that Apply was asked about: most likely it is mistyped.
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
