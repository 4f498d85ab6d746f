package versions_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/run/versions"
	"github.com/cairn-ckpt/cairn/storage"
)

// weights is a run with versions: the save of each step. A save "damaged" cannot be opened.
type weights map[int64]string

// look is a versions.Look.
func (w weights) look(_ context.Context, after, before *int64) (*run.Found, error) {
	out := &run.Found{}
	for step := int64(20); step >= -1; step-- {
		save, ok := w[step]
		if !ok || after != nil && step <= *after || before != nil && step >= *before {
			continue
		}
		if save != "damaged" {
			out.Step, out.SaveID, out.Path = &step, save, fmt.Sprint("run/", step)
			return out, nil
		}
		out.Damaged = append(out.Damaged, run.Damaged{Step: step, Err: storage.ErrCorrupt})
	}
	if len(out.Damaged) > 0 {
		return nil, storage.ErrCorrupt
	}
	return nil, storage.ErrNotFound
}

// failing is a versions.Look that returns an error.
func failing(err error) versions.Look {
	return func(context.Context, *int64, *int64) (*run.Found, error) { return nil, err }
}

func TestNewestAndNew(t *testing.T) {
	last := func(save string) versions.Known {
		return versions.Known{Last: &versions.Version{Step: 2, SaveID: save}}
	}
	for name, c := range map[string]struct {
		run             weights
		known           versions.Known
		newest, waitFor int64 // 0: there is none
		problems        int
	}{
		"no version":                       {weights{}, versions.Known{}, 0, 0, 0},
		"the first versions":               {weights{1: "a", 2: "b"}, versions.Known{}, 2, 2, 0},
		"no newer one":                     {weights{1: "a", 2: "b"}, last("b"), 2, 0, 0},
		"the last one is saved again":      {weights{2: "c"}, last("b"), 2, 2, 0},
		"the last one is gone":             {weights{1: "a"}, last("b"), 1, 0, 0},
		"a newer one":                      {weights{2: "b", 5: "c"}, last("b"), 5, 5, 0},
		"a newer one cannot be opened":     {weights{2: "b", 5: "damaged"}, last("b"), 2, 0, 1},
		"two cannot be opened":             {weights{2: "b", 3: "c", 4: "damaged", 5: "damaged"}, last("b"), 3, 3, 2},
		"no version can be opened":         {weights{2: "damaged", 3: "damaged"}, last("b"), 0, 0, 1},
		"known as damaged":                 {weights{2: "b", 3: "c"}, versions.Known{Damaged: map[int64]string{3: "c"}}, 2, 2, 0},
		"all are known as damaged":         {weights{3: "c"}, versions.Known{Damaged: map[int64]string{3: "c"}}, 0, 0, 0},
		"known as damaged, saved again":    {weights{2: "b", 3: "d"}, versions.Known{Damaged: map[int64]string{3: "c"}}, 3, 3, 0},
		"known as damaged, between others": {weights{1: "a", 2: "damaged", 3: "c", 4: "damaged"}, versions.Known{Damaged: map[int64]string{3: "c"}}, 1, 1, 2},
		"a save without an id":             {weights{2: ""}, versions.Known{Last: &versions.Version{Step: 2}}, 2, 0, 0},
		"it does not fit":                  {weights{2: "b", 3: "c"}, versions.Known{Unfit: &versions.Version{Step: 3, SaveID: "c"}}, 3, 0, 0},
		"it does not fit, saved again":     {weights{2: "b", 3: "d"}, versions.Known{Unfit: &versions.Version{Step: 3, SaveID: "c"}}, 3, 3, 0},
	} {
		if got, err := c.known.Newest(t.Context(), c.run.look, nil); stepOf(got) != c.newest || (err != nil) != (c.newest == 0) {
			t.Errorf("%s: Newest = %+v, %v; want %d", name, got, err, c.newest)
		}
		got, passed, err := c.known.New(t.Context(), c.run.look)
		if stepOf(got) != c.waitFor || len(passed) != c.problems || err != nil {
			t.Errorf("%s: New = %+v, %v, %v; want %d and %d problems", name, got, passed, err, c.waitFor, c.problems)
		}
	}

	broken := errors.New("on purpose")
	if _, _, err := new(versions.Known).New(t.Context(), failing(broken)); !errors.Is(err, broken) {
		t.Errorf("New = %v; want %v", err, broken)
	}
}

// stepOf returns the step of a choice, or 0.
func stepOf(c *versions.Choice) int64 {
	if c == nil {
		return 0
	}
	return c.Step
}

// In looks at the run: this one is empty.
func TestIn(t *testing.T) {
	r := must.Get(run.Open(t.Context(), t.TempDir(), ""))(t)
	if got, err := versions.In(r, run.Bounds{})(t.Context(), nil, new(int64(3))); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("a look at an empty run = %v, %v; want ErrNotFound", got, err)
	}
}

func TestChoicesCrossProcesses(t *testing.T) {
	want := &versions.Choice{Version: versions.Version{Step: 3, SaveID: "c"}, Path: []byte("run/\xff")}
	if got := through(t, want); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v; want %+v", got, want)
	}
}
