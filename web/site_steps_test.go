package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// counted counts the reads of tensors.
func (w *world) counted() *atomic.Int64 {
	var n atomic.Int64
	w.onRead(func(context.Context) error {
		n.Add(1)
		return nil
	})
	return &n
}

func TestSteps(t *testing.T) {
	w := newWorld(t, 3, func(o *Options) { o.Cache = filepath.Join(t.TempDir(), "a", "b") })
	must.Do(t, os.Remove(filepath.Join(w.dir, "step-2", "cairn.json"))) // it is incomplete
	reads := w.counted()
	got := w.get(t, "steps").(*steps)
	if len(got.Steps) != 3 || got.Steps[1].Error == "" || got.Steps[0].Error != "" || got.Steps[2].ID != "step-3" || *got.Steps[2].Step != 3 {
		t.Fatalf("the steps are %+v; want three, of which the second has an error", got.Steps)
	}
	if d := fmt.Sprint(got.Layers); d != "[model model.layers.0 model.layers.1]" {
		t.Fatalf("the layers are %s", d)
	}
	if !got.L2[1][0].None() || got.L2[0][0].None() || got.AbsMax[0][1] <= 0 || got.NaNShare[2][1].None() || got.L2[0][2] == got.L2[2][2] {
		t.Errorf("the norms are %v; want numbers for the first and the third step", got.L2)
	}
	if n := reads.Swap(0); n == 0 {
		t.Error("no tensor was read")
	}
	again := w.get(t, "steps").(*steps)
	if a, b := must.Get(json.Marshal(got))(t), must.Get(json.Marshal(again))(t); string(a) != string(b) || reads.Load() != 0 {
		t.Errorf("the second time, %d reads: %s; want no reads, and the same as the first time: %s", reads.Load(), b, a)
	}
	some := w.get(t, "steps?select=model.layers.1.*").(*steps)
	if fmt.Sprint(some.Layers) != "[model.layers.1]" || some.L2[0][0] != got.L2[0][2] || reads.Swap(0) == 0 {
		t.Errorf("of one layer: %+v; want its numbers, newly read", some)
	}
	// Another save has other numbers.
	save(t, filepath.Join(w.dir, "step-1"), "save-other", 1, 77)
	other := w.get(t, "steps").(*steps)
	if other.L2[0][1] == got.L2[0][1] || other.L2[2][1] != got.L2[2][1] || reads.Load() == 0 {
		t.Errorf("after another save, the norms are %v; were %v", other.L2, got.L2)
	}
}

// A cancelled question keeps its computed results.
func TestStepsContinue(t *testing.T) {
	w := newWorld(t, 4, func(o *Options) { o.Cache = t.TempDir() })
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("the page is gone")
	var reads atomic.Int64
	w.onRead(func(ctx context.Context) error {
		if reads.Add(1) > 1 { // one read for the small tensors of each checkpoint
			cancel(stopped)
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return nil
	})
	if _, err := w.ask(ctx, "steps"); !errors.Is(err, stopped) {
		t.Fatalf("steps, cancelled: %v; want %v", err, stopped)
	}
	files := must.Get(os.ReadDir(w.site.opts.Cache))(t)
	if len(files) != 1 {
		t.Fatalf("%d files were kept; want 1, for the checkpoint that was done", len(files))
	}
	again := w.counted()
	if got := w.get(t, "steps").(*steps); got.L2[0][0].None() || got.L2[3][0].None() {
		t.Errorf("the norms are %v; want all", got.L2)
	}
	if n := again.Load(); n != 3 {
		t.Errorf("there were %d reads; want those of the three checkpoints that were not done", n)
	}
}

// A file of the cache that is damaged, or of something else, is computed and written again.
func TestDamagedCache(t *testing.T) {
	cache := t.TempDir()
	w := newWorld(t, 1, func(o *Options) { o.Cache = cache })
	want := string(must.Get(json.Marshal(w.get(t, "steps")))(t))
	files := must.Get(filepath.Glob(filepath.Join(cache, "*")))(t)
	if len(files) != 1 {
		t.Fatalf("the cache has %d files; want one", len(files))
	}
	good := must.Get(os.ReadFile(files[0]))(t)
	reads := w.counted()
	check := func(what string, bad []byte) {
		t.Helper()
		must.Do(t, os.WriteFile(files[0], bad, 0o600))
		if got := string(must.Get(json.Marshal(w.get(t, "steps")))(t)); got != want || reads.Swap(0) == 0 {
			t.Errorf("%s: %s; want it computed again: %s", what, got, want)
		}
		if now := must.Get(os.ReadFile(files[0]))(t); string(now) != string(good) {
			t.Errorf("%s: it was not written again", what)
		}
	}
	for _, n := range []int{0, 1, sumLine - 1, sumLine, len(good) - 1} {
		check(fmt.Sprintf("a file of %d bytes", n), good[:n])
	}
	for i := 0; i < len(good); i += len(good)/23 + 1 {
		bad := append([]byte{}, good...)
		bad[i] ^= 4
		check(fmt.Sprintf("byte %d is wrong", i), bad)
	}
	text := []byte(`{"key":"another","value":[]}`)
	check("a file of another key", append([]byte(checksum(text)), text...))
	must.Do(t, os.Remove(files[0]))
	must.Do(t, os.Mkdir(files[0], 0o700)) // it cannot be written
	if got := string(must.Get(json.Marshal(w.get(t, "steps")))(t)); got != want {
		t.Errorf("with a cache that cannot be written: %s; want %s", got, want)
	}
}

func TestCacheIsBounded(t *testing.T) {
	dir := t.TempDir()
	f := &folder{dir: dir, most: 3500}
	must.Do(t, os.WriteFile(filepath.Join(dir, "of somebody else"), make([]byte, 9000), 0o600))
	left := filepath.Join(dir, tempPrefix+"1")
	must.Do(t, os.WriteFile(left, nil, 0o600))
	must.Do(t, os.Chtimes(left, time.Time{}, time.Now().Add(-2*tempAge)))
	must.Do(t, os.WriteFile(filepath.Join(dir, tempPrefix+"2"), nil, 0o600)) // of a program that is alive
	for i := range 20 {
		key := fmt.Sprint(i)
		store(f, key, strings.Repeat("x", 900))
		must.Do(t, os.Chtimes(f.path(key), time.Time{}, time.Now().Add(time.Duration(i-30)*time.Minute)))
	}
	f.trim()
	var kept []string
	for i := range 20 {
		if _, ok := load[string](f, fmt.Sprint(i)); ok {
			kept = append(kept, fmt.Sprint(i))
		}
	}
	if d := strings.Join(kept, " "); d != "17 18 19" {
		t.Errorf("kept are %s; want the newest three", d)
	}
	var others []string
	for _, e := range must.Get(os.ReadDir(dir))(t) {
		if !strings.HasSuffix(e.Name(), keptSuffix) {
			others = append(others, e.Name())
		} else if mode := must.Get(e.Info())(t).Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has the mode %o; want it for its owner alone", e.Name(), mode)
		}
	}
	if d := strings.Join(others, ", "); d != tempPrefix+"2, of somebody else" {
		t.Errorf("besides, the folder has %s; want the file that is being written, and that of somebody else", d)
	}
}

