package run

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestParseExport(t *testing.T) {
	for text, want := range map[string]*Export{
		"hf to /models": {Form: "hf", To: "/models"},
		"hf/llama to s3://b/models with /m/Llama-3.1-8B at 200MB/s": {"hf/llama", "s3://b/models", "/m/Llama-3.1-8B", 200e6},
		" my.toml  to  models at 1.5GiB/s":                          {Form: "my.toml", To: "models", Rate: 3 << 29},
		"hf to /a to b with c with d":                               {Form: "hf", To: "/a to b with c", Model: "d"},
		"":                                                          nil,
		"hf":                                                        nil,
		"hf to ":                                                    nil,
		" to /x":                                                    nil,
		"hf to /x at 5QB/s":                                         nil,
		"hf to s3://key:secret@bucket/x":                            nil,
		"hf to s3://bucket/x?token=1":                               nil,
		"hf to memory://job":                                        nil,
		"hf to a\nb":                                                nil,
		"hf to " + strings.Repeat("a", 1<<13):                       nil,
	} {
		got, err := ParseExport(text)
		switch {
		case want == nil && !errors.Is(err, storage.ErrOptions):
			t.Errorf("ParseExport(%.60q) = %+v, %v; want ErrOptions", text, got, err)
		case want != nil && (err != nil || got != *want):
			t.Errorf("ParseExport(%q) = %+v, %v; want %+v", text, got, err, *want)
		case want != nil:
			if again, err := ParseExport(got.String()); again != got || err != nil {
				t.Errorf("the text of %+v is %q, which gives %+v, %v", got, got.String(), again, err)
			}
		}
	}
}

// Notes keep the text of an export. An export that the text does not tell is refused: it would go to another place.
func TestAbsoluteExport(t *testing.T) {
	t.Chdir(must.Get(os.MkdirTemp(t.TempDir(), "x with y"))(t))
	e := Export{Form: "hf", To: "models"}
	if got, err := e.Absolute(); !errors.Is(err, storage.ErrOptions) {
		t.Errorf("Absolute = %v, %v; want ErrOptions", got, err)
	}
	if err := (&Notes{Exports: []Exported{{Export: Export{Form: "hf", To: "/x with y"}, State: ExportWaiting}}}).Check(); !errors.Is(err, storage.ErrOptions) {
		t.Errorf("Check = %v; want ErrOptions", err)
	}
	e.Model = "/model" // behind the last " with "
	if got := must.Get(e.Absolute())(t); must.Get(ParseExport(got.String()))(t) != got {
		t.Errorf("Absolute = %v, of which the text gives another export", got)
	}
}

func FuzzParseExport(f *testing.F) {
	for _, text := range []string{"hf to /x", "hf/llama to s3://b with /m at 1GB/s", "a to b at 0/s", "to to to with with at 1/s"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseExport(text)
		if err != nil {
			return
		}
		if again, err := ParseExport(e.String()); err != nil || again != e {
			t.Errorf("ParseExport(%q) = %+v; its text %q gives %+v, %v", text, e, e.String(), again, err)
		}
	})
}

