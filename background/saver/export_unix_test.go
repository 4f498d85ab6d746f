//go:build unix

package saver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// script returns a command that runs a shell script, whose arguments are those of 'cairn export'.
func script(text string) []string { return []string{"/bin/sh", "-c", text, "export"} }

// An Exporter runs one command at a time for each address. Calls meanwhile become one command.
func TestExporterRunsOneCommandAtATime(t *testing.T) {
	dir := t.TempDir()
	x := &Exporter{Command: script(`echo "$@" >>` + dir + `/began; while ! test -e ` + dir + `/go; do sleep 0.01; done`)}
	done := make(chan error, 10)
	for range 4 {
		x.Export(t.Context(), "/run/a", func(err error) { done <- err })
	}
	x.Export(t.Context(), "/run/b", func(err error) { done <- err })
	must.Do(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o666))
	if !x.Wait(t.Context()) {
		t.Fatal("Wait = false")
	}
	close(done)
	n := 0
	for err := range done {
		n++
		must.Do(t, err)
	}
	began := string(must.Get(os.ReadFile(filepath.Join(dir, "began")))(t))
	a, b := strings.Count(began, "--background --quiet -- /run/a\n"), strings.Count(began, "--background --quiet -- /run/b\n")
	if a < 1 || a > 2 || b != 1 || n != a+b {
		t.Errorf("%d ends, and the commands:\n%s", n, began)
	}
}

// The error has what the command says, without secrets of the address and at most its end.
func TestExporterFails(t *testing.T) {
	x := &Exporter{Command: script(`i=0; while test $i -lt 2000; do echo "line $i" >&2; i=$((i+1)); done; exit 1`)}
	var got error
	x.Export(t.Context(), "s3://key:secret@bucket/run", func(err error) { got = err })
	x.Wait(t.Context())
	text := fmt.Sprint(got)
	if got == nil || strings.Contains(text, "secret") || !strings.HasSuffix(text, "line 1999") || len(text) > maxExportOutput+100 {
		t.Errorf("the error is %.200q", text)
	}
	x = &Exporter{Command: []string{filepath.Join(t.TempDir(), "nothing")}}
	x.Export(t.Context(), "/run", func(err error) { got = err })
	x.Wait(t.Context())
	if got == nil || !strings.Contains(got.Error(), "no such file") {
		t.Errorf("without the program: %v", got)
	}
}

// The end of the context ends the command.
func TestExporterStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	x := &Exporter{Command: script("exec sleep 1000")}
	ended := make(chan error, 1)
	x.Export(ctx, "/run", func(err error) { ended <- err })
	early, stop := context.WithTimeout(t.Context(), time.Millisecond)
	if x.Wait(early) {
		t.Error("Wait = true while a command runs")
	}
	stop()
	cancel()
	if err := <-ended; err == nil {
		t.Error("no error")
	}
}
