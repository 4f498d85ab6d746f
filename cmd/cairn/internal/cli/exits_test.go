package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// readers are the command lines that read a checkpoint: CK is its path, OUT is a new
// file.
var readers = []string{
	"ls CK", "inspect CK", "inspect CK step", "digest CK", "cat CK model.norm.weight", "stats CK", "diff CK GOOD", "diff GOOD CK",
	"convert CK OUT --to dcp", "merge CK OUT.pt", "verify CK", "table CK -o OUT", "repair CK --dry-run", "clean CK --dry-run",
	"tag CK", "rm CK --force --dry-run",
}

// describers are the commands that read no data: damaged data does not stop them.
var describers = []string{"ls CK", "inspect CK", "inspect CK step", "table CK -o OUT", "repair CK --dry-run", "clean CK --dry-run", "tag CK", "rm CK --force --dry-run"}

// situations are the ways in which a checkpoint can be wrong, with the exit code of
// every command that reads it and the exceptions.
var situations = []struct {
	name   string
	make   func(t *testing.T, dir string) // of the folder of a native checkpoint
	code   int
	except map[string]int
}{
	{name: "whole", make: func(*testing.T, string) {}, code: 0},
	{name: "no such path", make: func(t *testing.T, dir string) { must.Do(t, os.RemoveAll(dir)) }, code: 3},
	{name: "an empty folder", make: func(t *testing.T, dir string) {
		must.Do(t, os.RemoveAll(dir))
		must.Do(t, os.Mkdir(dir, 0o777))
	}, code: 3, except: map[string]int{"clean CK --dry-run": 0}}, // the folder is empty
	{name: "a text file", make: func(t *testing.T, dir string) {
		must.Do(t, os.RemoveAll(dir))
		must.Do(t, os.WriteFile(dir, []byte("hello\n"), 0o666))
	}, code: 3},
	{name: "an unknown store", make: nil, code: 2},
	{name: "a newer version", make: newer, code: 6},
	{
		name: "no record", make: func(t *testing.T, dir string) { must.Do(t, os.Remove(filepath.Join(dir, recordName))) },
		code: 4, except: map[string]int{"repair CK --dry-run": 0, "clean CK --dry-run": 0},
	},
	{
		name: "a damaged record", make: func(t *testing.T, dir string) { damage(t, filepath.Join(dir, recordName), 30) },
		code: 5, except: map[string]int{"repair CK --dry-run": 0},
	},
	{
		name: "a damaged index", make: func(t *testing.T, dir string) { damage(t, only(t, dir, "*-index.cairn"), 30) },
		code: 5, except: map[string]int{"repair CK --dry-run": 0, "clean CK --dry-run": 0, "tag CK": 0, "rm CK --force --dry-run": 0},
	},
	{
		name: "a lost index", make: func(t *testing.T, dir string) { must.Do(t, os.Remove(only(t, dir, "*-index.cairn"))) },
		code: 5, except: map[string]int{"repair CK --dry-run": 0, "clean CK --dry-run": 0},
	},
	{name: "damaged data", make: func(t *testing.T, dir string) {
		for _, f := range files(t, dir, "*.safetensors") {
			damage(t, f, -1)
			damage(t, f, -3000)
		}
	}, code: 5, except: zero(describers)},
	{name: "lost data", make: func(t *testing.T, dir string) {
		for _, f := range files(t, dir, "*.safetensors") {
			must.Do(t, os.Remove(f))
		}
	}, code: 5, except: with(with(zero(describers), "repair CK --dry-run", 4), "tag CK", 5)},
}

func with(m map[string]int, line string, code int) map[string]int {
	m[line] = code
	return m
}

func zero(lines []string) map[string]int {
	m := map[string]int{}
	for _, l := range lines {
		m[l] = 0
	}
	return m
}

func files(t *testing.T, dir, glob string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, glob))
	if err != nil || len(found) == 0 {
		t.Fatalf("%s in %s: %v, %v", glob, dir, found, err)
	}
	return found
}

func only(t *testing.T, dir, glob string) string { return files(t, dir, glob)[0] }

// damage flips a bit of the byte at an offset, or from the end if it is negative.
func damage(t *testing.T, name string, at int) {
	t.Helper()
	b, err := os.ReadFile(name)
	must.Do(t, err)
	if at < 0 {
		at = max(0, len(b)+at)
	}
	b[at] ^= 1
	must.Do(t, os.WriteFile(name, b, 0o666))
}

// newer changes the version of a record to one that does not exist yet.
func newer(t *testing.T, dir string) {
	name := filepath.Join(dir, recordName)
	b, err := os.ReadFile(name)
	must.Do(t, err)
	var f struct {
		Record json.RawMessage `json:"record"`
	}
	must.Do(t, json.Unmarshal(b, &f))
	record := bytes.Replace(f.Record, []byte(`"version": 1,`), []byte(`"version": 1000,`), 1)
	if bytes.Equal(record, f.Record) {
		t.Fatalf("no version in %s", record)
	}
	crc := crc32.Checksum(record, crc32.MakeTable(crc32.Castagnoli))
	must.Do(t, os.WriteFile(name, fmt.Appendf(nil, `{"crc32c": "%08x", "record": %s}`, crc, record), 0o644))
}

