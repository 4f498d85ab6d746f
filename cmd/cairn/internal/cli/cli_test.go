package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage/view"
)

func TestMain(m *testing.M) {
	// With the race detector, every process that a test starts would end a second late.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Setenv("XDG_CONFIG_HOME", filepath.Join(os.TempDir(), "cairn-tests")) // not the configuration of the user
	os.Exit(m.Run())
}

func TestExitCodes(t *testing.T) {
	for err, want := range map[error]int{
		errors.New("x"):         1,
		cairn.ErrExists:         1,
		cairn.ErrUncertain:      9,
		cairn.ErrChanged:        1,
		blob.ErrAddress:         2,
		inspect.ErrPattern:      2,
		&usageError{"x"}:        2,
		cairn.ErrNotFound:       3,
		cairn.ErrMissing:        3,
		convert.ErrEmpty:        3,
		fs.ErrNotExist:          3,
		cairn.ErrIncomplete:     4,
		cairn.ErrCorrupt:        5,
		cairn.ErrVersion:        6,
		cairn.ErrMismatch:       7,
		cairn.ErrUnexpected:     7,
		recipe.ErrUnknown:       2,
		recipe.ErrSyntax:        2,
		recipe.ErrVariable:      2,
		recipe.ErrIncomplete:    7,
		view.ErrCheck:           7,
		run.ErrPolicy:           2,
		context.Canceled:        1, // it is the ended context that counts
		cornered(t, "both"):     5,
		withHint(errNested, ""): 4,
	} {
		if got := exitOf(fmt.Errorf("op: %w", err)).code; got != want {
			t.Errorf("exit code of %q = %d; want %d", err, got, want)
		}
	}
	seen := map[int]bool{}
	for _, e := range exits {
		if seen[e.code] || e.name == "" || e.meaning == "" {
			t.Errorf("exit %+v: twice, or not explained", e)
		}
		seen[e.code] = true
	}
}

// errNested is an error that several layers have wrapped.
var errNested = fmt.Errorf("a: %w", &cairn.Error{Op: "open", Where: "x", Err: fmt.Errorf("b: %w", cairn.ErrIncomplete)})

// cornered returns the error of a damaged checkpoint with a missing file.
func cornered(t *testing.T, what string) error {
	t.Helper()
	return fmt.Errorf("%s: %w: %w", what, cairn.ErrCorrupt, fs.ErrNotExist)
}

func TestOutermostHintCounts(t *testing.T) {
	var errOut bytes.Buffer
	o := &output{err: &errOut}
	cmd := newRootCmd()
	if got := o.fail(t.Context(), cmd, withHint(cairn.ErrCorrupt, "do this")); got != 5 {
		t.Errorf("fail = %d; want 5", got)
	}
	if want := "cairn: checkpoint is corrupt\nhint: do this\n"; errOut.String() != want {
		t.Errorf("printed %q; want %q", errOut.String(), want)
	}
	if withHint(nil, "x") != nil {
		t.Errorf("withHint(nil) is an error")
	}
}

// canceller is a writer that cancels a context when a certain text is written.
type canceller struct {
	bytes.Buffer
	at     string
	cancel func()
}

func (c *canceller) Write(p []byte) (int, error) {
	if strings.Contains(string(p), c.at) {
		c.cancel()
	}
	return c.Buffer.Write(p)
}

func TestInterruptedCommands(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, at := range []string{"cairn demo", "save ", "load ", "crash "} {
		ctx, cancel := context.WithCancel(t.Context())
		out, errOut := &canceller{at: at, cancel: cancel}, new(bytes.Buffer)
		got := Main(ctx, []string{"demo", "--dir", "mem://interrupt-" + strings.TrimSpace(at), "--size", "64KiB", "--ranks", "2"}, out, errOut)
		if want := "cairn demo: interrupted\n"; got != exitInterrupted || errOut.String() != want {
			t.Errorf("at %q: exit code %d and %q; want %d and %q", at, got, errOut, exitInterrupted, want)
		}
		cancel()
	}
}

func TestNoColorsWithoutTerminal(t *testing.T) {
	defer goleak.VerifyNone(t)
	var out, errOut bytes.Buffer
	if got := Main(t.Context(), []string{"demo", "--dir", "mem://plain", "--size", "64KiB", "--ranks", "2"}, &out, &errOut); got != 0 {
		t.Fatalf("exit code %d: %s", got, errOut.String())
	}
	if strings.ContainsAny(out.String(), "\x1b\r") || errOut.Len() > 0 {
		t.Errorf("printed %q and %q; want no colours and no bars", out.String(), errOut.String())
	}
	out.Reset()
	if got := Main(t.Context(), []string{"verify", "mem://plain"}, &out, &errOut); got != 0 || !strings.Contains(out.String(), "ok") {
		t.Errorf("verify: exit code %d, %s, %s", got, &out, &errOut)
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 64 << 20: "64.0 MiB", 1 << 62: "4.0 EiB", -2048: "-2.0 KiB",
	} {
		if got := formatBytes(n); got != want {
			t.Errorf("formatBytes(%d) = %q; want %q", n, got, want)
		}
	}
	f := sizeFlag(64 << 20)
	if got := f.String(); got != "64MiB" {
		t.Errorf("default = %q", got)
	}
}

