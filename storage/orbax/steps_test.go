package orbax_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestNewest(t *testing.T) {
	for claim, c := range map[string]struct {
		files []string
		want  string
		err   error
	}{
		"the highest number":        {[]string{"5/_CHECKPOINT_METADATA={}", "10/_CHECKPOINT_METADATA={}"}, "10", nil},
		"a prefix":                  {[]string{"step_5/_CHECKPOINT_METADATA={}", "step_10/_CHECKPOINT_METADATA={}"}, "step_10", nil},
		"zeros":                     {[]string{"00000005/_METADATA={}", "00000010/_METADATA={}"}, "00000010", nil},
		"no file of the step":       {[]string{"5/params/_METADATA={}", "10/params/manifest.ocdbt="}, "10", nil},
		"one not finished":          {[]string{"5/_METADATA={}", "10.orbax-checkpoint-tmp/_METADATA={}"}, "5", nil},
		"not finished, with a time": {[]string{"5/_METADATA={}", "10.orbax-checkpoint-tmp-1234567/_METADATA={}"}, "5", nil},
		"not finished, in object storage": {[]string{
			"5/_METADATA={}", `10/_CHECKPOINT_METADATA={"init_timestamp_nsecs":1,"commit_timestamp_nsecs":null}`, "10/default/_METADATA={}",
		}, "5", nil},
		"finished, in object storage": {[]string{
			"5/_METADATA={}", `10/_CHECKPOINT_METADATA={"init_timestamp_nsecs":1,"commit_timestamp_nsecs":null}`, "10/commit_success.txt=", "10/default/_METADATA={}",
		}, "10", nil},
		"none is finished":            {[]string{"10.orbax-checkpoint-tmp/_METADATA={}"}, "", storage.ErrIncomplete},
		"folders of other programs":   {[]string{"10/model.safetensors=", "20/notes.txt="}, "", nil},
		"a newer one of another kind": {[]string{"5/_METADATA={}", "10/notes.txt="}, "5", nil},
		"a run of another program":    {[]string{"step-1/_METADATA={}", "step-2/cairn.json={}", "step-3/cairn.json={}", "step-4/cairn.json={}"}, "", nil},
		"nothing":                     {nil, "", nil},
	} {
		s := new(mem.Store)
		for _, f := range c.files {
			name, content, _ := strings.Cut(f, "=")
			storagetest.Put(t, s, name, []byte(content))
		}
		got, err := orbax.Newest(t.Context(), s)
		if got != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: Newest = %q, %v; want %q, %v", claim, got, err, c.want, c.err)
		}
	}
}

// A step with one tree has the names of the tree, and its items of JSON are values. The step is the number of
// the folder.
func TestSteps(t *testing.T) {
	for _, c := range []struct{ fixture, step, item, json string }{
		{"manager_steps", "0", "state", "metadata"}, {"manager_steps", "5", "state", "metadata"}, {"manager_steps", "10", "state", "metadata"},
		{"old053_manager", "1", "params", "extra"}, {"old053_manager", "20", "params", "extra"}, {"killed_before_merge", "3", "state", ""},
	} {
		run := fixture(t, c.fixture, "")
		ck, err := orbax.Format{}.Open(t.Context(), must.Get(blob.NewSub(run, c.step))(t))
		if err != nil {
			t.Errorf("%s, %s: Open = %v", c.fixture, c.step, err)
			continue
		}
		got := loaded(t, ck)
		if c.json != "" && !strings.HasPrefix(got[c.json], "value map[") {
			t.Errorf("%s, %s: %s = %q; want a dict", c.fixture, c.step, c.json, got[c.json])
		}
		delete(got, c.json)
		if d := cmp.Diff(expectedTree(t, c.fixture+"/expected/"+c.step+"/"+c.item), got); d != "" {
			t.Errorf("%s, %s: -want +got:\n%s", c.fixture, c.step, d)
		}
		if st := ck.Storage(); st.Step == nil || strconv.FormatInt(*st.Step, 10) != c.step {
			t.Errorf("%s: Step = %v; want %s", c.fixture, st.Step, c.step)
		}
		must.Do(t, ck.Close())
	}

	for fixtureName, want := range map[string]string{"manager_steps": "10", "old053_manager": "20", "killed_before_merge": "3", "manager_damaged": "8"} {
		if got, err := orbax.Newest(t.Context(), fixture(t, fixtureName, "")); got != want || err != nil {
			t.Errorf("Newest of %s = %q, %v; want %s", fixtureName, got, err, want)
		}
	}
}

// Steps and items that Orbax has not finished are incomplete.
func TestUnfinished(t *testing.T) {
	for _, dir := range []string{"15.orbax-checkpoint-tmp", "4.orbax-checkpoint-tmp", "4.orbax-checkpoint-tmp/state.orbax-checkpoint-tmp"} {
		name := "killed_before_merge"
		if strings.HasPrefix(dir, "15") {
			name = "manager_steps"
		}
		sub := must.Get(blob.NewSub(fixture(t, name, ""), dir))(t)
		if _, err := (orbax.Format{}).Open(t.Context(), sub); !errors.Is(err, storage.ErrIncomplete) {
			t.Errorf("Open of %s = %v; want %v", dir, err, storage.ErrIncomplete)
		}
	}
	// The same files under another name, at the root of a store: the item has the suffix.
	if _, err := (orbax.Format{}).Open(t.Context(), fixture(t, "killed_before_merge", "4.orbax-checkpoint-tmp")); !errors.Is(err, storage.ErrIncomplete) {
		t.Errorf("Open = %v; want %v", err, storage.ErrIncomplete)
	}
}

