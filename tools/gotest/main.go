// Command gotest runs "go test" and prints its output. At the end it lists the slowest
// packages and tests, and the tests that were skipped, which "go test" does not show. It exits
// with the code of "go test".
// With -all it also fails if a test was skipped, or if no test was run.
// With -into it adds the lists to a file; -from prints the lists of all runs in such a file as one.
//
//	go run ./tools/gotest [-all] [-into FILE] [-- ARGUMENT OF GO TEST ...]
//	go run ./tools/gotest -from FILE
//
// The variable GO in the environment names the go command.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

func main() {
	all := flag.Bool("all", false, "fail if a test was skipped, or if no test was run")
	into := flag.String("into", "", "add the lists to a file instead of printing them")
	from := flag.String("from", "", "print the lists in a file, and run no tests")
	flag.Parse()
	r, code, err := newReport(os.Stdout), 0, error(nil)
	if *from != "" {
		err = r.load(*from)
	} else {
		code = r.test(flag.Args())
	}
	if *into != "" {
		err = r.save(*into)
	} else {
		r.printSlowest()
		r.printSkipped()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		code = max(code, 1)
	}
	if *all && code == 0 && !r.complete() {
		fmt.Fprintf(os.Stderr, "gotest: %d tests passed and %d were skipped; here all of them must run\n", r.passed, len(r.Skipped))
		code = 1
	}
	os.Exit(code)
}

// test runs go test and returns its exit code.
func (r *report) test(args []string) int {
	cmd := exec.Command(cmp.Or(os.Getenv("GO"), "go"), append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		err = errors.Join(r.read(events), cmd.Wait())
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "gotest: go test:", err)
	return max(1, cmd.ProcessState.ExitCode())
}

// event is a line of "go test -json". Other fields are ignored.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64 // seconds, of a result

	passed bool // the test has printed it and passed
}

// report prints the results of packages as they arrive.
type report struct {
	out io.Writer
	// outputs has the output of each package.
	outputs map[string][]event
	passed  int
	lists
}

// lists are printed at the end of a report, or kept in a file until all runs are over.
type lists struct {
	Skipped []skip
	// Packages and Tests have the results, with their times. Parts of tests are left out.
	Packages, Tests []event
}

// skip is a test that was skipped.
type skip struct{ Package, Test, Reason string }

// save adds the lists to a file, as one line.
func (r *report) save(name string) error {
	line, err := json.Marshal(r.lists)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// load adds the lists in a file to the ones of the report.
func (r *report) load(name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(b) {
		var l lists
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.Skipped = append(r.Skipped, l.Skipped...)
		r.Packages, r.Tests = append(r.Packages, l.Packages...), append(r.Tests, l.Tests...)
	}
	return nil
}

func newReport(out io.Writer) *report { return &report{out: out, outputs: map[string][]event{}} }

// complete reports whether tests were run, and all of them ran to the end.
func (r *report) complete() bool { return r.passed > 0 && len(r.Skipped) == 0 }

// read reads the events of one run of go test. Lines that are not events are printed.
func (r *report) read(events io.Reader) error {
	d := json.NewDecoder(events)
	for {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			rest, _ := io.ReadAll(io.MultiReader(d.Buffered(), events)) // the first error counts
			fmt.Fprintf(r.out, "%s\n", rest)
			return err
		}
		r.receive(e)
	}
}

func (r *report) receive(e event) {
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.outputs[e.Package] = append(r.outputs[e.Package], e)
	case "pass", "skip", "fail":
		if e.Test == "" {
			r.Packages = append(r.Packages, e)
			r.printPackage(e)
			return
		}
		if !strings.Contains(e.Test, "/") {
			r.Tests = append(r.Tests, e)
		}
		if e.Action == "fail" {
			return
		}
		text, outputs := "", r.outputs[e.Package]
		for i := range outputs {
			if outputs[i].Test == e.Test {
				text += outputs[i].Output
				outputs[i].passed = true
			}
		}
		if e.Action == "pass" {
			r.passed++
		} else {
			r.Skipped = append(r.Skipped, skip{e.Package, e.Test, reason(text)})
		}
	}
}

