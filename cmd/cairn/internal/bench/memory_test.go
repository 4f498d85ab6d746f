package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// inMemory makes a new folder the one for runs in memory.
func inMemory(t *testing.T) string {
	root := filepath.Join(t.TempDir(), "memory")
	t.Setenv(ram.Variable, root)
	return root
}

// wantNoFiles fails if files are left in the folder for runs in memory.
func wantNoFiles(t *testing.T, root string) {
	t.Helper()
	if left := must.Get(os.ReadDir(root))(t); len(left) != 0 {
		t.Errorf("%s has %v after the benchmark; want nothing", root, left)
	}
}

// Hosts keep one copy of everything, so two generations are four times the state.
func TestMemoryBench(t *testing.T) {
	for _, c := range []struct{ hosts, ranks int }{{2, 2}, {3, 4}} {
		root := inMemory(t)
		r := must.Get(Memory(t.Context(), MemoryOptions{Bytes: 2<<20 + 5000, Hosts: c.hosts, Ranks: c.ranks, Repeat: 1}))(t)
		for name, v := range map[string]float64{
			"save": r.Save, "until_copied": r.UntilCopied, "first_save": r.FirstSave, "first_until_copied": r.FirstUntilCopied, "first_copy": r.FirstCopy, "floor_copy_new": r.FloorCopyNew, "floor_copy_there": r.FloorCopyThere, "copy": r.Copy,
			"copy_new_ratio": r.CopyNewRatio, "copy_there_ratio": r.CopyThereRatio, "memcpy": r.Memcpy, "load": r.Load, "load_ratio": r.LoadRatio,
			"floor_load_copies": r.FloorLoadCopies, "load_copies": r.LoadCopies, "load_copies_ratio": r.LoadCopiesRatio,
		} {
			if v <= 0 {
				t.Errorf("%+v: %s = %v; want a figure", c, name, v)
			}
		}
		if r.Bytes != 2<<20+5000 || r.Hosts != c.hosts || r.Ranks != c.ranks || r.Sockets != 4*c.ranks {
			t.Errorf("Memory = %+v; want %d bytes from %d ranks of %d hosts", r, 2<<20+5000, c.ranks, c.hosts)
		}
		if r.MemoryRatio < 4 || r.MemoryRatio > 4.5 {
			t.Errorf("%+v: the most memory is %.2f of the size; want 4 and the indexes", c, r.MemoryRatio)
		}
		wantNoFiles(t, root)
	}
}

// A benchmark that is interrupted, in any of its steps, leaves nothing.
func TestMemoryBenchInterrupted(t *testing.T) {
	stop := errors.New("stop")
	for _, at := range []string{"making", "round 1", "round 2"} {
		root := inMemory(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := Memory(ctx, MemoryOptions{Bytes: 1 << 20, Hosts: 2, Ranks: 2, Repeat: 2, Log: func(format string, args ...any) {
			if strings.HasPrefix(format, "making") && at == "making" || strings.HasPrefix(format, "round") && at == "round "+string('0'+rune(args[0].(int))) {
				cancel(stop)
			}
		}})
		if !errors.Is(err, stop) {
			t.Errorf("Memory that is stopped at %q = %v; want the cause", at, err)
		}
		wantNoFiles(t, root)
	}
}

func TestMemoryBenchNeedsRoom(t *testing.T) {
	root := inMemory(t)
	if _, err := roomAt(t.TempDir()); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the room is not known here")
	}
	_, err := Memory(t.Context(), MemoryOptions{Bytes: 1 << 55, Hosts: 2, Ranks: 2})
	if !errors.Is(err, ErrRoom) || !strings.Contains(err.Error(), " GB free, and ") {
		t.Errorf("Memory of 32 PiB = %v; want ErrRoom, with the room that is needed and free", err)
	}
	wantNoFiles(t, root)
	if _, err := Memory(t.Context(), MemoryOptions{Bytes: 1 << 20, Hosts: 2, Ranks: 1}); err == nil {
		t.Error("Memory with more hosts than ranks succeeded")
	}
}
