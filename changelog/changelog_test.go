// Package changelog checks the form of the changelog's entries, and that CHANGELOG.md
// is made of the entries of all releases. It is tests only.
package changelog

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
)

var update = flag.Bool("update", false, "write CHANGELOG.md")

var (
	changeName  = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*\.md$`)
	changeHead  = regexp.MustCompile(`^(Bugfix|Change|Enhancement|Security): \S.*[^.\s]$`)
	releaseName = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)_(\d{4}-\d\d-\d\d)$`)
)

// kinds are in the order of a release's entries.
var kinds = []string{"Security", "Change", "Enhancement", "Bugfix"}

const maxChangeLine = 80

func TestEntriesHaveTheirForm(t *testing.T) {
	files := entries(t, "*")
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

// CHANGELOG.md has the entries of every release, the newest first. What is not
// released yet is in the folder unreleased only.
func TestChangelogIsUpToDate(t *testing.T) {
	const file = "../CHANGELOG.md"
	var want strings.Builder
	want.WriteString("# Changelog\n\n<!-- Made of the files in changelog/ by \"make changelog\"; do not edit. -->\n")
	folders := releases(t)
	for _, folder := range folders {
		version, date, _ := strings.Cut(folder, "_")
		fmt.Fprintf(&want, "\n## %s (%s)\n", version, date)
		want.WriteString(release(t, folder))
	}
	if *update {
		must.Do(t, os.WriteFile(file, []byte(want.String()), 0o644))
	}
	got := must.Get(os.ReadFile(file))(t)
	if d := cmp.Diff(want.String(), string(got)); d != "" {
		t.Errorf("CHANGELOG.md is out of date (make changelog): -entries +file\n%s", d)
	}
	if len(folders) == 0 {
		t.Error("no release; the pattern is wrong")
	}
}

// releases returns the folders of releases, the newest first.
func releases(t *testing.T) []string {
	t.Helper()
	all := must.Get(os.ReadDir("."))(t)
	var out []string
	for _, d := range all {
		switch {
		case releaseName.MatchString(d.Name()):
			out = append(out, d.Name())
		case d.IsDir() && d.Name() != "unreleased":
			t.Errorf("the folder %s is neither unreleased nor named like 0.1.0_2026-11-17", d.Name())
		}
	}
	slices.SortFunc(out, func(a, b string) int { return slices.Compare(numbers(b), numbers(a)) })
	return out
}

// numbers returns the numbers of a version, so that they can be compared: 0.10.0 is
// newer than 0.9.0.
func numbers(folder string) []int {
	var n [3]int
	fmt.Sscanf(folder, "%d.%d.%d", &n[0], &n[1], &n[2])
	return n[:]
}

// release returns the text of a release: its entries by kind, and by the names of
// their files.
func release(t *testing.T, folder string) string {
	t.Helper()
	byKind := map[string]string{}
	for _, name := range entries(t, folder) {
		b := must.Get(os.ReadFile(name))(t)
		head, text, _ := strings.Cut(string(b), "\n")
		kind, _, _ := strings.Cut(head, ":")
		byKind[kind] += "\n### " + head + "\n" + text
	}
	var out strings.Builder
	for _, kind := range kinds {
		out.WriteString(byKind[kind])
	}
	return out.String()
}

// entries returns the files of a folder's entries, in order.
func entries(t *testing.T, folder string) []string {
	t.Helper()
	files := must.Get(filepath.Glob(folder + "/*"))(t)
	return slices.DeleteFunc(files, func(name string) bool { return filepath.Base(name) == ".gitkeep" })
}

func TestVersionsSortByNumber(t *testing.T) {
	if a, b := "0.9.0_2027-01-01", "0.10.0_2027-02-01"; slices.Compare(numbers(a), numbers(b)) >= 0 {
		t.Errorf("%s is not older than %s", a, b)
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
