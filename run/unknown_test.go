package run

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// damages are changes of a small file that make it unreadable, or another one.
func damages(data []byte) map[string][]byte {
	out := map[string][]byte{
		"empty":     {},
		"truncated": data[:len(data)/2],
		"later":     bytes.Replace(data, []byte(`"version":1`), []byte(`"version":9`), 1),
		"more":      append(slices.Clone(data), "{}"...),
	}
	for i, flipped := range flips(data) {
		if i%11 == 0 {
			out[fmt.Sprintf("flip of byte %d", i)] = flipped
		}
	}
	return out
}

// flips returns data with one bit flipped, in each byte that is not white space.
func flips(data []byte) map[int][]byte {
	out := map[int][]byte{}
	for i, b := range data {
		if b != '\n' && b != ' ' {
			out[i] = slices.Clone(data)
			out[i][i] ^= 1
		}
	}
	return out
}

// Every flipped bit of the files of a run is noticed.
func TestFlippedBitsAreNoticed(t *testing.T) {
	line := &meta.Line{Commit: 7, Parent: "p", Left: []meta.Left{{Since: day, Saves: []string{"a"}}}}
	notes := Notes{Tags: []string{"release"}, Metrics: Metrics{"loss": 0.25, "norm": math.NaN()}, Line: line}
	for i, data := range flips(must.Get(notes.encode("save"))(t)) {
		if n, of, err := decodeNotes(data); err == nil {
			t.Errorf("byte %d: %s is read as %+v of %q", i, data, n, of)
		}
	}
	settings := Settings{Remote: "s3://b/run", Keep: keep(t, "last 3"), KeepRemote: keep(t, "tagged"), Rewound: &Rewound{To: "x", Commit: 5, Time: day}}
	for i, data := range flips(must.Get(settings.encode())(t)) {
		if s, err := decodeSettings(data); err == nil {
			t.Errorf("byte %d: %s is read as %+v", i, data, s)
		}
	}
}

// A checkpoint with tags and metrics that cannot be read stays, and the report says why.
func TestPruneKeepsWhatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(4) {
		save(t, dir, step)
	}
	r := openRun(t, dir, "")
	for step := range int64(4) {
		must.Do(t, r.Note(t.Context(), FolderName(step), func(n *Notes) error { n.SetMetric("loss", float64(step)); return nil }))
	}
	must.Do(t, r.Note(t.Context(), FolderName(1), func(n *Notes) error { n.Tag("release"); return nil }))
	path := filepath.Join(dir, FolderName(1), NotesFile)
	data := must.Get(os.ReadFile(path))(t)
	policy := keep(t, "best 1 by loss, tagged")

	for name, damaged := range damages(data) {
		must.Do(t, os.WriteFile(path, damaged, 0o666))
		rep := must.Get(r.Prune(t.Context(), &PruneOptions{Keep: policy, DryRun: true}))(t)
		if got, want := outcomes(rep.Local), "0 kept, 1 kept, 2 would remove, 3 kept"; got != want || len(rep.Warnings) != 1 {
			t.Errorf("%s: %s, with the warnings %q; want %s and one warning", name, got, rep.Warnings, want)
		}
	}
	if err := r.Note(t.Context(), FolderName(1), func(n *Notes) error { n.Tag("x"); return nil }); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("Note = %v; want ErrCorrupt, and what to do", err)
	}

	must.Do(t, os.WriteFile(path, data, 0o666))
	r.Local = &Place{Store: fault.New(r.Local.Store, fault.Rule{On: fault.Open | fault.Stat, Match: fault.Named(FolderName(1) + "/" + NotesFile), Do: fault.Fail(fs.ErrPermission)}), address: "objects://run"}
	rep := must.Get(r.Prune(t.Context(), &PruneOptions{Keep: policy}))(t)
	if got, want := outcomes(rep.Local), "0 kept, 1 kept, 2 removed, 3 kept"; got != want || len(rep.Warnings) != 1 {
		t.Errorf("refused by the store: %s, with the warnings %q; want %s and one warning", got, rep.Warnings, want)
	}
}

// If a record cannot be read, all checkpoints stay to which it may refer.
func TestPruneKeepsWhatARecordMayReferTo(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(4) {
		save(t, dir, step)
	}
	r := openRun(t, dir, "")
	path := filepath.Join(dir, FolderName(2), "cairn.json")
	data := must.Get(os.ReadFile(path))(t)
	for name, damaged := range map[string][]byte{
		"truncated": data[:len(data)/2], "empty": {}, "flipped": bytes.Replace(data, []byte("2026"), []byte("2027"), 1),
		"later": bytes.Replace(data, []byte(`"version": 1`), []byte(`"version": 9`), 1),
	} {
		must.Do(t, os.WriteFile(path, damaged, 0o666))
		rep := must.Get(r.Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1, at most 1 B")}))(t)
		if rep.Count != 0 || len(rep.Warnings) != 1 {
			t.Errorf("%s: %s, with the warnings %q; want all to stay, and one warning", name, outcomes(rep.Local), rep.Warnings)
		}
	}

	// A record that becomes unreadable after the listing.
	must.Do(t, os.WriteFile(path, data, 0o666))
	all := must.Get(r.Checkpoints(t.Context()))(t)
	must.Do(t, os.MkdirAll(filepath.Join(dir, FolderName(7)), 0o777))
	must.Do(t, os.WriteFile(filepath.Join(dir, FolderName(7), "cairn.json"), data[:9], 0o666))
	rep := must.Get(r.prune(t.Context(), all, &PruneOptions{Keep: keep(t, "last 1")}))(t)
	if rep.Count != 0 {
		t.Errorf("a record that cannot be read came meanwhile: %s; want all to stay", outcomes(rep.Local))
	}
}

// If the settings cannot be read, no process removes checkpoints, and none replaces the settings.
func TestSettingsThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	for step := range int64(3) {
		save(t, dir, step)
	}
	must.Do(t, WriteSettings(t.Context(), openDir(t, dir), Settings{Keep: keep(t, "last 3, tagged"), Rewound: &Rewound{To: "x", Commit: 5, Time: day}}))
	path := filepath.Join(dir, SettingsFile)
	data := must.Get(os.ReadFile(path))(t)
	m := &Member{Address: dir, Settings: Settings{Keep: keep(t, "last 1")}}
	for name, damaged := range damages(data) {
		if name == "later" {
			damaged = bytes.Replace(data, []byte(`"version": 1`), []byte(`"version": 9`), 1)
		}
		must.Do(t, os.WriteFile(path, damaged, 0o666))
		if _, err := m.Tend(t.Context(), nil); err == nil {
			t.Errorf("%s: Tend returns no error", name)
		}
		if got := must.Get(os.ReadFile(path))(t); !bytes.Equal(got, damaged) {
			t.Errorf("%s: the settings were replaced by %s", name, got)
		}
		if _, err := openRun(t, dir, "").Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1")}); err == nil {
			t.Errorf("%s: Prune returns no error", name)
		}
		if _, _, err := OpenSettings(t.Context(), dir, Settings{}); err == nil {
			t.Errorf("%s: OpenSettings returns no error", name)
		}
		if found, err := openRun(t, dir, "").Latest(t.Context()); err != nil || *found.Step != 2 || len(found.Skipped) != 1 {
			t.Errorf("%s: Latest = %+v, %v; want step 2, and the settings among what was skipped", name, found, err)
		}
	}
	for step := range int64(3) {
		if _, err := os.Stat(filepath.Join(dir, FolderName(step))); err != nil {
			t.Error(err)
		}
	}
}
