package web

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestHistory(t *testing.T) {
	w := newWorld(t, 3, func(o *Options) { o.Cache = t.TempDir() })
	must.Do(t, os.Remove(filepath.Join(w.dir, "step-2", "cairn.json"))) // it is incomplete
	reads := w.counted()
	const question = "history?name=model.layers.1.w"
	got := w.get(t, question).(*history)
	if len(got.Steps) != 3 || got.Steps[1].Error == "" || got.Steps[0].Error != "" || *got.Steps[2].Step != 3 {
		t.Fatalf("the steps are %+v; want three, of which the second has an error", got.Steps)
	}
	if got.L2[0].None() || !got.L2[1].None() || got.Std[2].None() || got.L2[0] == got.L2[2] || got.NaNShare[0] != 0 {
		t.Errorf("the norms are %v, the deviations %v; want numbers for the first and the third step", got.L2, got.Std)
	}
	h := got.Histogram
	if len(h.Shares) != 3 || h.Shares[1] != nil || len(h.Shares[0]) != len(h.Edges)-1 {
		t.Errorf("the histograms are %v; want common buckets for the first and the third step", h)
	}
	var sum float32
	for _, x := range h.Shares[2] {
		sum += x
	}
	if sum < 0.999 || sum > 1.001 {
		t.Errorf("the shares of a step are %v together; want 1", sum)
	}
	if reads.Swap(0) != 2 {
		t.Errorf("want one read of each checkpoint")
	}

	again := w.get(t, question).(*history)
	if a, b := must.Get(json.Marshal(got))(t), must.Get(json.Marshal(again))(t); string(a) != string(b) || reads.Load() != 0 {
		t.Errorf("the second time, %d reads: %s; want no reads, and the same as the first time: %s", reads.Load(), b, a)
	}
	if w.get(t, question+"&scale=log2"); reads.Swap(0) != 2 {
		t.Error("another scale was not read anew")
	}
	// Another save has other numbers.
	save(t, filepath.Join(w.dir, "step-1"), "save-other", 1, 77)
	if other := w.get(t, question).(*history); other.L2[0] == got.L2[0] || other.L2[2] != got.L2[2] || reads.Load() != 1 {
		t.Errorf("after another save and %d reads, the norms are %v; were %v", reads.Load(), other.L2, got.L2)
	}
}

// A checkpoint that does not have the tensor has no numbers, and no error.
func TestHistoryWithoutTensor(t *testing.T) {
	w := newWorld(t, 1, func(o *Options) { o.Cache = t.TempDir() })
	saveOne(t, filepath.Join(w.dir, "step-2"), 2)
	for range 2 { // computed, and kept
		got := w.get(t, "history?name=added").(*history)
		if got.Steps[0].Error != "" || !got.L2[0].None() || got.L2[1].None() || got.Histogram.Shares[0] != nil {
			t.Errorf("the history is %+v; want the second step only", got)
		}
	}
	if _, err := w.ask(t.Context(), "history?name=model.scale"); w.kindOf(err) != KindNotFound {
		t.Errorf("a tensor that the newest checkpoint does not have: %v", err)
	}
	if got := w.get(t, "history?name=model.scale&in=step-1").(*history); got.L2[0].None() || !got.L2[1].None() {
		t.Errorf("the history is %+v; want the first step only", got)
	}
}
