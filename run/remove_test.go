package run

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(4) {
		save(t, dir, step)
	}
	r := openRun(t, dir, "")
	names := []string{FolderName(0), FolderName(2)}
	const dry = "0 would remove, 2 would remove"
	if got := outcomes(must.Get(r.Remove(t.Context(), names, &RemoveOptions{DryRun: true}))(t)); got != dry {
		t.Errorf("a dry run: %s; want %s", got, dry)
	}
	var told []string
	removed := must.Get(r.Remove(t.Context(), names, &RemoveOptions{Removed: func(p *Pruned) { told = append(told, p.Name) }}))(t)
	if got := outcomes(removed); got != "0 removed, 2 removed" || !slices.Equal(told, []string{FolderName(2), FolderName(0)}) {
		t.Errorf("Remove: %s, and it told of %q", got, told)
	}
	if got, want := list(t, r), []string{FolderName(1) + " local", FolderName(3) + " local"}; !slices.Equal(got, want) {
		t.Errorf("there are %q; want %q", got, want)
	}
}

// A checkpoint that is refused stays, and so do all others of the same call.
func TestRemoveRefuses(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(4) {
		save(t, dir, step)
	}
	must.Do(t, os.Remove(filepath.Join(dir, FolderName(1), "cairn.json")))
	for _, f := range must.Get(filepath.Glob(filepath.Join(dir, FolderName(2), "*.safetensors")))(t) {
		must.Do(t, os.Remove(f))
	}
	r := openRun(t, dir, "")
	for name, want := range map[string]error{
		FolderName(3): ErrNewest, FolderName(1): storage.ErrIncomplete, FolderName(2): storage.ErrCorrupt, "nothing": storage.ErrNotFound,
	} {
		got, err := r.Remove(t.Context(), []string{FolderName(0), name}, nil)
		if !errors.Is(err, want) || len(got) != 2 || got[0].Outcome != WouldRemove || got[1].Outcome != Failed || got[1].Problem == "" {
			t.Errorf("Remove of %s = %v, %v; want %v", name, got, err, want)
		}
	}
	if got := list(t, r); len(got) != 4 {
		t.Errorf("there are %q; want all four", got)
	}
	// Force removes damaged checkpoints and the newest one.
	removed := must.Get(r.Remove(t.Context(), []string{FolderName(2), FolderName(3), FolderName(0)}, &RemoveOptions{Force: true}))(t)
	if got := outcomes(removed); got != "2 removed, 3 removed, 0 removed" {
		t.Errorf("Remove by force: %s", got)
	}
}

// Remove does not wait for a reader, and goes on with other checkpoints.
func TestRemoveLeavesWhatIsInUse(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(3) {
		save(t, dir, step)
	}
	release := must.Get(commit.Reading(t.Context(), openDir(t, dir, FolderName(1))))(t)
	r := openRun(t, dir, "")
	names := []string{FolderName(0), FolderName(1)}
	got, err := r.Remove(t.Context(), names, nil)
	if !errors.Is(err, storage.ErrInUse) || outcomes(got) != "0 removed, 1 in use" {
		t.Errorf("Remove of one in use = %s, %v; want ErrInUse", outcomes(got), err)
	}
	release()
	if got := must.Get(r.Remove(t.Context(), names[1:], nil))(t); outcomes(got) != "1 removed" {
		t.Errorf("Remove later: %s", outcomes(got))
	}
}

// A checkpoint that another one needs is removed together with it only.
func TestRemoveFollowsReferences(t *testing.T) {
	complete := func() *Copy { return &Copy{State: Complete, found: &found{}} }
	p := &pruning{opts: &PruneOptions{}, all: []Checkpoint{
		{Name: "a", Local: complete()},
		{Name: "b", Local: complete(), Bases: []string{"a"}},
		{Name: "c", Local: complete()},
	}}
	if err := p.refusal(&p.all[0], []string{"a"}, true); !errors.Is(err, ErrReferred) {
		t.Errorf("a alone: %v; want ErrReferred", err)
	}
	if err := p.refusal(&p.all[0], []string{"a", "b"}, false); err != nil {
		t.Errorf("a with b: %v; want nil", err)
	}
}

// A checkpoint with tags, or with notes that cannot be read, stays, also by force.
func TestRemoveKeepsTaggedCheckpoints(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(4) {
		save(t, dir, step)
	}
	r := openRun(t, dir, "")
	for step := range int64(3) {
		must.Do(t, r.Note(t.Context(), FolderName(step), func(n *Notes) error { n.Tag("release"); n.Tag("x"); return nil }))
	}
	must.Do(t, r.Note(t.Context(), FolderName(2), func(n *Notes) error { n.Tags = nil; n.SetMetric("loss", 1); return nil }))
	notes := filepath.Join(dir, FolderName(1), NotesFile)
	must.Do(t, os.WriteFile(notes, []byte("{"), 0o666))
	for _, force := range []bool{false, true} {
		for step, text := range []string{"it has tags: release, x", "it has tags, perhaps: cairn-notes.json"} {
			_, err := r.Remove(t.Context(), []string{FolderName(int64(step)), FolderName(2)}, &RemoveOptions{Force: force})
			if !errors.Is(err, ErrTagged) || isAny(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), text) {
				t.Errorf("Remove of step %d, by force %v: %v; want %q", step, force, err, text)
			}
		}
	}

	// One that gets a tag right before its removal stays, and the others go.
	tag := func(p *Pruned) {
		must.Do(t, r.Note(t.Context(), FolderName(2), func(n *Notes) error { n.Tag("late"); return nil }))
	}
	got, err := r.Remove(t.Context(), []string{FolderName(3), FolderName(2)}, &RemoveOptions{Force: true, Removed: tag})
	if !errors.Is(err, ErrTagged) || outcomes(got) != "3 removed, 2 failed" {
		t.Errorf("Remove = %s, %v; want ErrTagged", outcomes(got), err)
	}
	removed := must.Get(r.Remove(t.Context(), []string{FolderName(0), FolderName(1), FolderName(2)}, &RemoveOptions{Force: true, TaggedToo: true}))(t)
	if got := outcomes(removed); got != "0 removed, 1 removed, 2 removed" {
		t.Errorf("with TaggedToo: %s", got)
	}
}
