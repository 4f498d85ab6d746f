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
	"time"

	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
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
	line := &meta.Line{Commit: 7, Parent: "p", Left: []meta.Left{{Since: recent, Saves: []string{"a"}}}}
	notes := Notes{Tags: []string{"release"}, Metrics: Metrics{"loss": 0.25, "norm": math.NaN()}, Line: line}
	for i, data := range flips(must.Get(notes.encode("save"))(t)) {
		if n, of, err := decodeNotes(data); err == nil {
			t.Errorf("byte %d: %s is read as %+v of %q", i, data, n, of)
		}
	}
	settings := Settings{Remote: "s3://b/run", Keep: keep(t, "last 3"), KeepRemote: keep(t, "tagged"), Rewound: &Rewound{To: "x", Commit: 5, Time: recent}}
	for i, data := range flips(must.Get(settings.encode())(t)) {
		if s, err := decodeSettings(data); err == nil {
			t.Errorf("byte %d: %s is read as %+v", i, data, s)
		}
	}
}

// A checkpoint of another format that opens without a file that is missing or damaged is not complete: the last good one
// stays.
func TestPruneOfAPartlyReadableCheckpoint(t *testing.T) {
	const lost = "fsdp_model_1.pt"
	for name, damage := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.Truncate(path, 50) },
		"missing":   os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for step := range 3 {
				to := filepath.Join(dir, fmt.Sprint("step-", step))
				copyFolder(t, "../testdata/fixtures/torch_checkpointing/torch-sync-4/ckpt", to)
				must.Do(t, os.Chtimes(filepath.Join(to, "metadata.pkl"), recent, recent.Add(time.Duration(step)*time.Minute)))
			}
			must.Do(t, damage(filepath.Join(dir, "step-2", lost)))

			r := openRun(t, dir, "")
			rep := must.Get(r.Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1")}))(t)
			var left []string
			for _, e := range must.Get(os.ReadDir(dir))(t) {
				if strings.HasPrefix(e.Name(), "step-") {
					left = append(left, e.Name())
				}
			}
			if rep.Count != 1 || !slices.Equal(left, []string{"step-1", "step-2"}) {
				t.Errorf("%d checkpoints were removed, and %v are left; want the last good one, and the damaged one", rep.Count, left)
			}
		})
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
	must.Do(t, os.WriteFile(path, data[:len(data)/2], 0o666))
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
	must.Do(t, WriteSettings(t.Context(), openDir(t, dir), Settings{Keep: keep(t, "last 3, tagged"), Rewound: &Rewound{To: "x", Commit: 5, Time: recent}}))
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

// wentBack returns a run of the steps 1 to 5. Its job went back to step 3 and saved step 4 again,
// in another folder.
func wentBack(t *testing.T) *model {
	t.Helper()
	m := newModel(t, recent)
	for step := range int64(5) {
		m.clock = m.clock.Add(time.Minute)
		m.save(1+step, "all")
	}
	m.line.Loaded(FolderName(3), "save-3")
	m.clock = m.clock.Add(time.Minute)
	m.save(4, "all")
	return m
}

// If the newest commit is damaged, but its record can be read, the run goes on from the line on
// which it is, and policies follow that line.
func TestDamagedCommitHasALine(t *testing.T) {
	m := wentBack(t)
	name := FolderName(4) + "~2"
	files := must.Get(filepath.Glob(filepath.Join(m.dir, name, "*r00000*")))(t)
	must.Do(t, os.Remove(files[0]))

	r := openRun(t, m.dir, "")
	if found := must.Get(r.Latest(t.Context()))(t); found.SaveID != "save-3" || len(found.Skipped) != 1 {
		t.Errorf("Latest = %+v; want save-3, and the damaged one among what was skipped", found)
	}
	if found := must.Get(r.Newest(t.Context(), Bounds{}))(t); found.SaveID != "save-3" {
		t.Errorf("Newest = %+v; want save-3", found)
	}
	opts := &PruneOptions{Keep: keep(t, "last 2"), DryRun: true, Now: m.clock}
	rep := must.Get(r.Prune(t.Context(), opts))(t)
	if got, want := outcomes(rep.Local), "1 would remove, 2 kept, 3 kept, 4 kept, 5 kept, 4 kept"; got != want {
		t.Errorf("prune: %s; want %s", got, want)
	}

	m.line = new(Line) // a job that loads the checkpoint that Latest returns
	m.line.Loaded(FolderName(3), "save-3")
	m.save(7, "all")
	all := must.Get(r.Checkpoints(t.Context()))(t)
	var left []string
	for i := range all {
		if all[i].Left {
			left = append(left, all[i].SaveID)
		}
	}
	if want := []string{"save-4", "save-5"}; !slices.Equal(left, want) || m.parents[m.at] != "save-3" {
		t.Errorf("the next save goes on from %q, and %q were left; want save-3, and %q", m.parents[m.at], left, want)
	}
}

