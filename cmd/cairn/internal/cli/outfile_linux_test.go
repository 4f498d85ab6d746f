package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// The commands that have an output file write into a FIFO or a device, also
// behind a link, and leave it there.
func TestOutputIntoDevicesAndFIFOs(t *testing.T) {
	dir := t.TempDir()
	if got := Main(t.Context(), strings.Fields("demo --dir mem://special --size 64KiB --ranks 1"), io.Discard, io.Discard); got != 0 {
		t.Fatalf("exit code %d", got)
	}
	fifo, link, null, full := filepath.Join(dir, "fifo"), filepath.Join(dir, "link"), filepath.Join(dir, "null"), filepath.Join(dir, "full")
	must.Do(t, unix.Mkfifo(fifo, 0o666))
	must.Do(t, os.Symlink(fifo, link))
	for _, args := range []string{"table mem://special -o ", "cat mem://special model.norm.weight --raw ", "cat mem://special model.norm.weight --dtype float32 --npy "} {
		regular := filepath.Join(dir, "regular")
		if got := Main(t.Context(), strings.Fields(args+regular), io.Discard, io.Discard); got != 0 {
			t.Fatalf("cairn %s: exit code %d", args+regular, got)
		}
		want := must.Get(os.ReadFile(regular))(t)
		for _, to := range []string{fifo, link} {
			read := make(chan []byte, 1)
			go func() {
				b, _ := os.ReadFile(fifo)
				read <- b
			}()
			var errOut bytes.Buffer
			if got := Main(t.Context(), strings.Fields(args+to), io.Discard, &errOut); got != 0 {
				t.Fatalf("cairn %s: exit code %d: %s", args+to, got, &errOut)
			}
			select {
			case got := <-read:
				if !bytes.Equal(got, want) {
					t.Errorf("cairn %s: the reader got %d bytes; want the %d of a file", args+to, len(got), len(want))
				}
			case <-time.After(time.Minute):
				t.Fatalf("cairn %s: nothing came out of the FIFO", args+to)
			}
		}
		stays(t, fifo, os.ModeNamedPipe)
		stays(t, link, os.ModeSymlink)
	}

	// Our own nodes of the devices /dev/null and /dev/full.
	if err := errors.Join(unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.Mknod(full, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 7)))); err != nil {
		t.Skipf("no devices without root: %v", err)
	}
	if f, err := os.OpenFile(null, os.O_WRONLY, 0); err != nil {
		t.Skipf("no devices on this file system: %v", err)
	} else {
		f.Close()
	}
	for _, args := range []string{"table mem://special -o ", "cat mem://special model.norm.weight --raw ", "cat mem://special model.norm.weight --dtype float32 --npy "} {
		if got := Main(t.Context(), strings.Fields(args+null), io.Discard, io.Discard); got != 0 {
			t.Errorf("cairn %s: exit code %d", args+null, got)
		}
		var errOut bytes.Buffer
		if got := Main(t.Context(), strings.Fields(args+full), io.Discard, &errOut); got != 1 || !strings.Contains(errOut.String(), "no space left on device") {
			t.Errorf("cairn %s: exit code %d and %q; want 1 and why", args+full, got, &errOut)
		}
	}
	stays(t, null, os.ModeDevice|os.ModeCharDevice)
	stays(t, full, os.ModeDevice|os.ModeCharDevice)
}

// stays checks that a path still has the type.
func stays(t *testing.T, path string, want os.FileMode) {
	t.Helper()
	if fi, err := os.Lstat(path); err != nil || fi.Mode().Type() != want {
		t.Errorf("%s became %v, %v; want %v", path, fi, err, want)
	}
}

// An interrupt ends a command that writes into a FIFO without a reader, or with a
// reader that does not read.
func TestFIFOIsInterrupted(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	must.Do(t, unix.Mkfifo(fifo, 0o666))
	for _, hasReader := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if hasReader {
			r := must.Get(os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0))(t)
			defer r.Close()
		}
		done := make(chan error, 1)
		go func() { done <- writeTo(ctx, fifo, say(strings.Repeat("x", 1<<20), nil)) }()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("reader %v: no error", hasReader)
			}
		case <-time.After(time.Minute):
			t.Fatalf("reader %v: still waiting a minute after the interrupt", hasReader)
		}
		cancel()
	}
}
