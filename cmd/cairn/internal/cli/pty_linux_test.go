package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// onTerminal returns the text that use prints on a terminal with that number of
// columns. While it runs, printed returns the text so far.
func onTerminal(t *testing.T, columns int, use func(tty *os.File, printed func() string)) string {
	t.Helper()
	return onTerminalWithInput(t, columns, func(tty *os.File, _ io.Writer, printed func() string) { use(tty, printed) })
}

// onTerminalWithInput is onTerminal with a keyboard: use types by writing to input.
func onTerminalWithInput(t *testing.T, columns int, use func(tty *os.File, input io.Writer, printed func() string)) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	defer master.Close()
	n := must.Get(unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN))(t)
	must.Do(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	defer tty.Close()
	must.Do(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: uint16(columns)}))
	var b lockedBuffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&b, master) // ends with an error once the terminal is closed
	}()
	use(tty, master, b.text)
	tty.Close()
	<-done
	return b.text()
}

// lockedBuffer collects the text that a terminal has printed.
type lockedBuffer struct {
	mu sync.Mutex
	b  []byte // guarded by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, p...)
	return len(p), nil
}

func (l *lockedBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.ReplaceAll(string(l.b), "\r\n", "\n")
}

// Bars can be drawn from several goroutines, show the number of moved bytes, and
// disappear from the screen.
func TestProgressBars(t *testing.T) {
	defer goleak.VerifyNone(t)
	for total, want := range map[int64]string{0: "75 B  ", 100: "75 B of 100 B  ", 75: ""} {
		text := onTerminal(t, 100, func(tty *os.File, printed func() string) {
			o := &output{err: tty, bars: true}
			p := o.progress("verify", total)
			waitFor(t, printed, "verify")
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					for range 25 {
						p.add(1)
					}
				})
			}
			wg.Wait()
			waitFor(t, printed, want)
			p.done()
			p.done()
		})
		if total == 100 && !strings.Contains(text, "["+strings.Repeat("=", 28)+">         ]") {
			t.Errorf("of 100 bytes: no bar of three quarters in %q", text)
		}
		if left := screen(t, text); strings.TrimSpace(left) != "" {
			t.Errorf("of %d bytes: %q is left on the screen", total, left)
		}
	}
	var none *progress
	none.add(1)
	none.done()
}

// waitFor waits until want was printed.
func waitFor(t *testing.T, printed func() string, want string) {
	t.Helper()
	for start := time.Now(); !strings.Contains(printed(), want); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Errorf("%q is not in %q", want, printed())
			return
		}
	}
}

// screen returns the content of a terminal after it has printed text. It supports the
// cursor sequences that progress bars use.
func screen(t *testing.T, text string) string {
	t.Helper()
	lines := []string{""}
	for i, part := range strings.Split(text, "\x1b[") {
		if i > 0 {
			end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
			n, _ := strconv.Atoi(part[:max(end, 0)])
			switch {
			case end >= 0 && part[end] == 'A': // up: the lines below are drawn again
				lines = lines[:max(1, len(lines)-n)]
			case end >= 0 && part[end] == 'J': // clear below
				lines[len(lines)-1] = ""
			default:
				t.Fatalf("unknown sequence before %q", part)
			}
			part = part[end+1:]
		}
		for j, l := range strings.Split(part, "\n") {
			if j > 0 {
				lines = append(lines, "")
			}
			lines[len(lines)-1] += l
		}
	}
	return strings.Join(lines, "\n")
}

// If stdout is a pipe and stderr a terminal, bars are drawn on stderr. --quiet and
// --json draw no bars.
func TestProgressBarsOnlyOnTerminals(t *testing.T) {
	a, _, _ := longNames(t)
	for args, want := range map[string]bool{"verify": true, "verify --quiet": false, "verify --json": false, "digest": true, "stats": true} {
		var out bytes.Buffer
		text := onTerminal(t, 80, func(tty *os.File, _ func() string) {
			Main(t.Context(), append(strings.Fields(args), a), &out, tty)
		})
		if got := strings.Contains(text, "\x1b["); got != want {
			t.Errorf("cairn %s: printed %q on the terminal; want bars: %v", args, text, want)
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("cairn %s: printed %q to a pipe; want no sequences", args, &out)
		}
	}
}

// longNames makes two checkpoints that differ, and a damaged copy of the first.
func longNames(t *testing.T) (a, b, damaged string) {
	t.Helper()
	dir := t.TempDir()
	a, b, damaged = filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "damaged")
	const name = "encoder.transformer.layers.%d.self_attention.query_key_value.weight"
	for path, delta := range map[string]float32{a: 0, b: 1, damaged: 0} {
		state := cairn.State{"args": map[string]any{"learning_rate_schedule_of_the_decoder": strings.Repeat("cosine ", 9)}, "step": 7}
		for i := range 3 {
			v := make([]float32, 64)
			for j := range v {
				v[j] = float32(j)*1.2345678e-5 + delta*float32(i)
			}
			w := must.Get(tensor.Of([]int64{8, 8}, v))(t)
			state[fmt.Sprintf(name, i)] = w
		}
		store := must.Get(file.Open(path, nil))(t)
		if _, err := cairn.Save(t.Context(), store, state, nil); err != nil {
			t.Fatal(err)
		}
	}
	data, err := filepath.Glob(filepath.Join(damaged, "*.safetensors"))
	if err != nil || len(data) != 1 {
		t.Fatalf("data files %v, %v", data, err)
	}
	bytes := must.Get(os.ReadFile(data[0]))(t)
	bytes[len(bytes)-1] ^= 1
	must.Do(t, os.WriteFile(data[0], bytes, 0o666))
	return a, b, damaged
}