func TestFormatNumbers(t *testing.T) {
	for got, want := range map[string]string{
		formatCount(999):        "999",
		formatCount(1000):       "1.00 k",
		formatCount(1234567):    "1.23 M",
		formatCount(7e15):       "7000.00 T",
		formatSeconds(0):        "0 µs",
		formatSeconds(0.00042):  "420 µs",
		formatSeconds(0.001):    "1.0 ms",
		formatSeconds(0.0048):   "4.8 ms",
		formatSeconds(0.01):     "10 ms",
		formatSeconds(0.0421):   "42 ms",
		formatSeconds(1.234):    "1.23 s",
		formatSeconds(3725):     "1h2m5s",
		formatRate(1 << 30):     "1.0 GiB/s",
		formatShape(nil):        "[]",
		formatMesh([]int{2, 4}): "2×4",
		plural(1, "chunk"):      "1 chunk",
		plural(0, "chunk"):      "0 chunks",
		shorten("abcdef", 4):    "abc…",
		shorten("üüü", 3):       "üüü",
		quoteArg("runs/a-1"):    "runs/a-1",
		quoteArg("it's"):        `"it's"`,
		quoteArg("model.*"):     `"model.*"`,
		quoteArg("$a`b\"c\\!"):  "\"\\$a\\`b\\\"c\\\\\"\\!\"\"",
		clean("plain ü"):        "plain ü",
		clean("a\x1b[0m"):       `"a\x1b[0m"`,
		oneLine(" a\n\n\tb\n"):  "a; b",
	} {
		if got != want {
			t.Errorf("got %q; want %q", got, want)
		}
	}
}

func TestProgressText(t *testing.T) {
	for _, c := range []struct {
		current, total int64
		elapsed        time.Duration
		want           string
	}{
		{0, 1 << 20, 0, "0 B of 1.0 MiB"},
		{1 << 19, 1 << 20, time.Second, "512.0 KiB of 1.0 MiB  512.0 KiB/s  1s left"},
		{1 << 20, 1 << 20, time.Second, "1.0 MiB of 1.0 MiB  1.0 MiB/s"},
		{2 << 20, 0, time.Second, "2.0 MiB  2.0 MiB/s"},
	} {
		if got := describeProgress(c.current, c.total, c.elapsed); got != c.want {
			t.Errorf("describeProgress(%d, %d, %v) = %q; want %q", c.current, c.total, c.elapsed, got, c.want)
		}
	}
}

func TestRowsAlign(t *testing.T) {
	r := newRows("NAME", ">SIZE", "X")
	r.add("a", "1 B", "")
	r.add("übe", "1000 B", "y")
	var b bytes.Buffer
	r.print(&b, "  ", 0)
	want := "  NAME    SIZE  X\n  a        1 B  -\n  übe   1000 B  y\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("table: -want +got\n%s", d)
	}
}

func TestNextNames(t *testing.T) {
	names := []string{"a.b.c", "a.b.d", "a.b", "a.x", "b", "c.d"}
	for word, want := range map[string][]string{
		"": {"a.", "b", "c."}, "a": {"a."}, "a.": {"a.b", "a.b.", "a.x"}, "a.b.": {"a.b.c", "a.b.d"}, "b": {"b"}, "z": nil,
	} {
		if d := cmp.Diff(want, nextNames(names, word)); d != "" {
			t.Errorf("nextNames(%q): -want +got\n%s", word, d)
		}
	}
}

func TestHintAtCheckpointsBelow(t *testing.T) {
	dir := t.TempDir() + "/a[1]*?"
	for _, name := range []string{"step-2/model.safetensors", "step-10/model.safetensors.index.json", "step-9/.metadata", "step-1/cairn.json", "logs/notes.txt"} {
		name = filepath.Join(dir, filepath.FromSlash(name))
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(name), 0o777), os.WriteFile(name, nil, 0o666)))
	}
	if got, want := placeHint(t.Context(), dir), fmt.Sprintf("4 checkpoints below it; the last is %s; 'cairn log %s' lists them", quoteArg(dir+"/step-10"), quoteArg(dir)); got != want {
		t.Errorf("placeHint = %q; want %q", got, want)
	}
}
