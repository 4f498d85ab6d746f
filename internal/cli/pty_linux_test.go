package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/tensor"
)

// onTerminal returns what use prints on a terminal of that many columns.
func onTerminal(t *testing.T, columns int, use func(tty *os.File)) string {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	defer tty.Close()
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: uint16(columns)}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(&b, master) // ends with an error once the terminal is closed
	}()
	use(tty)
	tty.Close()
	<-done
	return strings.ReplaceAll(b.String(), "\r\n", "\n")
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
			w, err := tensor.Of([]int64{8, 8}, v)
			if err != nil {
				t.Fatal(err)
			}
			state[fmt.Sprintf(name, i)] = w
		}
		store, err := file.Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cairn.Save(t.Context(), store, state, nil); err != nil {
			t.Fatal(err)
		}
	}
	data, err := filepath.Glob(filepath.Join(damaged, "*.safetensors"))
	if err != nil || len(data) != 1 {
		t.Fatalf("data files %v, %v", data, err)
	}
	bytes, err := os.ReadFile(data[0])
	if err != nil {
		t.Fatal(err)
	}
	bytes[len(bytes)-1] ^= 1
	if err := os.WriteFile(data[0], bytes, 0o666); err != nil {
		t.Fatal(err)
	}
	return a, b, damaged
}

// Whatever the width of the terminal, a command prints the same words: no name is
// shortened, and no column is left out.
func TestTerminalsOfAnyWidthShowEverything(t *testing.T) {
	a, b, damaged := longNames(t)
	for _, args := range [][]string{
		{"ls", a}, {"ls", "-l", a}, {"inspect", a, "--depth", "all"}, {"inspect", a, "encoder"},
		{"inspect", a, "encoder.transformer.layers.0.self_attention.query_key_value.weight"},
		{"stats", a}, {"diff", a, b}, {"diff", a, b, "--all"}, {"verify", damaged},
		{"convert", a, filepath.Join(t.TempDir(), "x"), "--to", "dcp", "--dry-run", "--rename", "encoder.*=model.*"},
	} {
		print := func(columns int, more ...string) string {
			return onTerminal(t, columns, func(tty *os.File) { Main(t.Context(), slices.Concat(args, more), tty, io.Discard) })
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
