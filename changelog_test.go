package cairn_test

import (
	"bytes"
	"fmt"
	"github.com/cairn-ckpt/cairn/internal/must"
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
	files := must.Get(filepath.Glob("changelog/*/*"))(t)
	for _, name := range files {
		b := must.Get(os.ReadFile(name))(t)
		for _, p := range changeProblems(filepath.Base(name), b) {
			t.Errorf("%s: %s (see changelog/TEMPLATE)", name, p)
		}
	}
	if len(files) == 0 {
		t.Error("no entries at all; the pattern is wrong")
	}
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
