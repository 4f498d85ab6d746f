package run

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

// ownConfig gives the test a user without confirmations.
func ownConfig(t testing.TB) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("HOME", dir)
	t.Setenv("AppData", dir)
}

// victim makes a run with three checkpoints, and a folder from elsewhere that names it as its
// remote place.
func victim(t testing.TB, id string) (host, remote string) {
	t.Helper()
	host, remote = t.TempDir(), t.TempDir()
	for step := range int64(3) {
		save(t, remote, step)
	}
	save(t, host, 9)
	text := fmt.Sprintf(`{"version":1,%s"remote":%q,"keep_remote":"last 1"}`, id, remote)
	must.Do(t, os.WriteFile(filepath.Join(host, SettingsFile), []byte(text), 0o666))
	return host, remote
}

// stored opens a run as a command does: with the settings in its folder.
func stored(t testing.TB, dir string) (*Run, *PruneOptions) {
	t.Helper()
	r, s, err := OpenSettings(t.Context(), dir, Settings{})
	must.Do(t, err)
	return r, &PruneOptions{Keep: s.Keep, KeepRemote: s.KeepRemote}
}

// names returns the names of the folders below a folder.
func names(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	for _, e := range must.Get(os.ReadDir(dir))(t) {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}

// A folder from elsewhere does not remove checkpoints, replace them or add some at the address
// that a file in it names.
func TestSettingsFromElsewhere(t *testing.T) {
	ownConfig(t)
	for name, c := range map[string]struct {
		id, victim string // ids of the folder and of the run that it names
		synced     bool   // an upload is allowed
	}{
		"no ids":             {},
		"an id":              {id: "mine"},
		"the id of another":  {id: "mine", victim: "theirs"},
		"only the victim's":  {victim: "theirs"},
		"the id of the same": {id: "theirs", victim: "theirs", synced: true}, // it can be read there
	} {
		id := ""
		if c.id != "" {
			id = fmt.Sprintf(`"id":%q,`, c.id)
		}
		host, remote := victim(t, id)
		if c.victim != "" {
			must.Do(t, WriteSettings(t.Context(), openDir(t, remote), Settings{ID: c.victim}))
		}
		before := names(t, remote)
		r, opts := stored(t, host)
		want := ErrUnconfirmed
		if c.id != "" && c.victim != "" && c.id != c.victim {
			want = ErrOtherRun
		}
		if rep, err := r.Prune(t.Context(), opts); !errors.Is(err, want) || rep != nil {
			t.Errorf("%s: Prune = %+v, %v; want %v", name, rep, err, want)
		}
		if _, err := r.Sync(t.Context(), nil); (err == nil) != c.synced || err != nil && !errors.Is(err, want) {
			t.Errorf("%s: Sync: %v; want %v", name, err, want)
		}
		if c.synced {
			before = append(before, FolderName(9))
		}
		if got := names(t, remote); !slices.Equal(got, before) {
			t.Errorf("%s: the run has %q; want %q", name, got, before)
		}
		opts.DryRun = true
		if rep := must.Get(r.Prune(t.Context(), opts))(t); !slices.ContainsFunc(rep.Warnings, func(w string) bool { return strings.HasPrefix(w, "nothing would be removed") }) {
			t.Errorf("%s: a dry run warns of %q", name, rep.Warnings)
		}
	}
}

// The notes of another run stay: its policy may keep a checkpoint for a tag.
func TestNotesOfAnotherRun(t *testing.T) {
	ownConfig(t)
	for want, ids := range map[error][2]string{
		ErrUnconfirmed: {},
		ErrOtherRun:    {`"id":"mine",`, "theirs"},
	} {
		host, remote := victim(t, ids[0])
		save(t, host, 1)
		if ids[1] != "" {
			must.Do(t, WriteSettings(t.Context(), openDir(t, remote), Settings{ID: ids[1]}))
		}
		theirs := openRun(t, remote, "")
		must.Do(t, theirs.Note(t.Context(), FolderName(1), func(n *Notes) error { n.Tag("release"); return nil }))
		r, _ := stored(t, host)
		if err := r.Note(t.Context(), FolderName(1), func(n *Notes) error { n.Untag("release"); n.Tag("x"); return nil }); !errors.Is(err, want) {
			t.Errorf("Note = %v; want %v", err, want)
		}
		for dir, tag := range map[string]string{host: "x", remote: "release"} {
			for _, c := range must.Get(openRun(t, dir, "").Checkpoints(t.Context()))(t) {
				if c.Name == FolderName(1) && !slices.Equal(c.Tags, []string{tag}) {
					t.Errorf("%s has the tags %q; want %s", c.Local.Path, c.Tags, tag)
				}
			}
		}
		must.Do(t, r.Note(t.Context(), FolderName(9), func(n *Notes) error { n.Tag("y"); return nil })) // which the other run lacks
	}
}

// Once a job or a user has named the remote place, commands remove checkpoints there. Another folder
// with the same settings does not.
func TestConfirmedRemote(t *testing.T) {
	ownConfig(t)
	local, remote := t.TempDir(), t.TempDir()
	m := &Member{Address: local, Settings: Settings{Remote: remote, KeepRemote: keep(t, "last 2")}}
	for step := range int64(3) {
		m.Name = save(t, local, step)
		must.Get(m.Tend(t.Context(), nil))(t)
	}
	here, there := must.Get(ReadSettings(t.Context(), openDir(t, local)))(t), must.Get(ReadSettings(t.Context(), openDir(t, remote)))(t)
	if here.ID == "" || here.ID != there.ID {
		t.Fatalf("the ids are %q and %q; want the same", here.ID, there.ID)
	}
	moved := filepath.Join(t.TempDir(), "moved")
	copyFolder(t, local, moved)
	r, opts := stored(t, moved)
	opts.KeepRemote = keep(t, "last 1")
	if _, err := r.Prune(t.Context(), opts); !errors.Is(err, ErrUnconfirmed) || !strings.Contains(err.Error(), "'cairn settings "+moved+" --remote "+remote+"'") {
		t.Errorf("Prune of a copy: %v; want what to do", err)
	}
	r, _ = stored(t, local)
	if rep := must.Get(r.Prune(t.Context(), opts))(t); rep.Count != 1 {
		t.Errorf("Prune = %+v; want one removed", rep)
	}

	// The word of the user, for one call and for good.
	save(t, remote, 3)
	r, _ = stored(t, moved)
	opts.Confirmed = true
	if rep := must.Get(r.Prune(t.Context(), opts))(t); rep.Count != 1 {
		t.Errorf("Prune that was confirmed = %+v", rep)
	}
	must.Do(t, r.Confirm(t.Context()))
	opts.Confirmed = false
	must.Get(r.Prune(t.Context(), opts))(t)
	other := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", other) // another user
	t.Setenv("HOME", other)
	if _, err := r.Prune(t.Context(), opts); !errors.Is(err, ErrUnconfirmed) {
		t.Errorf("Prune by another user: %v", err)
	}

	// The list of a newer program stays as it is.
	newer := []byte(`{"version":9,"places":[]}`)
	config := must.Get(configStore())(t)
	must.Get(blob.WriteAll(t.Context(), config, confirmedFile, newer, nil))(t)
	if err := r.Confirm(t.Context()); !errors.Is(err, storage.ErrVersion) {
		t.Errorf("Confirm with a newer list: %v; want ErrVersion", err)
	}
	if got := must.Get(blob.ReadAll(t.Context(), config, confirmedFile, 1<<20))(t); !bytes.Equal(got, newer) {
		t.Errorf("the newer list became %s", got)
	}
}

// A job does not upload to the remote place of another run, even if it names it. A job on a host
// without the folder of the run joins the run that is there.
func TestClaim(t *testing.T) {
	ownConfig(t)
	local, remote, other := t.TempDir(), t.TempDir(), t.TempDir()
	settings := Settings{Remote: remote, KeepRemote: keep(t, "last 1")}
	m := &Member{Address: local, Name: save(t, local, 1), Settings: settings}
	must.Get(m.Tend(t.Context(), nil))(t)
	must.Do(t, WriteSettings(t.Context(), openDir(t, other), Settings{Keep: keep(t, "last 1")}))
	strange := &Member{Address: other, Name: save(t, other, 2), Settings: settings}
	for range 2 {
		if _, err := strange.Tend(t.Context(), nil); !errors.Is(err, ErrOtherRun) || !errors.Is(strange.Claim(t.Context()), ErrOtherRun) {
			t.Fatalf("Tend of another run: %v", err)
		}
	}
	if got := names(t, remote); !slices.Equal(got, []string{FolderName(1)}) {
		t.Errorf("the remote place has %q", got)
	}

	fresh := t.TempDir()
	must.Get((&Member{Address: fresh, Name: save(t, fresh, 2), Settings: settings}).Tend(t.Context(), nil))(t)
	if got := names(t, remote); !slices.Equal(got, []string{FolderName(2)}) {
		t.Errorf("the remote place has %q; want what the new folder has saved", got)
	}
}

// An existing remote place without an id gets the id of a run that names it.
func TestAdopt(t *testing.T) {
	ownConfig(t)
	local, remote := t.TempDir(), t.TempDir()
	r := openRun(t, local, remote)
	id := must.Get(r.Adopt(t.Context(), ""))(t)
	if s := must.Get(ReadSettings(t.Context(), r.Remote.Store))(t); s.ID != "" || id == "" {
		t.Errorf("an empty place has the id %q, and the run %q", s.ID, id)
	}
	save(t, remote, 1)
	if got := must.Get(r.Adopt(t.Context(), "a"))(t); got != "a" || must.Get(ReadSettings(t.Context(), r.Remote.Store))(t).ID != "a" {
		t.Errorf("Adopt = %q", got)
	}
	if got := must.Get(r.Adopt(t.Context(), ""))(t); got != "a" {
		t.Errorf("Adopt of a run without an id = %q; want the id that is there", got)
	}
	if _, err := r.Adopt(t.Context(), "b"); !errors.Is(err, ErrOtherRun) {
		t.Errorf("Adopt with another id: %v", err)
	}
}