// Whatever the width of the terminal, a command prints the same words: no name is
// shortened, and no column is left out.
func TestTablesAtAnyWidth(t *testing.T) {
	a, b, damaged := longNames(t)
	for _, args := range [][]string{
		{"ls", a}, {"ls", "-l", a}, {"inspect", a, "--depth", "all"}, {"inspect", a, "encoder"},
		{"inspect", a, "encoder.transformer.layers.0.self_attention.query_key_value.weight"},
		{"stats", a}, {"diff", a, b}, {"diff", a, b, "--all"}, {"verify", damaged},
		{"convert", a, filepath.Join(t.TempDir(), "x"), "--to", "dcp", "--dry-run", "--rename", "encoder.*=model.*"},
	} {
		print := func(columns int, more ...string) string {
			return onTerminal(t, columns, func(tty *os.File, _ func() string) { Main(t.Context(), slices.Concat(args, more), tty, io.Discard) })
		}
		var piped bytes.Buffer
		Main(t.Context(), args, &piped, io.Discard)
		if wide := print(60, "--wide", "--no-color"); wide != piped.String() {
			t.Errorf("cairn %s --wide: printed\n%s; want what a pipe gets:\n%s", args, wide, &piped)
		}
		for _, columns := range []int{20, 60, 80, 120, 200} {
			text := print(columns, "--no-color")
			words := map[string]bool{}
			for _, w := range strings.Fields(text) {
				words[w] = true
			}
			// Dashes and the headings of columns of dashes may be left out.
			for _, w := range strings.Fields(piped.String()) {
				if !words[w] && w != strings.ToUpper(w) {
					t.Errorf("cairn %s, %d columns: %q is not in\n%s", args, columns, w, text)
				}
			}
			if columns < 80 {
				continue
			}
			for line := range strings.Lines(text) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns && strings.Contains(strings.TrimSpace(line), "  ") {
					t.Errorf("cairn %s, %d columns: a line of %d: %s", args, columns, n, line)
				}
			}
		}
	}
}

// On a terminal, prune shows the checkpoints that it would remove and asks. It
// removes them only after a yes.
func TestPruneAsks(t *testing.T) {
	stdin := os.Stdin
	defer func() { os.Stdin = stdin }()
	for reply, want := range map[string]struct {
		left int
		says string
	}{"n\n": {3, "nothing was removed"}, "\n": {3, "nothing was removed"}, "Yes\n": {1, "2 checkpoints removed"}} {
		run := makeRun(t, 3)
		text := onTerminalWithInput(t, 100, func(tty *os.File, input io.Writer, printed func() string) {
			os.Stdin = tty
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				waitFor(t, printed, "? [y/N] ")
				_, _ = io.WriteString(input, reply)
			}()
			if code := Main(t.Context(), []string{"prune", run, "--keep", "last 1"}, tty, tty); code != 0 {
				t.Errorf("%q: exit code %d", reply, code)
			}
			<-answered
		})
		left := must.Get(os.ReadDir(run))(t)
		if len(left) != want.left || !strings.Contains(text, want.says) || !strings.Contains(text, "Remove 2 checkpoints, ") || strings.Count(text, "OUTCOME") != 1 {
			t.Errorf("%q: %d checkpoints are left; want %d, and %q in %s", reply, len(left), want.left, want.says, text)
		}
	}
	run := makeRun(t, 2)
	text := onTerminal(t, 100, func(tty *os.File, _ func() string) {
		os.Stdin = tty
		for _, flag := range []string{"--dry-run", "--yes", "--yes"} {
			if code := Main(t.Context(), []string{"prune", run, "--keep", "last 1", flag}, tty, tty); code != 0 {
				t.Errorf("%s: exit code %d", flag, code)
			}
		}
	})
	if strings.Contains(text, "[y/N]") || !strings.Contains(text, "1 checkpoint would be removed") || !strings.Contains(text, "1 checkpoint removed") {
		t.Errorf("without a question: %s", text)
	}
}

// Ctrl-C ends prune while it waits for an answer.
func TestPruneIsInterruptedWhileItAsks(t *testing.T) {
	stdin := os.Stdin
	defer func() { os.Stdin = stdin }()
	run := makeRun(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	onTerminalWithInput(t, 100, func(tty *os.File, input io.Writer, printed func() string) {
		os.Stdin = tty
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			waitFor(t, printed, "? [y/N] ")
			cancel()
		}()
		if code := Main(ctx, []string{"prune", run, "--keep", "last 1"}, tty, tty); code != exitInterrupted {
			t.Errorf("exit code %d; want %d", code, exitInterrupted)
		}
		<-asked
		must.Get(io.WriteString(input, "y\n"))(t) // ends the read
		if left := must.Get(os.ReadDir(run))(t); len(left) != 2 {
			t.Errorf("%d checkpoints are left; want both", len(left))
		}
	})
}
