package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestTend(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	m := &Member{Address: local, Settings: Settings{Remote: remote, Keep: keep(t, "last 2"), KeepRemote: keep(t, "last 3")}}
	for step := range int64(5) {
		m.Name = save(t, local, step)
		done := must.Get(m.Tend(t.Context(), &TendOptions{Skip: func(name string) bool { return name == FolderName(2) }}))(t)
		if want := map[bool]int{true: 0, false: 1}[step == 2]; len(done.Uploaded) != want {
			t.Errorf("step %d: %+v were uploaded", step, done.Uploaded)
		}
	}
	// Step 2 is not uploaded, and would be kept.
	want := []string{FolderName(1) + " remote", FolderName(2) + " local", FolderName(3) + " both", FolderName(4) + " both"}
	r := openRun(t, local, remote)
	if got := list(t, r); !slices.Equal(got, want) {
		t.Errorf("there are %q; want %q", got, want)
	}
	done := must.Get(m.Tend(t.Context(), nil))(t)
	var told []string
	for _, a := range done.Attrs() {
		told = append(told, fmt.Sprint(a.Key, " ", a.Value))
	}
	slices.Sort(told)
	if len(told) != 4 || told[0] != "removed ["+FolderName(2)+"]" || told[2] != "removed_remote ["+FolderName(1)+"]" || told[3] != "uploaded ["+FolderName(2)+"]" {
		t.Errorf("the log has %q", told)
	}
	want = []string{FolderName(2) + " remote", FolderName(3) + " both", FolderName(4) + " both"}
	if got := list(t, r); !slices.Equal(got, want) {
		t.Errorf("there are %q; want %q", got, want)
	}
	if s := must.Get(ReadSettings(t.Context(), r.Local.Store))(t); s.Remote != remote || s.Keep.String() != "last 2" {
		t.Errorf("the settings are %+v", s)
	}
}

// A process replaces the settings that it has, and a file that is damaged.
func TestTendKeepsSettings(t *testing.T) {
	dir := t.TempDir()
	store := openDir(t, dir)
	must.Do(t, WriteSettings(t.Context(), store, Settings{Remote: "s3://bucket/run", Keep: keep(t, "last 1"), KeepRemote: keep(t, "every day")}))
	m := &Member{Address: dir, Settings: Settings{Keep: keep(t, "last 9")}}
	must.Get(m.Tend(t.Context(), nil))(t)
	if s := must.Get(ReadSettings(t.Context(), store))(t); s.Remote != "s3://bucket/run" || s.Keep.String() != "last 9" || s.KeepRemote.String() != "every day" {
		t.Errorf("the settings are %+v", s)
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, SettingsFile), []byte("{"), 0o666))
	must.Get((&Member{Address: dir}).Tend(t.Context(), nil))(t) // it has no settings
	if _, err := ReadSettings(t.Context(), store); err == nil {
		t.Error("a process without settings has written them")
	}
	if _, err := m.Tend(t.Context(), nil); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("Tend = %v; want ErrCorrupt", err)
	}
	if got := must.Get(os.ReadFile(filepath.Join(dir, SettingsFile)))(t); string(got) != "{" {
		t.Errorf("settings that cannot be read were replaced by %s", got)
	}
}

// If the remote place does not answer, all checkpoints stay.
func TestTendWithoutRemote(t *testing.T) {
	local := t.TempDir()
	for step := range int64(3) {
		save(t, local, step)
	}
	notAFolder := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(notAFolder, nil, 0o666))
	m := &Member{Address: local, Settings: Settings{Remote: notAFolder, Keep: keep(t, "last 1")}}
	if _, err := m.Tend(t.Context(), nil); err == nil {
		t.Error("there is no error")
	}
	if got := list(t, openRun(t, local, "")); len(got) != 3 {
		t.Errorf("there are %q", got)
	}
}

// A Tender tends once for saves that end while it works, and then is idle.
func TestTender(t *testing.T) {
	local := t.TempDir()
	var tender Tender
	if !tender.Wait(t.Context()) {
		t.Error("a Tender that did nothing is not idle")
	}
	end := Saving(t.Context(), openDir(t, local)) // holds removals up
	calls := atomic.Int64{}
	m := &Member{Address: local, Settings: Settings{Keep: keep(t, "last 1")}}
	for step := range int64(4) {
		save(t, local, step)
	}
	for range 10 {
		tender.Tend(t.Context(), m, nil, func(_ *Tended, err error) {
			calls.Add(1)
			if err != nil {
				t.Error(err)
			}
		})
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if tender.Wait(short) || len(list(t, openRun(t, local, ""))) != 4 {
		t.Error("a checkpoint was removed while a save was being written")
	}
	end()
	if !tender.Wait(t.Context()) || calls.Load() < 1 || calls.Load() > 2 {
		t.Errorf("Tend was called %d times; want 1 or 2", calls.Load())
	}
	if got := list(t, openRun(t, local, "")); len(got) != 1 {
		t.Errorf("there are %q", got)
	}
}

// A removal waits for saves, is next when they are over, and holds the next save up.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g turns
		a, b := g.save(t.Context()), g.save(t.Context()) // of two ranks
		var mu sync.Mutex
		var order []string
		note := func(s string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, s)
		}
		go func() {
			end := must.Get(g.turn(t.Context()))(t)
			note("removal")
			time.Sleep(time.Second)
			note("removed")
			end()
		}()
		synctest.Wait()
		a()
		c := g.save(t.Context()) // one save is still under way, so it does not wait
		note("save")
		b()
		c()
		c() // a second call does nothing
		d := g.save(t.Context())
		note("next save")
		mu.Lock()
		if !slices.Equal(order, []string{"save", "removal", "removed", "next save"}) {
			t.Errorf("the order is %q", order)
		}
		mu.Unlock()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := g.turn(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a turn during a save: %v", err)
		}
		d()
		end := must.Get(g.turn(t.Context()))(t)
		start := time.Now()
		e := g.save(t.Context()) // a removal that hangs holds it up for a while only
		if time.Since(start) != maxTurn {
			t.Errorf("a save waited %v for a removal that hangs", time.Since(start))
		}
		e()
		end()
	})
}

// An upload that was interrupted is completed, and not begun again.
func TestTendCompletesUploads(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	name := save(t, local, 1)
	copyFolder(t, filepath.Join(local, name), filepath.Join(remote, name))
	must.Do(t, os.Remove(filepath.Join(remote, name, "cairn.json"))) // the last file
	m := &Member{Address: local, Settings: Settings{Remote: remote}}
	done := must.Get(m.Tend(t.Context(), nil))(t)
	if len(done.Uploaded) != 1 || done.Uploaded[0].Copy == nil || done.Uploaded[0].Copy.KeptFiles != 2 {
		t.Errorf("uploaded: %+v", done.Uploaded)
	}
	if got := list(t, openRun(t, local, remote)); !slices.Equal(got, []string{name + " both"}) {
		t.Errorf("there are %q", got)
	}
	if done := must.Get(m.Tend(t.Context(), nil))(t); len(done.Uploaded) != 0 || done.Pruned != nil || done.Attrs() != nil {
		t.Errorf("a second time: %+v", done)
	}
}
