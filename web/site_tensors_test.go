package web

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// trained saves a model with an optimizer. One weight has a NaN and an infinity.
func trained(t testing.TB, dir string, step int64) {
	t.Helper()
	of := func(v ...float32) *tensor.Tensor { return must.Get(tensor.Of([]int64{int64(len(v))}, v))(t) }
	store := must.Get(file.Open(dir, nil))(t)
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, store, storage.WriteOptions{}) }}
	state := plan.State{
		"model": plan.State{"a": of(3, 4), "b": of(0, float32(math.NaN()), float32(math.Inf(-1)), float32(step))},
		"optim": plan.State{"state": plan.State{"0": plan.State{"exp_avg": of(0.5), "step": of(float32(step))}}},
		"lr":    0.5,
	}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage(fmt.Sprint("trained-", step), step, 1), state))
}

func trainedWorld(t *testing.T) *world {
	w := newWorld(t, 2, func(o *Options) { o.Cache = t.TempDir() })
	for step := range int64(2) {
		trained(t, filepath.Join(w.dir, fmt.Sprint("step-", step+1)), step+1)
	}
	return w
}

// Questions are about the weights, unless they say which names they mean. A counter has no norm.
func TestOf(t *testing.T) {
	w := trainedWorld(t)
	for question, want := range map[string]string{
		"steps":                         "[model]",
		"steps?of=optimizer":            "[optim.state.0]",
		"steps?of=all":                  "[model optim.state.0]",
		"steps?select=optim.*":          "[optim.state.0]",
		"steps?select=optim.*&of=all":   "[optim.state.0]",
		"steps?select=*.step":           "[]",
		"steps?select=*.a&of=weights":   "[model]",
		"steps?select=*.a&of=optimizer": "[]",
	} {
		if got := fmt.Sprint(w.get(t, question).(*steps).Layers); got != want {
			t.Errorf("the layers of %s are %s; want %s", question, got, want)
		}
	}
	if got := w.get(t, "steps?of=optimizer").(*steps).L2[0][0]; got != 0.5 {
		t.Errorf("the norm of the optimizer is %v; want that of exp_avg, without step", got)
	}

	for of, want := range map[string]string{
		"": "model.a model.b", "&of=optimizer": "optim.state.0.exp_avg", "&select=*.step": "optim.state.0.step",
		"&of=all": "lr model.a model.b optim.state.0.exp_avg optim.state.0.step",
	} {
		v := must.Get(w.site.compare(t.Context(), &query{values: must.Get(url.ParseQuery("a=step-1&b=step-2" + of))(t)}, new(meter)))(t)
		var names []string
		for _, it := range v.items {
			names = append(names, it.FQN)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("compared with %q: %s; want %s", of, got, want)
		}
	}
	for of, want := range map[string]string{"": "2 names", "&of=all": "5 names", "&of=optimizer": "1 name"} {
		svg := string(must.Get(w.site.Plot(t.Context(), must.Get(url.ParseQuery("what=sizes&c=step-1"+of))(t), nil))(t))
		if !strings.Contains(svg, want) {
			t.Errorf("the sizes with %q do not say %q", of, want)
		}
	}
}

func TestTensors(t *testing.T) {
	w := trainedWorld(t)
	reads := w.counted()
	for _, c := range []struct {
		of, want string
	}{
		{"", "[5 2] [0 1] [0 1]"},
		{"&of=optimizer", "[0.5] [0] [0]"},
		{"&of=all", "[NaN 5 2 0.5 NaN] [0 0 1 0 0] [0 0 1 0 0]"}, // the names are lr, a, b, exp_avg, step
	} {
		for _, again := range []bool{false, true} {
			got := w.get(t, "tensors?c=step-2"+c.of).(*tensors)
			if text := fmt.Sprint(got.L2, got.NaN, got.Inf); text != c.want {
				t.Errorf("tensors%s = %s; want %s", c.of, text, c.want)
			}
			if n := reads.Swap(0); (n > 0) == again {
				t.Errorf("tensors%s, asked again: %v: %d reads", c.of, again, n)
			}
			w.site.answers.order.Init() // only the files are left
			clear(w.site.answers.byKey)
		}
	}
	trained(t, filepath.Join(w.dir, "step-1"), 9)
	if got := w.get(t, "tensors?c=step-1").(*tensors); got.L2[1] != 9 {
		t.Errorf("after another save, the norms are %v", got.L2)
	}
}

// The picture of the names has the colours of the page.
func TestColoursOfSizes(t *testing.T) {
	w := trainedWorld(t)
	for question, want := range map[string]string{
		"":                             "bfloat16|float32",
		"&color=norm":                  "root mean square of the elements",
		"&color=nan":                   "share of elements that are NaN or infinite",
		"&color=change&against=step-1": "relative change .* since step-1",
	} {
		svg, err := w.site.Plot(t.Context(), must.Get(url.ParseQuery("what=sizes&c=step-2"+question))(t), nil)
		if err != nil || !regexp.MustCompile(want).Match(svg) {
			t.Errorf("sizes%s: %v; want a picture with %q", question, err, want)
		}
	}
	for _, question := range []string{"&color=change", "&color=red"} {
		_, err := w.site.Plot(t.Context(), must.Get(url.ParseQuery("what=sizes&c=step-2"+question))(t), nil)
		if e, ok := errors.AsType[*Error](err); !ok || e.Kind != KindBadRequest {
			t.Errorf("sizes%s: %v; want a bad request", question, err)
		}
	}
}

// Names of a tensor that is stored once are told with each of them.
func TestTies(t *testing.T) {
	md := &meta.Metadata{Entries: []meta.Entry{{FQN: "a"}, {FQN: "b"}, {FQN: "c"}, {FQN: "d"}}}
	h := &handle{}
	h.tied.begin(func(fn func()) bool { fn(); return true }, func() (map[string]string, error) { return map[string]string{"b": "a", "c": "a"}, nil })
	for name, want := range map[string]string{"a": "[b c]", "b": "[a c]", "d": "[]"} {
		if got := must.Get(h.related(t.Context(), md, name))(t); fmt.Sprint(got.Ties) != want {
			t.Errorf("the other names of %s are %v; want %s", name, got.Ties, want)
		}
	}
}
