package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// say returns a function that writes text and then returns err.
func say(text string, err error) func(io.Writer) error {
	return func(w io.Writer) error {
		_, werr := io.WriteString(w, text)
		return errors.Join(werr, err)
	}
}

// holds checks that a folder has only the files with these contents.
func holds(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	if len(entries) != len(want) {
		t.Errorf("%v; want %d files", entries, len(want))
	}
	for name, text := range want {
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != text || err != nil {
			t.Errorf("%s = %q, %v; want %q", name, b, err, text)
		}
	}
}

func TestOutputFileIsAtomic(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	must.Do(t, writeTo(t.Context(), name, say("old", nil)))
	must.Do(t, os.Chmod(name, 0o640))
	if err := writeTo(t.Context(), name, say("new", errors.New("disk full"))); err == nil {
		t.Error("no error")
	}
	holds(t, dir, map[string]string{"f": "old"})
	if err := writeTo(t.Context(), name, say("new", nil)); err != nil {
		t.Error(err)
	}
	holds(t, dir, map[string]string{"f": "new"})
	if fi, err := os.Stat(name); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v; want that of the file that was there", fi.Mode(), err)
	}
	if err := writeTo(t.Context(), dir, say("x", nil)); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: %v", err)
	}
}

// A symbolic link stays, and the file behind it is replaced.
func TestOutputBehindLink(t *testing.T) {
	dir := t.TempDir()
	behind := filepath.Join(dir, "behind")
	must.Do(t, os.Mkdir(behind, 0o777))
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join("behind", "f"), link); err != nil {
		t.Skip(err)
	}
	if err := writeTo(t.Context(), link, say("x", nil)); !errors.Is(err, errDangling) {
		t.Errorf("a link to nothing: %v; want %v", err, errDangling)
	}
	must.Do(t, os.WriteFile(filepath.Join(behind, "f"), []byte("old"), 0o666))
	if err := writeTo(t.Context(), link, say("new", nil)); err != nil {
		t.Error(err)
	}
	if fi, err := os.Lstat(link); err != nil || fi.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link became %v, %v", fi.Mode(), err)
	}
	holds(t, behind, map[string]string{"f": "new"})
}

// No output replaces a file of the checkpoint that is read, under any name.
func TestOutputFileMustNotReplaceCheckpoint(t *testing.T) {
	dir := t.TempDir()
	ck := filepath.Join(dir, "ck")
	if got := Main(t.Context(), strings.Fields("demo --keep --size 64KiB --ranks 1 --dir "+ck), io.Discard, io.Discard); got != 0 {
		t.Fatalf("exit code %d", got)
	}
	st := filepath.Join(dir, "w.safetensors")
	if got := Main(t.Context(), strings.Fields("convert "+ck+" "+st+" --select model.*"), io.Discard, io.Discard); got != 0 {
		t.Fatalf("exit code %d", got)
	}
	link := filepath.Join(dir, "link")
	data, err := filepath.Glob(filepath.Join(ck, "*.safetensors"))
	if err != nil || len(data) == 0 {
		t.Fatal(data, err)
	}
	recordLink := filepath.Join(dir, "recordlink")
	if err := errors.Join(os.Symlink(data[0], link), os.Symlink(filepath.Join(ck, recordName), recordLink)); err != nil {
		t.Skip(err)
	}
	for src, outs := range map[string][]string{ck: {data[0], link, filepath.Join(ck, recordName), recordLink}, st: {st}} {
		for _, out := range outs {
			before := must.Get(os.ReadFile(out))(t)
			for _, args := range []string{"table " + src + " -o " + out, "cat " + src + " model.norm.weight --raw " + out} {
				var text strings.Builder
				got := Main(t.Context(), strings.Fields(args), io.Discard, &text)
				if got != 1 || !strings.Contains(text.String(), "is part of the checkpoint") {
					t.Errorf("cairn %s: exit code %d and %q; want 1 and why", args, got, &text)
				}
			}
			if after, err := os.ReadFile(out); string(after) != string(before) || err != nil {
				t.Errorf("%s was changed, %v", out, err)
			}
		}
	}
}