// noise matches the lines about the order of tests.
var noise = regexp.MustCompile(`^=== (RUN|PAUSE|CONT|NAME) `)

// printPackage prints the result of a package: its last line, and the output of a package
// that has failed. Tests that passed are left out, unless a failed test has no output: if a
// server in the process prints a line without an end, go test assigns the lines that follow
// to the wrong test.
func (r *report) printPackage(result event) {
	outputs := r.outputs[result.Package]
	delete(r.outputs, result.Package)
	all := silent(outputs)
	if result.Action != "fail" && len(outputs) > 0 {
		outputs, all = outputs[len(outputs)-1:], true
	}
	for _, o := range outputs {
		if (all || !o.passed) && !noise.MatchString(o.Output) {
			fmt.Fprint(r.out, o.Output)
		}
	}
}

// silent reports whether a failed test without failed parts has no output.
func silent(outputs []event) bool {
	for _, f := range outputs {
		if !strings.HasPrefix(strings.TrimLeft(f.Output, " "), "--- FAIL: ") {
			continue
		}
		said := func(o event) bool {
			own := o.Test == f.Test && o.Output != f.Output || strings.HasPrefix(o.Test, f.Test+"/") && !o.passed
			return own && !noise.MatchString(o.Output)
		}
		if !slices.ContainsFunc(outputs, said) {
			return true
		}
	}
	return false
}

// place matches the position of the call of Skip.
var place = regexp.MustCompile(`^\s*\S+\.go:\d+: `)

// reason returns why a test was skipped, from its output.
func reason(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		if noise.MatchString(line) || strings.HasPrefix(strings.TrimSpace(line), "--- SKIP") {
			continue
		}
		if line = strings.TrimSpace(place.ReplaceAllString(line, "")); line != "" {
			out = append(out, line)
		}
	}
	return cmp.Or(strings.Join(out, "; "), "no reason given")
}

// slow is how many packages and tests printSlowest lists. Shorter ones than slowSeconds are left out.
const (
	slow        = 10
	slowSeconds = 1
)

// printSlowest lists the packages and the tests that took the longest.
func (r *report) printSlowest() {
	for _, kind := range []struct {
		title   string
		results []event
	}{{"Slowest packages:", r.Packages}, {"Slowest tests:", r.Tests}} {
		all := slices.SortedStableFunc(slices.Values(kind.results), func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
		for i, e := range all[:min(slow, len(all))] {
			if e.Elapsed < slowSeconds {
				break
			}
			if i == 0 {
				fmt.Fprintln(r.out, kind.title)
			}
			fmt.Fprintf(r.out, "  %7.1f s  %s\n", e.Elapsed, strings.TrimSuffix(e.Package+"."+e.Test, "."))
		}
	}
}

// printSkipped lists the skipped tests, with a line for each package and reason.
func (r *report) printSkipped() {
	if len(r.Skipped) == 0 {
		fmt.Fprintln(r.out, "No test was skipped.")
		return
	}
	var order []skip // without tests
	tests := map[skip][]string{}
	for _, s := range r.Skipped {
		key := skip{Package: s.Package, Reason: s.Reason}
		if tests[key] == nil {
			order = append(order, key)
		}
		tests[key] = append(tests[key], s.Test)
	}
	fmt.Fprintf(r.out, "Skipped tests: %d\n", len(r.Skipped))
	for _, key := range order {
		names := tests[key]
		if n := len(names) - 3; n > 0 {
			names = append(names[:3:3], fmt.Sprintf("and %d more", n))
		}
		fmt.Fprintf(r.out, "  %s: %s (%s)\n", key.Package, key.Reason, strings.Join(names, ", "))
	}
}
