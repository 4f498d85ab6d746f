package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestReportOfEvents(t *testing.T) {
	const events = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestSkip"}
{"Action":"output","Package":"m/a","Test":"TestSkip","Output":"=== RUN   TestSkip\n"}
{"Action":"output","Package":"m/a","Test":"TestSkip","Output":"    a_test.go:5: no disk here\n"}
{"Action":"output","Package":"m/a","Test":"TestSkip","Output":"--- SKIP: TestSkip (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestSkip"}
{"Action":"output","Package":"m/a","Test":"TestOther/x","Output":"        a_test.go:9: no disk here\n"}
{"Action":"skip","Package":"m/a","Test":"TestOther/x"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"    a_test.go:7: chatter\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}
{"Action":"pass","Package":"m/a"}
{"Action":"output","Package":"m/b","Test":"TestGood","Output":"    b_test.go:7: chatter\n"}
{"Action":"pass","Package":"m/b","Test":"TestGood"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"    b_test.go:3: wrong\n"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad"}
{"Action":"output","Package":"m/b","Test":"TestUnfinished","Output":"panic: out of time\n"}
{"Action":"output","Package":"m/b","Output":"FAIL\tm/b\t0.2s\n"}
{"Action":"fail","Package":"m/b"}
{"Action":"output","Package":"m/d","Test":"TestGood","Output":"    d_test.go:7: chatter\n"}
{"Action":"output","Package":"m/d","Test":"TestGood","Output":"    d_test.go:9: the reason of TestBad\n"}
{"Action":"pass","Package":"m/d","Test":"TestGood"}
{"Action":"output","Package":"m/d","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"m/d","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}
{"Action":"fail","Package":"m/d","Test":"TestBad"}
{"Action":"output","Package":"m/d","Output":"FAIL\tm/d\t0.2s\n"}
{"Action":"fail","Package":"m/d"}
{"Action":"build-output","ImportPath":"m/c","Output":"c.go:1: no such thing\n"}
{"Action":"output","Package":"m/c","Output":"FAIL\tm/c [build failed]\n"}
{"Action":"fail","Package":"m/c","FailedBuild":"m/c"}
`
	const want = `ok  	m/a	0.1s
    b_test.go:3: wrong
--- FAIL: TestBad (0.00s)
panic: out of time
FAIL	m/b	0.2s
    d_test.go:7: chatter
    d_test.go:9: the reason of TestBad
--- FAIL: TestBad (0.00s)
FAIL	m/d	0.2s
c.go:1: no such thing
FAIL	m/c [build failed]
Skipped tests: 2
  m/a: no disk here (TestSkip, TestOther/x)
`
	var out bytes.Buffer
	r := newReport(&out)
	must.Do(t, r.read(strings.NewReader(events)))
	r.printSkipped()
	if out.String() != want {
		t.Errorf("the report is\n%s\nwant\n%s", &out, want)
	}
}

func TestSlowest(t *testing.T) {
	var events strings.Builder
	for i := range 12 {
		fmt.Fprintf(&events, `{"Action":"pass","Package":"m/a","Test":"Test%d","Elapsed":%d}`+"\n", i, i)
	}
	events.WriteString(`{"Action":"pass","Package":"m/a","Test":"Test11/part","Elapsed":99}
{"Action":"fail","Package":"m/a","Elapsed":66.04}
{"Action":"pass","Package":"m/b","Elapsed":0.9}
`)
	var out bytes.Buffer
	r := newReport(&out)
	must.Do(t, r.read(strings.NewReader(events.String())))
	r.printSlowest()
	want := "Slowest packages:\n     66.0 s  m/a\nSlowest tests:\n"
	for i := 11; i >= 2; i-- {
		want += fmt.Sprintf("  %7.1f s  m/a.Test%d\n", float64(i), i)
	}
	if out.String() != want {
		t.Errorf("the report is\n%s\nwant\n%s", &out, want)
	}
}

// The lists of several runs are printed as one.
func TestListsOfRuns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results")
	for _, events := range []string{
		`{"Action":"pass","Package":"m/a","Test":"TestA","Elapsed":3}` + "\n" + `{"Action":"pass","Package":"m/a","Elapsed":4}` + "\n",
		`{"Action":"skip","Package":"m/b","Test":"TestB"}` + "\n" + `{"Action":"fail","Package":"m/b","Elapsed":5}` + "\n",
	} {
		r := newReport(io.Discard)
		must.Do(t, r.read(strings.NewReader(events)))
		must.Do(t, r.save(file))
	}
	var out bytes.Buffer
	r := newReport(&out)
	must.Do(t, r.load(file))
	r.printSlowest()
	r.printSkipped()
	const want = `Slowest packages:
      5.0 s  m/b
      4.0 s  m/a
Slowest tests:
      3.0 s  m/a.TestA
Skipped tests: 1
  m/b: no reason given (TestB)
`
	if out.String() != want {
		t.Errorf("the lists are\n%s\nwant\n%s", &out, want)
	}
}

func TestOutputThatIsNotAnEventIsPrinted(t *testing.T) {
	var out bytes.Buffer
	if err := newReport(&out).read(strings.NewReader("go: cannot do that\n")); err == nil || !strings.Contains(out.String(), "cannot do that") {
		t.Errorf("read = %v with the output %q; want an error and the text", err, &out)
	}
}

// The exit code comes from go test, for tests that fail and for code that does not build.
func TestExitCodeOfModules(t *testing.T) {
	for name, c := range map[string]struct {
		body     string
		code     int
		want     string
		complete bool // for -all
	}{
		"passes":         {`func TestX(t *testing.T) {}`, 0, "ok  \tm", true},
		"skips":          {`func TestX(t *testing.T) { t.Skip("too late") }`, 0, "too late (TestX)", false},
		"skips a part":   {`func TestX(t *testing.T) { t.Run("y", func(t *testing.T) { t.Skip("too late") }) }`, 0, "too late (TestX/y)", false},
		"has no tests":   {`var _ testing.TB`, 0, "ok  \tm", false},
		"fails":          {`func TestX(t *testing.T) { t.Error("wrong") }`, 1, "wrong", false},
		"panics":         {`func TestX(t *testing.T) { panic("wrong") }`, 1, "panic: wrong", false},
		"does not build": {`func TestX(t *testing.T) { undefined() }`, 1, "undefined: undefined", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{
				"go.mod":    "module m\n",
				"x_test.go": "package m\n\nimport \"testing\"\n\n" + c.body + "\n",
			} {
				must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			var out bytes.Buffer
			r := newReport(&out)
			t.Chdir(dir)
			code := r.test([]string{"-count=1"})
			r.printSkipped()
			if r.complete() != c.complete {
				t.Errorf("complete = %t; want %t", r.complete(), c.complete)
			}
			if code != c.code || !strings.Contains(out.String(), c.want) {
				t.Errorf("the exit code is %d; want %d and %q in\n%s", code, c.code, c.want, &out)
			}
		})
	}
}