// Notes keep what becomes of exports. Programs without exports refuse them instead of losing them.
func TestNotesOfExports(t *testing.T) {
	s, ctx := new(mem.Store), t.Context()
	a, b := Export{Form: "hf", To: "/a"}, Export{Form: "hf/llama", To: "/b", Model: "/m"}
	change := func(change func(*Notes)) {
		t.Helper()
		must.Do(t, ChangeNotes(ctx, s, "save1", func(n *Notes) error { change(n); return nil }))
	}
	change(func(n *Notes) { n.AskExport(a); n.AskExport(b); n.AskExport(a) })
	asked := must.Get(ReadNotes(ctx, s, "save1"))(t)
	xa, xb := asked.Exports[0], asked.Exports[1]
	change(func(n *Notes) { n.BeginExport(&xa); n.BeginExport(&xb); n.BeginExport(&xb); n.CancelExport(&xb) })
	now := time.Date(2026, 11, 19, 10, 0, 0, 5, time.UTC)
	change(func(n *Notes) {
		n.EndExport(&xa, errors.New(strings.Repeat("x", 1<<20)+"\xff"), now)
		n.EndExport(&xb, nil, now)
		n.EndExport(&xb, errors.New("too late"), now)
		n.EndExport(&Exported{ID: "other", Export: a}, nil, now) // of another save
	})
	data := string(must.Get(blob.ReadAll(ctx, s, NotesFile, 1<<20))(t))
	if !strings.HasPrefix(data, `{"version":2,`) || !strings.Contains(data, `"export":"hf/llama to /b with /m","state":"done","tries":1,"time":"2026-11-19T10:00:00Z"}`) {
		t.Errorf("the file is %.300s", data)
	}
	n := must.Get(ReadNotes(ctx, s, "save1"))(t)
	if len(n.Exports) != 2 || n.Exports[0].State != ExportFailed || len(n.Exports[0].Problem) > maxProblem || ExportsState(n.Exports) != ExportFailed {
		t.Errorf("the exports are %+v", n.Exports)
	}

	// Of two copies of notes, the outcome counts.
	old := Notes{Exports: []Exported{{ID: xa.ID, Export: a, State: ExportWaiting}, {ID: xb.ID, Export: b, State: ExportWaiting, Tries: 2}}}
	old.join(&n)
	if !reflect.DeepEqual(old.Exports, n.Exports) {
		t.Errorf("joined: %+v; want %+v", old.Exports, n.Exports)
	}
	n.join(&Notes{Exports: []Exported{{Export: b, State: ExportWaiting, Tries: 5}}})
	if n.Exports[1].State != ExportDone {
		t.Error("an export that is done waits again")
	}

	for _, bad := range []string{
		`{"version":2,"exports":[{"export":"hf to /a","state":"over"}]}`,
		`{"version":2,"exports":[{"export":"","state":"done"}]}`,
		`{"version":2,"exports":[{"export":"hf","state":"done"}]}`,
		`{"version":2,"exports":[{"export":"hf to /a","state":"done","tries":-1}]}`,
	} {
		if _, _, err := decodeNotes([]byte(bad)); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("decodeNotes(%s): %v; want ErrCorrupt", bad, err)
		}
	}
	again := Notes{}
	again.AskExport(b)
	again.AskExport(Export{Form: "hf", To: b.To})
	if len(again.Exports) != 1 || again.Exports[0].Export.Model != "" {
		t.Errorf("two exports to one address: %+v", again.Exports)
	}
	many := Notes{}
	for i := range maxExports + 1 {
		many.AskExport(Export{Form: "hf", To: fmt.Sprint("/", i)})
	}
	if err := many.Check(); !errors.Is(err, storage.ErrOptions) {
		t.Errorf("%d exports: %v", len(many.Exports), err)
	}
}

// Prune keeps checkpoints whose exports are not done, but only two, and only for a few tries.
func TestApplyKeepsWhatIsToBeExported(t *testing.T) {
	asked := func(state ExportState, tries int) []Exported {
		return []Exported{{Export: Export{Form: "hf", To: "/a"}, State: state, Tries: tries}}
	}
	all := []Checkpoint{at(1, 0), at(2, 1), at(3, 2), at(4, 3), at(5, 4), at(6, 5)}
	all[0].Exports = asked(ExportWaiting, 0)
	all[1].Exports = asked(ExportFailed, 2)
	all[2].Exports = asked(ExportWaiting, 1)
	all[3].Exports = asked(ExportFailed, ExportTries)
	all[4].Exports = asked(ExportDone, 1)
	if got, want := kept(Apply(Policy{Rules: []Rule{Last(1)}}, all, day)), "2 (to be exported), 3 (to be exported), 6 (last 1; newest)"; got != want {
		t.Errorf("kept: %s; want %s", got, want)
	}
	if got, want := kept(Apply(Policy{Rules: []Rule{Last(1)}, AtMost: 1}, all, day)), "6 (last 1; newest)"; got != want {
		t.Errorf("kept below a ceiling: %s; want %s", got, want)
	}
	for i := range all {
		all[i].Local.Path = "/run/" + all[i].Name
	}
	var names []string
	for _, p := range PendingExports(all) {
		names = append(names, p.Name)
	}
	if want := []string{all[3].Name, all[2].Name, all[1].Name, all[0].Name}; !reflect.DeepEqual(names, want) {
		t.Errorf("pending: %v; want %v", names, want)
	}
}

// Without a policy each save is exported, and otherwise the saves that are due.
func TestExporting(t *testing.T) {
	e := Export{Form: "hf", To: "/models"}
	due := must.Get(NewDue(must.Get(ParsePolicy("every 10 steps"))(t)))(t)
	for name, c := range map[string]struct {
		x    *Exporting
		want int
	}{"none": {nil, 0}, "each": {&Exporting{Export: e}, 4}, "due": {&Exporting{Export: e, Due: due}, 2}} {
		n := 0
		for _, step := range []int64{5, 12, 15, 20} {
			m := &Member{Name: FolderName(step), Exporting: c.x}
			var notes Notes
			must.Do(t, m.NoteExports(t.Context(), &step, &notes))
			for _, x := range notes.Exports {
				n++
				if x.Export.To != "/models/"+FolderName(step) {
					t.Errorf("%s: step %d goes to %s", name, step, x.Export.To)
				}
			}
		}
		if n != c.want {
			t.Errorf("%s: %d exports; want %d", name, n, c.want)
		}
	}
}