// A rewind counts as long as the settings of one place can be read, and no checkpoint is removed
// while the settings of the other one cannot.
func TestRemoteSettingsThatCannotBeRead(t *testing.T) {
	dir, remote := t.TempDir(), t.TempDir()
	for step := range int64(4) {
		save(t, dir, step)
		copyFolder(t, filepath.Join(dir, FolderName(step)), filepath.Join(remote, FolderName(step)))
	}
	r := openRun(t, dir, remote)
	must.Do(t, r.Claim(t.Context(), Settings{Keep: keep(t, "last 2")}))
	must.Get(r.Rewind(t.Context(), "1"))(t)
	path := filepath.Join(remote, SettingsFile)
	data := must.Get(os.ReadFile(path))(t)
	for name, damaged := range damages(data) {
		if name == "later" {
			damaged = bytes.Replace(data, []byte(`"version": 1`), []byte(`"version": 9`), 1)
		}
		must.Do(t, os.WriteFile(path, damaged, 0o666))
		if found := must.Get(r.Latest(t.Context()))(t); *found.Step != 1 || len(found.Skipped) != 1 || found.Skipped[0].Path != path {
			t.Errorf("%s: Latest = %+v; want step 1, and %s among what was skipped", name, found, path)
		}
		if rep, err := r.Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1, left within 1 second"), Now: recent.AddDate(100, 0, 0)}); err == nil {
			t.Fatalf("%s: Prune = %s; want an error", name, outcomes(rep.Local))
		}
	}
}

// Latest and Prune agree on the newest checkpoint if a format does not record the time of a save.
func TestLatestComparesTimesOfFiles(t *testing.T) {
	m := newModel(t, recent)
	m.save(1, "all")
	m.clock = m.clock.Add(time.Hour)
	m.save(2, "all")
	data := must.Get(filepath.Glob(filepath.Join(m.dir, FolderName(2), "*.safetensors")))(t)
	foreign := filepath.Join(m.dir, FolderName(3), "model.safetensors")
	must.Do(t, os.MkdirAll(filepath.Dir(foreign), 0o777))
	must.Do(t, os.WriteFile(foreign, must.Get(os.ReadFile(data[0]))(t), 0o666))

	r := openRun(t, m.dir, "")
	for _, c := range []struct {
		at   time.Time
		want string
	}{{m.clock.Add(-2 * time.Hour), FolderName(2)}, {m.clock.Add(time.Hour), FolderName(3)}} {
		must.Do(t, os.Chtimes(foreign, c.at, c.at))
		all := must.Get(r.Checkpoints(t.Context()))(t)
		if head := all[slices.IndexFunc(all, func(c Checkpoint) bool { return c.Head })].Name; head != c.want {
			t.Errorf("files of %v: the head is %s; want %s", c.at, head, c.want)
		}
		if found := must.Get(r.Latest(t.Context()))(t); filepath.Base(found.Path) != c.want {
			t.Errorf("files of %v: Latest = %s; want %s", c.at, found.Path, c.want)
		}
	}
}