// Every command that reads a checkpoint ends with the same exit code in the same
// situation, and its JSON has the code and the kind of the table.
func TestExitCodeOfEveryCommand(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	if got := Main(t.Context(), strings.Fields("demo --keep --size 256KiB --ranks 2 --dir "+good), io.Discard, io.Discard); got != 0 {
		t.Fatalf("exit code %d", got)
	}
	for i, s := range situations {
		for j, line := range readers {
			if name, _, _ := strings.Cut(line, " "); !hasCommand(name) {
				continue
			}
			ck, out := "nosuch://store", filepath.Join(dir, fmt.Sprintf("out-%d-%d", i, j))
			if s.make != nil {
				ck = filepath.Join(dir, fmt.Sprintf("ck-%d-%d", i, j))
				must.Do(t, os.CopyFS(ck, os.DirFS(good)))
				s.make(t, ck)
			}
			want, excepted := s.except[line]
			if !excepted {
				want = s.code
			}
			checkExit(t, t.Context(), s.name, strings.NewReplacer("CK", ck, "GOOD", good, "OUT", out).Replace(line), want)
		}
	}
}

func hasCommand(name string) bool {
	c, _, err := newRootCmd().Find([]string{name})
	return err == nil && c.Name() == name
}

// checkExit runs a command line with --json and checks its exit code and the error
// that it prints.
func checkExit(t *testing.T, ctx context.Context, claim, line string, want int) {
	t.Helper()
	var errOut bytes.Buffer
	got := Main(ctx, append(strings.Fields(line), "--json"), io.Discard, &errOut)
	if got != want {
		t.Errorf("%s: cairn %s: exit code %d, want %d: %s", claim, line, got, want, &errOut)
		return
	}
	if want == 0 {
		return
	}
	var f failure
	if err := json.Unmarshal(errOut.Bytes(), &f); err != nil {
		t.Errorf("%s: cairn %s: printed %q: %v", claim, line, &errOut, err)
		return
	}
	for _, e := range exits {
		if e.code == want && (f.Code != want || f.Kind != e.name || f.Error == "") {
			t.Errorf("%s: cairn %s: printed %+v; want kind %s and code %d", claim, line, f, e.name, want)
		}
	}
}

// The other codes, and the codes of other commands.
func TestExitCodesOfOtherMistakes(t *testing.T) {
	dir := t.TempDir()
	ck := filepath.Join(dir, "ck")
	if got := Main(t.Context(), strings.Fields("demo --keep --size 64KiB --ranks 1 --dir "+ck), io.Discard, io.Discard); got != 0 {
		t.Fatalf("exit code %d", got)
	}
	for line, want := range map[string]int{
		// Names and patterns.
		"ls CK nothing": 3, "ls CK --match nothing": 3, "inspect CK nothing": 3, "digest CK nothing": 3, "cat CK nothing": 3,
		"stats CK nothing": 3, "stats CK --select nothing": 3, "diff CK CK --select nothing": 3, "convert CK OUT --to hf --select nothing": 3,
		"merge CK OUT.pt --select nothing": 3, "repair CK --save nothing": 3,
		"ls CK --match [": 2, "stats CK --select [": 2, "diff CK CK --select [": 2, "convert CK OUT --to hf --select [": 2,
		// Wrong usage.
		"nothing": 2, "ls": 2, "inspect": 2, "digest": 2, "cat CK": 2, "stats": 2, "diff CK": 2, "convert CK": 2, "merge CK": 2, "verify": 2,
		"repair": 2, "table CK": 2, "bench nothing": 2, "demo x": 2, "launch": 2, "run": 2, "version x": 2, "completion klingon": 2, "help nothing": 2,
		"ls CK --nothing": 2, "convert CK OUT --to nothing": 2, "cat CK step --slice 0": 2, "stats CK --sort nothing": 2, "demo --size 1": 2, "demo --dir CK/cairn.json/x": 2,
		// Things that do not fit together.
		"convert CK OUT --to hf": 7,
		// Differences, and other errors of diff.
		"diff CK CK --rename s/.*/x/": 8, "diff CK CK --exclude step": 0,
		// Anything else.
		"table CK -o CK/no/such/file": 1, "cat CK step --raw CK/no/such/file": 1, "convert CK CK --to dcp": 1, "convert CK CK/cairn.json/x --to dcp": 1,
		"repair CK --save nothing --dry-run": 3,
	} {
		checkExit(t, t.Context(), "mistake", strings.NewReplacer("CK", ck, "OUT", filepath.Join(dir, "out")).Replace(line), want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, line := range []string{"digest CK", "stats CK", "verify CK", "diff CK CK", "convert CK OUT --to dcp", "demo --dir OUT"} {
		checkExit(t, ctx, "interrupted", strings.NewReplacer("CK", ck, "OUT", filepath.Join(dir, "out")).Replace(line), exitInterrupted)
	}
}
