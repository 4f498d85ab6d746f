package convert

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// The owner of an unfinished conversion is alive, dead or unknown.
func TestUnfinishedConversions(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells runs of a host apart")
	}
	dir := t.TempDir()
	running := &Place{Path: filepath.Join(dir, "running")}
	must.Do(t, running.Lock())
	defer running.Unlock()
	lock := must.Get(os.ReadFile(running.lockPath()))(t)
	for name, text := range map[string]*string{
		"running": nil, "stopped": nil, "killed": ptr(string(lock)), "elsewhere": ptr(`{"tag":"x","host":"other","pid":1}`), "old": ptr(""),
	} {
		p := &Place{Path: filepath.Join(dir, name)}
		write(t, filepath.Join(p.Staging(), "a"), "text")
		if text != nil {
			write(t, p.lockPath(), *text)
		}
	}
	write(t, (&Place{Path: filepath.Join(dir, "lock only")}).lockPath(), string(lock))
	write(t, filepath.Join(dir, "x.cairn-convert", "a"), "of another program")

	found := must.Get(FindUnfinished(dir))(t)
	got := map[string]string{}
	for _, u := range found {
		got[filepath.Base(u.Path)] = u.Owner.String()
		if u.Bytes == 0 || u.ModTime.IsZero() {
			t.Errorf("%s: %d bytes of %v", u.Path, u.Bytes, u.ModTime)
		}
		if err := (&Place{Path: u.Path}).Drop(); errors.Is(err, ErrBusy) != (u.Owner == blob.OwnerAlive) || err != nil && !errors.Is(err, ErrBusy) {
			t.Errorf("%s: Drop = %v", u.Path, err)
		}
	}
	want := map[string]string{
		"running": blob.OwnerAlive.String(), "stopped": blob.OwnerDead.String(), "killed": blob.OwnerDead.String(), "lock only": blob.OwnerDead.String(),
		"elsewhere": blob.OwnerUnknown.String(), "old": blob.OwnerUnknown.String(),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("owners: -want +got\n%s", d)
	}
	left := map[string]string{".running.cairn-convert/a": "text", ".running.cairn-lock": string(lock), "x.cairn-convert/a": "of another program"}
	if d := cmp.Diff(left, tree(t, dir)); d != "" {
		t.Errorf("after Drop: -want +got\n%s", d)
	}
}

func ptr(s string) *string { return &s }

// Drop restores the target after an interrupted Publish.
func TestDropUndoesPublish(t *testing.T) {
	killed := errors.New("killed")
	for claim, c := range map[string]struct{ old, stop string }{
		"a folder that is moved into":   {"x/notes", "add a"},
		"a checkpoint that is replaced": {"x/c", "rename"},
	} {
		t.Run(claim, func(t *testing.T) {
			dir := t.TempDir()
			p := &Place{Path: filepath.Join(dir, "x"), Overwrite: c.old == "x/c", Look: checkpointFiles, Record: func(name string) bool { return name == "a" }}
			write(t, filepath.Join(dir, c.old), "old")
			stage(t, p)
			p.step = func(name string) error {
				switch name {
				case c.stop:
					return killed
				case "exchange":
					return errors.ErrUnsupported
				}
				return nil
			}
			if err := p.Publish(); !errors.Is(err, killed) {
				t.Fatal(err)
			}
			must.Do(t, (&Place{Path: p.Path}).Drop())
			if d := cmp.Diff(map[string]string{c.old: "old"}, tree(t, dir)); d != "" {
				t.Errorf("after Drop: -want +got\n%s", d)
			}
		})
	}
}