// Numbers that are kept have the same bits when they are read.
func TestExact(t *testing.T) {
	for _, x := range []float64{0, math.Copysign(0, -1), 0.1, math.MaxFloat64, math.SmallestNonzeroFloat64, math.Inf(1), math.Inf(-1), math.NaN()} {
		var got exact
		must.Do(t, json.Unmarshal(must.Get(json.Marshal(exact(x)))(t), &got))
		if math.Float64bits(float64(got)) != math.Float64bits(x) && !(math.IsNaN(x) && math.IsNaN(float64(got))) {
			t.Errorf("%v is %v when it is read", x, got)
		}
	}
}

// A run with too many layers for a chart is refused, with advice.
func TestTooManyLayers(t *testing.T) {
	rows := make([][]layerRow, 2)
	for i := range maxStepRows/2 + 1 {
		rows[0] = append(rows[0], layerRow{Layer: fmt.Sprint("l.", i)})
	}
	err := new(steps).fill(rows)
	if e, ok := errors.AsType[*Error](err); !ok || e.Kind != KindBadRequest || e.Hint == "" {
		t.Errorf("fill = %v; want an error with a hint", err)
	}
}

// Progress grows from checkpoint to checkpoint, up to the total.
func TestMeter(t *testing.T) {
	m := new(meter)
	m.split(300)
	last := int64(0)
	for _, part := range []struct{ weight, toRead int64 }{{100, 1000}, {50, 0}, {150, 7}} {
		m.begin("x", part.weight)
		m.total(part.toRead)
		for range 10 {
			m.add(part.toRead)
			if now := m.now(); now.Done < last || now.Done > now.Total || now.Total != 300 || now.What != "x" {
				t.Fatalf("the progress is %+v after %d", now, last)
			}
			last = m.now().Done
		}
	}
	if last != 300 {
		t.Errorf("at the end, the progress is %d; want 300", last)
	}
}

// It is refused before all checkpoints were read.
func TestTooManyLayersEndEarly(t *testing.T) {
	w := newWorld(t, 4, nil)
	w.site.mostRows = 4
	reads := w.counted()
	_, err := w.ask(t.Context(), "steps")
	if e, ok := errors.AsType[*Error](err); !ok || e.Kind != KindBadRequest || reads.Load() != 1 {
		t.Errorf("after %d reads: %v; want an error after the first checkpoint", reads.Load(), err)
	}
}

// A checkpoint that another save replaces while it is read is read again, once.
func TestStepsOfReplaced(t *testing.T) {
	w := newWorld(t, 1, func(o *Options) { o.Cache = t.TempDir() })
	for times, want := range []bool{true, true, false} {
		left := times
		save(t, filepath.Join(w.dir, "step-1"), fmt.Sprintf("save-%d", times), 1, 9) // no result of it is kept
		w.onRead(func(context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if left > 0 {
				left--
				save(t, filepath.Join(w.dir, "step-1"), fmt.Sprintf("save-%d-%d", times, left), 1, byte(left))
			}
			return nil
		})
		if s := w.get(t, "steps").(*steps).Steps[0]; (s.Error == "") != want {
			t.Errorf("replaced %d times: the error %q", times, s.Error)
		}
	}
}
