package cairn_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	changeName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*\.md$`)
	changeHead = regexp.MustCompile(`^(Bugfix|Change|Enhancement|Security): \S.*[^.\s]$`)
)

const maxChangeLine = 80

func TestChangelogEntriesHaveTheirForm(t *testing.T) {
	files, err := filepath.Glob("changelog/*/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range changeProblems(filepath.Base(name), b) {
			t.Errorf("%s: %s (see changelog/TEMPLATE)", name, p)
		}
	}
	if len(files) == 0 {
		t.Error("no entries at all; the pattern is wrong")
	}
}

func TestChangelogFormIsChecked(t *testing.T) {
	const body = "Enhancement: Count stones\n\nThey were not counted. Now they are.\n"
	for claim, c := range map[string]struct{ name, text string }{
		"the name has capitals":       {"Count.md", body},
		"the name is no page":         {"count.txt", body},
		"the kind is unknown":         {"a.md", strings.Replace(body, "Enhancement", "Feature", 1)},
		"the head ends in a stop":     {"a.md", strings.Replace(body, "stones", "stones.", 1)},
		"there is no empty line":      {"a.md", strings.Replace(body, "\n\n", "\n", 1)},
		"there is no body":            {"a.md", "Bugfix: Count stones\n"},
		"the body is no sentence":     {"a.md", "Bugfix: Count stones\n\nnow counted\n"},
		"a line is long":              {"a.md", body + strings.Repeat("long ", 20) + "\n"},
		"a line ends in a blank":      {"a.md", strings.Replace(body, "Now they are.", "Now they are. ", 1)},
		"the last line does not end":  {"a.md", strings.TrimSpace(body)},
		"the template was left as is": {"a.md", string(template(t))},
	} {
		if p := changeProblems(c.name, []byte(c.text)); len(p) == 0 {
			t.Errorf("%s: nothing was said", claim)
		}
	}
	if p := changeProblems("count-stones.md", []byte(body)); len(p) > 0 {
		t.Errorf("problems of a sound entry = %q; want none", p)
	}
}

func template(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("changelog/TEMPLATE")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// changeProblems returns what is wrong with an entry of the changelog.
func changeProblems(name string, b []byte) []string {
	var out []string
	say := func(bad bool, format string, args ...any) {
		if bad {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	say(!changeName.MatchString(name), "the name is not lower-case words with dashes and .md")
	say(!bytes.HasSuffix(b, []byte("\n")) || bytes.HasSuffix(b, []byte("\n\n")), "it does not end in one line feed")
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	say(!changeHead.MatchString(lines[0]), "the first line %q is not a kind, a colon and words without a full stop", lines[0])
	say(len(lines) < 3 || lines[1] != "" || lines[2] == "", "the second line is not empty, or no text follows")
	text := lines[min(len(lines), 2):]
	say(!slices.ContainsFunc(text, func(l string) bool { return strings.HasSuffix(l, ".") }), "the text has no sentence")
	for i, l := range lines {
		say(utf8.RuneCountInString(l) > maxChangeLine, "line %d is longer than %d", i+1, maxChangeLine)
		say(l != strings.TrimRight(l, " \t\r"), "line %d ends in a blank", i+1)
		say(strings.HasPrefix(l, "#"), "line %d is a heading or a remark of the template", i+1)
	}
	return out
}
