package run

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/transfer"
)

// saveAt saves a checkpoint of a step at a time.
func saveAt(t testing.TB, dir, id string, step int64, at time.Time) {
	t.Helper()
	s := openDir(t, dir, FolderName(step))
	md := meta.Storage{SaveID: id, Step: &step, Time: at, WorldSize: 1, Writer: "test"}
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}) }}
	must.Do(t, storagetest.Save(t.Context(), p, md, plan.State{"v": storagetest.Filled(t, tensor.Float32, []int64{1000}, 1)}))
}

// Sync compares saves. A newer local save replaces the remote one, an older one is a conflict.
func TestSyncComparesSaves(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	saveAt(t, local, "a-new", 1, recent.Add(time.Hour))
	saveAt(t, remote, "a-old", 1, recent)
	saveAt(t, local, "b-old", 2, recent)
	saveAt(t, remote, "b-new", 2, recent.Add(time.Hour))
	r := openRun(t, local, remote)
	want := map[string]string{FolderName(1): transfer.Replacing, FolderName(2): transfer.Differs}
	for _, dry := range []bool{true, false} {
		done, err := r.Sync(t.Context(), &SyncOptions{DryRun: dry})
		if !errors.Is(err, ErrConflict) || len(done) != 2 {
			t.Fatalf("Sync = %+v, %v; want a conflict", done, err)
		}
		for _, s := range done {
			if s.State != want[s.Folder] {
				t.Errorf("%s is %q; want %q", s.Folder, s.State, want[s.Folder])
			}
			if s.State != transfer.Differs && (s.Replaces == nil || s.Replaces.SaveID != "a-old" || !s.Replaces.Time.Equal(recent)) {
				t.Errorf("%s replaces %+v", s.Folder, s.Replaces)
			}
			if s.State == transfer.Differs && !strings.Contains(s.Problem, "'cairn cp "+filepath.Join(local, s.Folder)) {
				t.Errorf("the conflict has no advice: %q", s.Problem)
			}
		}
		want[FolderName(1)] = transfer.Replaced
	}

	all := must.Get(r.Checkpoints(t.Context()))(t)
	if all[0].Copies() != "both" || all[0].Remote.SaveID != "a-new" || all[1].Copies() != "differ" || all[1].Remote.SaveID != "b-new" {
		t.Errorf("the remote place has %+v and %+v", all[0].Remote, all[1].Remote)
	}
	if got := r.Lacking(all, Policy{}, recent); len(got) != 1 || got[0].Name != FolderName(2) {
		t.Errorf("the remote place lacks %+v; want the conflict", got)
	}
}

// The remote place gets another save after the listing. Sync does not replace a save that it has
// not compared.
func TestSyncOfACopyThatChanges(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	saveAt(t, local, "new", 1, recent.Add(time.Hour))
	saveAt(t, remote, "old", 1, recent)
	r := openRun(t, local, remote)
	c := must.Get(r.Checkpoints(t.Context()))(t)[0]
	for id, want := range map[string]bool{"old": true, "later": false} {
		if ok, why := r.replaceable(t.Context(), &c, &transfer.Other{SaveID: id, Step: c.Step, Time: day}); ok != want || ok != (why == "") {
			t.Errorf("the save %q may be replaced: %t, %q; want %t", id, ok, why, want)
		}
	}
}

// A save that replaces the checkpoint of a step is uploaded after the next save, and the log says
// which save it has replaced.
func TestTendReplacesRemoteCopies(t *testing.T) {
	local, remote := t.TempDir(), t.TempDir()
	m := &Member{Address: local, Name: FolderName(1), Settings: Settings{Remote: remote}}
	saveAt(t, local, "first", 1, recent)
	must.Get(m.Tend(t.Context(), nil))(t)
	must.Do(t, os.RemoveAll(filepath.Join(local, FolderName(1))))
	saveAt(t, local, "second", 1, recent.Add(time.Hour))
	done := must.Get(m.Tend(t.Context(), nil))(t)
	attrs := done.Attrs()
	if len(attrs) != 1 || attrs[0].Key != "replaced_remote" || !strings.Contains(attrs[0].Value.String(), "save first") {
		t.Errorf("the log has %v; want the save that was replaced", attrs)
	}
	if c := must.Get(openRun(t, local, remote).Checkpoints(t.Context()))(t)[0]; c.Remote.SaveID != "second" {
		t.Errorf("the remote place has the save %s", c.Remote.SaveID)
	}
}

// A remote place that is new, or was named after a rewind, gets the rewind with the checkpoints.
func TestSyncCarriesTheRewind(t *testing.T) {
	for name, early := range map[string]bool{"a new place": false, "a place with checkpoints": true} {
		t.Run(name, func(t *testing.T) {
			dir, remote := t.TempDir(), t.TempDir()
			for step := range int64(4) {
				save(t, dir, step)
			}
			if early {
				must.Get(openRun(t, dir, remote).Sync(t.Context(), nil))(t)
			}
			must.Get(openRun(t, dir, "").Rewind(t.Context(), "1"))(t)
			must.Get(openRun(t, dir, remote).Sync(t.Context(), nil))(t)
			if found := must.Get(openRun(t, remote, "").Latest(t.Context()))(t); *found.Step != 1 {
				t.Errorf("the remote run goes on from %d; want 1", *found.Step)
			}
		})
	}
}
