package run

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestNotes(t *testing.T) {
	ctx, s := t.Context(), new(mem.Store)
	if n := must.Get(ReadNotes(ctx, s, "save1"))(t); !reflect.DeepEqual(n, Notes{}) {
		t.Errorf("there are notes: %+v", n)
	}
	must.Do(t, ChangeNotes(ctx, s, "save1", func(n *Notes) error { return nil }))
	if _, err := s.Stat(ctx, NotesFile); err == nil {
		t.Error("notes without contents were written")
	}
	must.Do(t, ChangeNotes(ctx, s, "save1", func(n *Notes) error {
		n.Tag("release")
		n.Tag("best")
		n.Tag("release")
		n.SetMetric("loss", 0.25)
		n.SetMetric("grad/norm", math.Inf(1))
		return nil
	}))
	want := Notes{Tags: []string{"best", "release"}, Metrics: Metrics{"loss": 0.25, "grad/norm": math.Inf(1)}}
	if n := must.Get(ReadNotes(ctx, s, "save1"))(t); !reflect.DeepEqual(n, want) {
		t.Errorf("the notes are %+v; want %+v", n, want)
	}
	if n := must.Get(ReadNotes(ctx, s, "save2"))(t); !reflect.DeepEqual(n, Notes{}) {
		t.Errorf("notes of another save count: %+v", n)
	}
	must.Do(t, ChangeNotes(ctx, s, "save2", func(n *Notes) error {
		n.SetMetric("loss", math.NaN())
		return nil
	}))
	if n := must.Get(ReadNotes(ctx, s, "save2"))(t); len(n.Tags) > 0 || !math.IsNaN(n.Metrics["loss"]) {
		t.Errorf("the notes of the new save are %+v", n)
	}
	if err := ChangeNotes(ctx, s, "save2", func(n *Notes) error { n.Tag("a b"); return nil }); !errors.Is(err, storage.ErrOptions) {
		t.Errorf("a tag with a space: %v", err)
	}
}

// The format of the file is fixed.
func TestNotesFile(t *testing.T) {
	n := Notes{Tags: []string{"release", "best"}, Metrics: Metrics{"loss": 0.25, "x": math.NaN(), "y": math.Inf(-1)}}
	got := must.Get(n.encode("save1"))(t)
	const want = `{"version":1,"crc32c":"ab20be93","save_id":"save1","tags":["best","release"],"metrics":{"loss":0.25,"x":"NaN","y":"-Inf"}}` + "\n"
	if string(got) != want {
		t.Errorf("the file is %s; want %s", got, want)
	}
}

func TestDamagedNotes(t *testing.T) {
	for text, want := range map[string]error{
		"":                                   storage.ErrCorrupt,
		"{}":                                 storage.ErrCorrupt,
		`{"version":1}x`:                     storage.ErrCorrupt,
		`{"version":1,"colour":"red"}`:       storage.ErrCorrupt,
		`{"version":1,"tags":[""]}`:          storage.ErrCorrupt,
		`{"version":1,"tags":["a b"]}`:       storage.ErrCorrupt,
		`{"version":1,"metrics":{"a":null}}`: storage.ErrCorrupt,
		`{"version":1,"metrics":{"a":"1"}}`:  storage.ErrCorrupt,
		`{"version":1,"metrics":{"":1}}`:     storage.ErrCorrupt,
		`{"version":3}`:                      storage.ErrVersion,
		`{"version":3,"colour":"red"}`:       storage.ErrVersion,
		`{"version":1,"tags":["` + strings.Repeat("a", maxLabel+1) + `"]}`: storage.ErrCorrupt,
		strings.Repeat(" ", maxDocument+1):                                 storage.ErrCorrupt,
	} {
		s := new(mem.Store)
		must.Get(blob.WriteAll(t.Context(), s, NotesFile, []byte(text), nil))(t)
		if _, err := ReadNotes(t.Context(), s, ""); !errors.Is(err, want) {
			t.Errorf("ReadNotes of %.60q: %v; want %v", text, err, want)
		}
	}
}

// Changes of several writers at the same time are all there in the end.
func TestConcurrentNotes(t *testing.T) {
	for name, s := range map[string]blob.Store{"memory": new(mem.Store), "folder": must.Get(file.Open(t.TempDir(), &file.Options{NoSync: true}))(t)} {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					for k := range 3 {
						err := ChangeNotes(t.Context(), s, "save1", func(n *Notes) error {
							n.Tag(fmt.Sprintf("tag-%d-%d", i, k))
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if n := must.Get(ReadNotes(t.Context(), s, "save1"))(t); len(n.Tags) != 12 {
				t.Errorf("the tags are %v; want 12", n.Tags)
			}
		})
	}
}

// A change that fails at any step leaves the old notes or the new ones, and can be repeated.
func TestNotesWithFaults(t *testing.T) {
	for step := 1; ; step++ {
		s := new(mem.Store)
		tag := func(s blob.Store, tag string) error {
			return ChangeNotes(t.Context(), s, "save1", func(n *Notes) error { n.Tag(tag); return nil })
		}
		must.Do(t, tag(s, "old"))
		broken := errors.New("broken")
		f := fault.New(s, fault.Rule{Nth: int64(step), Do: fault.Fail(broken)})
		err := tag(f, "new")
		n := must.Get(ReadNotes(t.Context(), s, "save1"))(t)
		if err == nil && len(f.Ops()) < step {
			if len(n.Tags) != 2 {
				t.Errorf("the tags are %v", n.Tags)
			}
			if step < 4 {
				t.Errorf("only %d steps failed", step-1)
			}
			return
		}
		if err != nil && !errors.Is(err, broken) || n.Tags[len(n.Tags)-1] != "old" {
			t.Errorf("step %d: %v, and the tags are %v", step, err, n.Tags)
		}
		must.Do(t, tag(s, "new"))
	}
}

func FuzzDecodeNotes(f *testing.F) {
	for _, text := range []string{
		"", "{}", `{"version":1}`, `{"version":1,"save_id":"a","tags":["b","a","a"],"metrics":{"loss":1e-3,"x":"NaN","y":"+Inf"}}`,
		`{"version":1,"metrics":{"a":1e999}}`, `{"version":9}`, `{"version":1,"tags":null}`, `{"version":1} {}`, `{"version":1,"metrics":{"a":-0}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n, id, err := decodeNotes(data)
		if err != nil {
			if !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrVersion) {
				t.Errorf("unexpected error %v", err)
			}
			return
		}
		once := must.Get(n.encode(id))(t)
		again, sameID, err := decodeNotes(once)
		if err != nil || sameID != id {
			t.Fatalf("decoding %q: %v, of the save %q; want %q", once, err, sameID, id)
		}
		if twice := must.Get(again.encode(id))(t); !bytes.Equal(once, twice) {
			t.Errorf("%q becomes %q", once, twice)
		}
	})
}