// If the notes cannot be read that have the line of the newest save, the current line is not known:
// Latest says so, and all checkpoints stay.
func TestPruneKeepsAllIfTheLineIsNotKnown(t *testing.T) {
	m := wentBack(t)
	name := FolderName(4) + "~3"
	saveIn(t, openDir(t, m.dir, name), torchdcp.Format{}, "save-7", 30) // its folder has the step
	must.Do(t, os.WriteFile(filepath.Join(m.dir, name, NotesFile), []byte("{"), 0o666))
	must.Do(t, os.RemoveAll(filepath.Join(m.dir, FolderName(4)+"~2")))

	r := openRun(t, m.dir, "")
	if found := must.Get(r.Latest(t.Context()))(t); found.SaveID != "save-3" || len(found.Skipped) != 1 {
		t.Errorf("Latest = %+v; want save-3, and the checkpoint among what was skipped", found)
	}
	rep := must.Get(r.Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1, at most 1 B"), Now: recent.AddDate(100, 0, 0)}))(t)
	if rep.Count != 0 || len(rep.Warnings) != 2 {
		t.Errorf("prune: %s, with the warnings %q; want all to stay, and two warnings", outcomes(rep.Local), rep.Warnings)
	}
}

// A save of an older cairn that goes back is not an ancestor of a save that goes on from a checkpoint
// before it.
func TestLaterSavesAreNotAncestors(t *testing.T) {
	m := newModel(t, recent)
	m.save(100, "all")
	m.clock = m.clock.Add(time.Hour)
	saveAt(t, m.dir, "older", 50, m.clock) // of an older cairn, which has gone back
	m.clock = m.clock.Add(time.Hour)
	m.save(101, "last 1")

	rep := must.Get(openRun(t, m.dir, "").Prune(t.Context(), &PruneOptions{Keep: keep(t, "last 1"), DryRun: true, Now: m.clock}))(t)
	if got, want := outcomes(rep.Local), "50 kept, 100 would remove, 101 kept"; got != want {
		t.Errorf("prune: %s; want %s", got, want)
	}
}

// A save to a folder with a damaged checkpoint replaces it, unless the checkpoint has tags.
func TestDamagedCheckpointWithTagsStays(t *testing.T) {
	for _, tagged := range []bool{false, true} {
		for _, file := range []string{"*r00000*", "*index*", "cairn.json"} {
			m := newModel(t, recent)
			m.save(1, "all")
			m.save(2, "all")
			if tagged {
				must.Do(t, openRun(t, m.dir, "").Note(t.Context(), FolderName(2), func(n *Notes) error { n.Tag("release"); return nil }))
			}
			files := must.Get(filepath.Glob(filepath.Join(m.dir, FolderName(2), file)))(t)
			must.Do(t, os.Remove(files[0]))

			m.line.Loaded(FolderName(1), "save-1")
			m.save(2, "all")
			_, err := os.Stat(filepath.Join(m.dir, FolderName(2)+"~2"))
			if (err == nil) != tagged {
				t.Errorf("without %s, with a tag: %v: the save is in a folder of its own: %v", file, tagged, err == nil)
			}
		}
	}
}

// A save does not replace a checkpoint of a newer cairn, which may be complete.
func TestCheckpointThatCannotBeReadStays(t *testing.T) {
	m := newModel(t, recent)
	m.save(1, "all")
	m.save(2, "all")
	path := filepath.Join(m.dir, FolderName(2), "cairn.json")
	newer := []byte(`{"record": {"format": "cairn", "version": 99}}`)
	must.Do(t, os.WriteFile(path, newer, 0o666))
	if f := openRun(t, m.dir, "").Local.look(t.Context(), FolderName(2)); !errors.Is(f.err, storage.ErrVersion) {
		t.Fatalf("the checkpoint of a newer cairn: %v; want ErrVersion", f.err)
	}

	m.line.Loaded(FolderName(1), "save-1")
	m.save(2, "all")
	if got := must.Get(os.ReadFile(path))(t); !bytes.Equal(got, newer) {
		t.Error("the save has replaced a checkpoint that it cannot read")
	}
}