// What an unfinished item holds can be read once it has another name: the databases of the processes are complete.
func TestUnfinishedRenamed(t *testing.T) {
	s := fixture(t, "killed_before_merge", "4.orbax-checkpoint-tmp/state.orbax-checkpoint-tmp")
	ck := must.Get(orbax.Format{}.Open(t.Context(), s))(t)
	defer ck.Close()
	if d := cmp.Diff(expectedTree(t, "killed_before_merge/expected/unfinished/4"), loaded(t, ck)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// Several trees in one step have the names of their items before their own.
func TestSeveralItems(t *testing.T) {
	s := new(mem.Store)
	for file, b := range fixtureFiles(t, "unmerged/input") {
		if !strings.HasPrefix(file, "_CHECKPOINT") && file != "commit_success.txt" {
			storagetest.Put(t, s, "a/"+file, b)
			storagetest.Put(t, s, "b/"+file, b)
		}
	}
	for file, b := range fixtureFiles(t, "zarr2_plain_mesh2d/input") { // an array by itself
		if rest, ok := strings.CutPrefix(file, "both/"); ok {
			storagetest.Put(t, s, "c/checkpoint/"+rest, b)
		}
	}
	storagetest.Put(t, s, "notes/metadata", []byte(`{"n": 3, "x": [1.5, null, 12345678901234567890123, NaN, -Infinity, "NaN \" NaN"]}`))
	storagetest.Put(t, s, "proto/checkpoint.pbtxt", []byte("x"))
	storagetest.Put(t, s, "_CHECKPOINT_METADATA", []byte("{}"))

	ck := must.Get(orbax.Format{}.Open(t.Context(), s))(t)
	defer ck.Close()
	want := map[string]string{"notes": "value map[n:3 x:[1.5 <nil> 12345678901234567890123 NaN -Inf NaN \" NaN]]", "c": expectedTree(t, "zarr2_plain_mesh2d/expected")["both"]}
	for name, line := range expectedTree(t, "unmerged/expected") {
		want["a."+name], want["b."+name] = line, line
	}
	if d := cmp.Diff(want, loaded(t, ck)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if notes := strings.Join(ck.Storage().Notes, "\n"); !strings.Contains(notes, "proto") {
		t.Errorf("notes = %q; want one about proto", notes)
	}
}

// The damaged steps of a run: each is an error that names the tensor and the file, or has the right values.
func TestDamagedSteps(t *testing.T) {
	for step, c := range map[string]struct {
		files   []string // that the errors name
		tensors []string // that cannot be read; nil: the step cannot be opened
	}{
		"1": {nil, []string{}},
		"2": {[]string{"/d/"}, []string{"params.big"}},
		"3": {[]string{"manifest.ocdbt"}, nil},
		"4": {[]string{"/d/"}, []string{"params.big"}},
		"6": {nil, []string{}},
		"7": {[]string{"/d/"}, []string{"params.big"}},
		"8": {[]string{"d/"}, nil},
	} {
		want := expectedTree(t, "manager_damaged/expected/"+step+"/state")
		for _, below := range []string{step, step + "/state"} {
			ck, err := orbax.Format{}.Open(t.Context(), fixture(t, "manager_damaged", below))
			if c.tensors == nil {
				if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), c.files[0]) {
					t.Errorf("%s: Open = %v; want %v that names %s", below, err, storage.ErrCorrupt, c.files[0])
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: Open = %v", below, err)
				continue
			}
			for name, line := range want {
				got, err := readOne(t.Context(), ck, name)
				switch bad := len(c.tensors) > 0 && name == c.tensors[0]; {
				case bad && (!errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), c.files[0])):
					t.Errorf("%s: reading %s = %v; want %v that names it and %s", below, name, err, storage.ErrCorrupt, c.files[0])
				case !bad && strings.HasPrefix(line, "value") && step == "6" && err == nil: // a number is a tensor without _METADATA
				case !bad && (err != nil || got != line):
					t.Errorf("%s: %s = %.100s, %v; want %.100s", below, name, got, err, line)
				}
			}
			rep, err := ck.Verify(t.Context(), nil)
			if err != nil || (len(rep.Problems) > 0) != (len(c.tensors) > 0) {
				t.Errorf("%s: Verify = %+v, %v; want %d problems", below, rep, err, len(c.tensors))
			}
			if step == "6" && len(ck.Storage().Notes) == 0 {
				t.Errorf("%s: no note about _METADATA", below)
			}
			must.Do(t, ck.Close())
		}
	}
}

// readOne reads one name, in the form of expectedTree.
func readOne(ctx context.Context, ck storage.Checkpoint, name string) (string, error) {
	e, ok, err := ck.Find(ctx, name)
	if err != nil {
		return "", err
	}
	if !ok {
		return "", errors.New("it is not there")
	}
	state := plan.State{name: nil}
	if e.Tensor != nil {
		if state[name], err = tensor.New(e.Tensor.DType, e.Tensor.Shape); err != nil {
			return "", err
		}
	}
	l := &storagetest.Loading{
		Planners: []plan.LoadPlanner{&plan.DefaultLoad{NoFlatten: true}},
		Readers:  []storage.Reader{storage.ReaderOf(ck, storage.ReadOptions{})},
	}
	if err := l.Run(ctx, []plan.State{state}); err != nil {
		return "", err
	}
	return lineOfValue(state[name]), nil
}
