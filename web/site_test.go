package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits for events that come soon, on any machine.
const patience = 2 * time.Minute

// save saves a checkpoint of two ranks. Its tensors depend on seed.
func save(t testing.TB, dir, id string, step int64, seed byte) {
	t.Helper()
	store := must.Get(file.Open(dir, nil))(t)
	w := storagetest.Filled(t, tensor.BFloat16, []int64{6, 8}, seed)
	cut := storagetest.Along(0, 2)
	var states []plan.State
	for rank := range 2 {
		states = append(states, plan.State{
			"model": plan.State{
				"layers": plan.State{
					"0": plan.State{"w": storagetest.Cut(t, cut, w, rank), "b": storagetest.Filled(t, tensor.Int16, []int64{5}, seed)},
					"1": plan.State{"w": storagetest.Cut(t, cut, storagetest.Filled(t, tensor.Uint8, []int64{4, 4}, seed+1), rank)},
				},
				"scale": storagetest.Filled(t, tensor.Int32, []int64{}, seed),
			},
			"<b>odd</b>": "text with \"quotes\"",
			"config":     plan.State{"lr": 0.5},
		})
	}
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, store, storage.WriteOptions{}) }}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage(id, step, 2), states...))
}

// saveOne saves a checkpoint with the tensor "added" alone.
func saveOne(t testing.TB, dir string, step int64) {
	t.Helper()
	store := must.Get(file.Open(dir, nil))(t)
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, store, storage.WriteOptions{}) }}
	added := plan.State{"added": storagetest.Filled(t, tensor.Int16, []int64{5}, 3)}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("save-added", step, 1), added))
}

// world is a run on a disk, and a site over it.
type world struct {
	dir  string
	site *Site

	mu     sync.Mutex
	opened []string // ids
	alive  int      // checkpoints that are open
	most   int
	// read is called before each read of a tensor, if it is not nil.
	read func(ctx context.Context) error
}

// counting counts the checkpoints that are open, and lets a test intercept reads.
type counting struct {
	*cairn.Checkpoint
	w    *world
	once sync.Once
}

func (c *counting) Close() error {
	c.once.Do(func() {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		c.w.alive--
	})
	return c.Checkpoint.Close()
}

func (c *counting) ReadEntry(ctx context.Context, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error {
	if err := c.w.reads(ctx); err != nil {
		return err
	}
	return c.Checkpoint.ReadEntry(ctx, e, box, dst)
}

func (c *counting) ReadEntries(ctx context.Context, entries []*meta.Entry, dst []*tensor.Tensor) error {
	if err := c.w.reads(ctx); err != nil {
		return err
	}
	return c.Checkpoint.ReadEntries(ctx, entries, dst)
}

// reads calls the function that onRead has set.
func (w *world) reads(ctx context.Context) error {
	w.mu.Lock()
	read := w.read
	w.mu.Unlock()
	if read == nil {
		return nil
	}
	return read(ctx)
}

func (w *world) onRead(read func(ctx context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.read = read
}

func (w *world) open(ctx context.Context, id string, recipe bool) (*Opened, error) {
	w.mu.Lock()
	w.opened = append(w.opened, id)
	w.mu.Unlock()
	dir := filepath.Join(w.dir, filepath.FromSlash(id))
	store, err := file.Open(dir, nil)
	if err != nil {
		return nil, err
	}
	c, at, err := formats.OpenLocated(ctx, store, nil)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.alive++
	w.most = max(w.most, w.alive)
	w.mu.Unlock()
	out := &Opened{Checkpoint: &counting{Checkpoint: cairn.NewCheckpoint(at, c), w: w}, Path: id, Stored: c}
	out.Version = func(ctx context.Context) (string, error) {
		info, err := at.Stat(ctx, "cairn.json")
		return fmt.Sprint(info.Size, info.ModTime.UnixNano(), c.Storage().SaveID), err
	}
	if recipe {
		out.Drops = func(context.Context, *Opened, *meta.Metadata) ([]string, error) { return []string{"config.lr"}, nil }
	}
	return out, nil
}

// newWorld returns a run of n checkpoints, step-1 and so on, and closes the site at the end.
func newWorld(t testing.TB, n int, change func(o *Options)) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	for i := 1; i <= n; i++ {
		save(t, filepath.Join(w.dir, fmt.Sprintf("step-%d", i)), fmt.Sprintf("save-%d", i), int64(i), byte(i))
	}
	r := must.Get(run.Open(t.Context(), w.dir, ""))(t)
	o := Options{
		Path: "RUN", Version: "1.2.3", Recipe: "some", Open: w.open,
		Run: func(ctx context.Context) (*run.Log, error) {
			all, err := r.Checkpoints(ctx)
			if err != nil {
				return nil, err
			}
			return r.Log(all, run.Settings{Keep: must.Value(run.ParsePolicy("last 1"))}, false)
		},
	}
	if change != nil {
		change(&o)
	}
	w.site = NewSite(o)
	t.Cleanup(func() {
		must.Do(t, w.site.Close())
		if w.alive != 0 {
			t.Errorf("after Close, %d checkpoints are open", w.alive)
		}
	})
	return w
}

// ask answers a question, such as "stats?c=.&name=w", without HTTP.
func (w *world) ask(ctx context.Context, text string) (any, error) {
	name, params, _ := strings.Cut(text, "?")
	what, ok := questions[name]
	if !ok {
		return nil, fmt.Errorf("there is no question %s", name)
	}
	values, err := url.ParseQuery(params)
	if err != nil {
		return nil, err
	}
	q := newQuery(values, strings.Fields(what.params)...)
	if q.err != nil {
		return nil, q.err
	}
	return what.answer(ctx, w.site, q, new(meter))
}

// get is ask for an answer that must come.
func (w *world) get(t testing.TB, text string) any {
	t.Helper()
	v, err := w.ask(t.Context(), text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// kindOf returns the kind of an error, as the answer has it.
func (w *world) kindOf(err error) string {
	if err == nil {
		return ""
	}
	return w.site.answerOf(err).Kind
}

// soon waits until ok returns true.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not happen", what)
		}
	}
}

func TestWrongQuestions(t *testing.T) {
	w := newWorld(t, 1, func(o *Options) { o.Recipe = "" })
	for text, want := range map[string]string{
		"checkpoint":                   KindBadRequest,
		"checkpoint?c=step-1&x=1":      KindBadRequest,
		"checkpoint?c=step-1&c=step-1": KindBadRequest,
		"checkpoint?c=step-9":          KindNotFound,
		"checkpoint?c=":                KindNotFound,
		"checkpoint?c=.":               KindNotFound,
		"checkpoint?c=@1":              KindNotFound,
		"names?c=../" + filepath.Base(w.dir) + "/step-1": KindNotFound,
		"names?c=step-1/":                                                       KindNotFound,
		"names?c=/etc":                                                          KindNotFound,
		"item?c=step-1":                                                         KindBadRequest,
		"item?c=step-1&name=nothing":                                            KindNotFound,
		"stats?c=step-1&name=config.lr":                                         KindBadRequest,
		"stats?c=step-1&name=model.scale&buckets=0":                             KindBadRequest,
		"stats?c=step-1&name=model.scale&buckets=4097":                          KindBadRequest,
		"stats?c=step-1&name=model.scale&scale=log10":                           KindBadRequest,
		"heat?c=step-1&name=model.layers.0.w&rows=3":                            KindBadRequest,
		"heat?c=step-1&name=model.layers.0.w&rows=3:2":                          KindBadRequest,
		"heat?c=step-1&name=model.layers.0.w&rows=-1:2":                         KindBadRequest,
		"heat?c=step-1&name=model.layers.0.w&rows=0:99999":                      KindBadRequest,
		"heat?c=step-1&name=model.layers.0.w&height=1025":                       KindBadRequest,
		"heat?c=step-1&name=model.layers.0.w&index=nonsense":                    KindBadRequest,
		"heat?c=step-1&name=config.lr":                                          KindBadRequest,
		"compare?a=step-1":                                                      KindBadRequest,
		"compare?a=step-1&b=step-1&select=[":                                    KindBadRequest,
		"compare?a=step-1&b=step-1&recipe=1":                                    KindBadRequest,
		"compare?a=step-1&b=step-1&recipe=yes":                                  KindBadRequest,
		"compare?a=step-1&b=step-1&select=" + strings.Repeat("a", maxPattern+1): KindBadRequest,
		"overlay?a=step-1&b=step-1&name=model.scale&name_a=none":                KindNotFound,
		"steps?select=[":                                                        KindBadRequest,
		"history?in=step-1":                                                     KindBadRequest,
		"history?name=nothing":                                                  KindNotFound,
		"history?name=config.lr":                                                KindBadRequest,
		"history?name=model.scale&in=step-9":                                    KindNotFound,
		"history?name=model.scale&scale=log10":                                  KindBadRequest,
		"plot?what=history&name=nothing":                                        KindNotFound,
		"plot?what=history&measure=l3&name=model":                               KindBadRequest,
		"plot?what=metrics&select=[":                                            KindBadRequest,
		"plot":                                                                  KindBadRequest,
		"plot?what=cake":                                                        KindBadRequest,
		"plot?what=run&name=x":                                                  KindBadRequest,
		"plot?what=steps&measure=l3":                                            KindBadRequest,
		"plot?what=shards&c=step-1&name=config.lr":                              KindBadRequest,
		"timeline?c=step-1":                                                     KindNoTimeline,
	} {
		v, err := w.ask(t.Context(), text)
		if got := w.kindOf(err); got != want || v != nil && !isNil(v) {
			t.Errorf("%s: %v, and an error of the kind %q: %v; want the kind %q", text, v, got, err, want)
		}
	}
	for _, id := range w.opened {
		if id != "step-1" {
			t.Errorf("%q was opened, which is not listed", id)
		}
	}
}

// isNil reports whether an answer is a nil pointer.
func isNil(v any) bool { return string(must.Value(json.Marshal(v))) == "null" }

func TestNoRun(t *testing.T) {
	w := newWorld(t, 0, func(o *Options) {
		o.Run, o.Checkpoints = nil, []Place{{ID: Self, Label: "label"}, {ID: "@1", Label: "other", Other: true}}
	})
	save(t, w.dir, "save-0", 7, 1)
	save(t, filepath.Join(w.dir, "@1"), "save-9", 9, 2)
	for _, text := range []string{"run", "steps", "history?name=x", "plot?what=run", "plot?what=metrics"} {
		if _, err := w.ask(t.Context(), text); w.kindOf(err) != KindNoRun {
			t.Errorf("%s of a checkpoint: %v; want an error of the kind %q", text, err, KindNoRun)
		}
	}
	w.get(t, "checkpoint?c=.")
	p := w.get(t, "place").(*place)
	if p.Kind != "checkpoint" || len(p.Checkpoints) != 2 || p.Checkpoints[0].Step == nil || *p.Checkpoints[0].Step != 7 || p.Checkpoints[1].Step != nil {
		t.Errorf("place = %+v; want two checkpoints, of which the open one has its step", p)
	}
	w.get(t, "compare?a=.&b=@1")
}

// stale makes the site look at its open checkpoints, and at the run, again.
func (w *world) stale() {
	w.site.mu.Lock()
	defer w.site.mu.Unlock()
	w.site.listing = nil
	for _, h := range w.site.open {
		h.mu.Lock()
		h.checked = time.Time{}
		h.mu.Unlock()
	}
}

// A checkpoint that is replaced while it is open is opened again. One that is removed is gone.
func TestReplacedCheckpoint(t *testing.T) {
	w := newWorld(t, 2, nil)
	sum := func() (string, error) {
		v, err := w.ask(t.Context(), "checkpoint?c=step-1")
		if err != nil {
			return "", err
		}
		return string(must.Get(json.Marshal(v))(t)), nil
	}
	if s, err := sum(); err != nil || !strings.Contains(s, `"save_id":"save-1"`) {
		t.Fatalf("checkpoint: %s, %v; want save-1", s, err)
	}
	dir := filepath.Join(w.dir, "step-1")
	save(t, dir, "save-new", 1, 9)
	w.stale()
	if s, err := sum(); err != nil || !strings.Contains(s, `"save_id":"save-new"`) {
		t.Fatalf("after another save: %s, %v; want save-new", s, err)
	}
	must.Do(t, os.RemoveAll(dir))
	w.stale()
	for range 3 {
		if _, err := sum(); w.kindOf(err) != KindGone {
			t.Fatalf("after a removal: %v; want an error of the kind %q", err, KindGone)
		}
		time.Sleep(0)
	}
	w.get(t, "checkpoint?c=step-2")
	save(t, dir, "save-again", 1, 9)
	w.stale()
	if s, err := sum(); err != nil || !strings.Contains(s, `"save_id":"save-again"`) {
		t.Fatalf("after a new save: %s, %v; want save-again", s, err)
	}
}

// If its checkpoint is replaced while a question reads, the question begins again, once.
func TestReplacedDuringRead(t *testing.T) {
	w := newWorld(t, 2, nil)
	const text = "compare?a=step-1&b=step-2&select=model.scale"
	w.get(t, text)
	broken := errors.New("a file is missing")
	for _, c := range []struct {
		times int
		want  string
	}{{1, ""}, {2, KindGone}} {
		left := c.times
		w.onRead(func(context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if left == 0 {
				return nil
			}
			left--
			save(t, filepath.Join(w.dir, "step-2"), fmt.Sprintf("again-%d-%d", c.times, left), 2, byte(left))
			return broken
		})
		// The kept result is for another question.
		save(t, filepath.Join(w.dir, "step-2"), fmt.Sprintf("before-%d", c.times), 2, 7)
		w.stale()
		_, err := w.ask(t.Context(), text)
		if got := w.kindOf(err); got != c.want {
			t.Errorf("replaced %d times: %v; want an error of the kind %q", c.times, err, c.want)
		}
	}
}

// A page that waits learns of new checkpoints, of other changes, and of replaced checkpoints.
func TestWatch(t *testing.T) {
	w := newWorld(t, 0, nil)
	look := func() *place { return w.get(t, "place?watch=1").(*place) }
	empty := look()
	if empty.Kind != "run" || len(empty.Checkpoints) != 0 {
		t.Fatalf("an empty run: %+v", empty)
	}
	dir := filepath.Join(w.dir, "step-1")
	save(t, dir, "save-1", 1, 1)
	if again := look(); again.State != empty.State {
		t.Errorf("the run was listed twice within %v", w.site.watchAge())
	}
	w.stale()
	one := look()
	if len(one.Checkpoints) != 1 || one.State == empty.State || one.Checkpoints[0].Version == "" {
		t.Fatalf("after a save: %+v", one)
	}
	w.stale()
	if same := look(); !reflect.DeepEqual(same, one) {
		t.Errorf("without a change: %+v, and then %+v", one, same)
	}
	save(t, dir, "save-2", 1, 2)
	w.stale()
	if two := look(); two.Checkpoints[0].Version == one.Checkpoints[0].Version || two.State == one.State {
		t.Errorf("after another save: %+v; it was %+v", two, one)
	}
	if log := w.get(t, "run?watch=1").(*run.Log); log.Checkpoints[0].SaveID != "save-2" {
		t.Errorf("run: %+v", log.Checkpoints[0])
	}
}

// The same for a checkpoint that is the path of the site.
func TestWatchCheckpoint(t *testing.T) {
	w := newWorld(t, 0, func(o *Options) { o.Run, o.Checkpoints = nil, []Place{{ID: Self}} })
	save(t, w.dir, "save-1", 1, 1)
	version := func() string { return w.get(t, "place?watch=1").(*place).Checkpoints[0].Version }
	if v := version(); v != "" {
		t.Errorf("before it is opened: %q", v)
	}
	w.get(t, "names?c=.")
	one := version()
	save(t, w.dir, "save-2", 2, 2)
	w.stale()
	if two := version(); one == "" || two == one {
		t.Errorf("the version is %q, and after another save %q", one, two)
	}
	if s := w.get(t, "checkpoint?c=.").(*summary); s.SaveID != "save-2" {
		t.Errorf("the checkpoint is of %q", s.SaveID)
	}
}

// A read that fails because the files are gone is an error of the kind gone, even if the
// checkpoint was there a moment ago.
func TestRemovedDuringRead(t *testing.T) {
	w := newWorld(t, 1, nil)
	w.get(t, "names?c=step-1")
	broken := errors.New("a file is missing")
	w.onRead(func(context.Context) error {
		must.Do(t, os.RemoveAll(filepath.Join(w.dir, "step-1")))
		return broken
	})
	for _, text := range []string{"stats?c=step-1&name=model.layers.0.w"} {
		if _, err := w.ask(t.Context(), text); w.kindOf(err) != KindGone {
			t.Errorf("%s: %v; want an error of the kind %q", text, err, KindGone)
		}
	}
	w2 := newWorld(t, 1, nil)
	w2.onRead(func(context.Context) error { return broken })
	if _, err := w2.ask(t.Context(), "stats?c=step-1&name=model.layers.0.w"); !errors.Is(err, broken) || w2.kindOf(err) != KindInternal {
		t.Errorf("stats of a checkpoint that is there: %v; want the error of the read", err)
	}
}

// soonOpen waits until n checkpoints are open. One is in use for a moment after its answer.
func (w *world) soonOpen(t *testing.T, n int) {
	t.Helper()
	soon(t, fmt.Sprintf("that %d checkpoints are open", n), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.alive == n
	})
}

func TestOpenCheckpointsAreBounded(t *testing.T) {
	const n = maxOpen + 4
	w := newWorld(t, n, nil)
	for i := 1; i <= n; i++ {
		w.get(t, fmt.Sprintf("names?c=step-%d", i))
		w.soonOpen(t, min(i, maxOpen))
	}
	if w.most > maxOpen+1 {
		t.Errorf("%d checkpoints were open; want %d, and the one in use", w.most, maxOpen)
	}
	before := len(w.opened)
	w.get(t, fmt.Sprintf("names?c=step-%d", n))
	if len(w.opened) != before {
		t.Error("the most recently used checkpoint was opened again")
	}
	w.get(t, "names?c=step-1")
	if len(w.opened) != before+1 {
		t.Error("the least recently used checkpoint was not opened again")
	}
}

// Chunks are a bound, too.
func TestChunksAreBounded(t *testing.T) {
	w := newWorld(t, 3, nil)
	for i := 1; i <= 3; i++ {
		w.get(t, fmt.Sprintf("names?c=step-%d", i))
	}
	w.site.mu.Lock()
	w.site.open[1].chunks = maxChunks
	w.site.mu.Unlock()
	w.get(t, "names?c=step-3")
	w.soonOpen(t, 1) // the one that was used last: the others have too many chunks
}

// At most maxWorking expensive questions work at the same time. Others say that they wait,
// and end when their contexts end.
func TestExpensiveQuestionsWait(t *testing.T) {
	w := newWorld(t, 1, nil)
	w.get(t, "names?c=step-1")
	var working, most atomic.Int64
	free := make(chan struct{})
	w.onRead(func(ctx context.Context) error {
		most.Store(max(most.Load(), working.Add(1)))
		defer working.Add(-1)
		select {
		case <-free:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	names := []string{"model.layers.0.w", "model.layers.0.b", "model.layers.1.w", "model.scale"}
	var wg sync.WaitGroup
	errs := make([]error, len(names))
	said := make([]atomic.Bool, len(names))
	last, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, name := range names {
		ctx := t.Context()
		if i == len(names)-1 {
			ctx = last
			soon(t, "the wait of the others", func() bool { return said[0].Load() || said[1].Load() || said[2].Load() })
		}
		wg.Go(func() {
			_, errs[i] = w.site.Plot(ctx, url.Values{"what": {"histogram"}, "c": {"step-1"}, "name": {name}}, func(_, _ int64, what string) {
				if what == waiting {
					said[i].Store(true)
				}
			})
		})
	}
	soon(t, "the wait of the last question", func() bool { return said[3].Load() })
	cancel()
	soon(t, "its end", func() bool {
		w.site.mu.Lock()
		defer w.site.mu.Unlock()
		return w.site.open[0].users == 3
	})
	close(free)
	wg.Wait()
	if err := errors.Join(errs[:3]...); err != nil || !errors.Is(errs[3], context.Canceled) {
		t.Errorf("the questions end with %v; want only the last one to be cancelled", errs)
	}
	if most.Load() > maxWorking {
		t.Errorf("%d questions read at the same time; want at most %d", most.Load(), maxWorking)
	}
}

// A question that was asked before does not read the checkpoint again until it changes.
func TestAnswersAreKept(t *testing.T) {
	w := newWorld(t, 2, nil)
	reads := 0
	var mu sync.Mutex
	w.onRead(func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		reads++
		return nil
	})
	for _, text := range []string{
		"stats?c=step-1&name=model.layers.0.w", "stats?c=step-1&name=model.layers.0.w&scale=log2", "stats?c=step-2&name=model.layers.0.w",
		"compare?a=step-1&b=step-2", "compare?a=step-2&b=step-1", "compare?a=step-1&b=step-2&recipe=1", "overlay?a=step-1&b=step-2&name=model.layers.0.w",
	} {
		before := reads
		a := w.get(t, text)
		if reads == before {
			t.Errorf("%s reads nothing the first time", text)
		}
		before = reads
		if b := w.get(t, text); reads != before || !reflect.DeepEqual(a, b) {
			t.Errorf("%s reads again", text)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	var a answers
	for i := range 3 * maxAnswers {
		a.put(fmt.Sprint(i), i, 1)
	}
	if a.order.Len() != maxAnswers || len(a.byKey) != maxAnswers || a.get("0") != nil || a.get(fmt.Sprint(3*maxAnswers-1)) == nil {
		t.Errorf("%d answers are kept; want the last %d", a.order.Len(), maxAnswers)
	}
	a.put("large", 1, maxKept-1)
	a.put("other", 2, 1)
	if a.order.Len() != 2 || a.rows != maxKept {
		t.Errorf("%d answers of %d rows are kept; want 2 of %d", a.order.Len(), a.rows, maxKept)
	}
	a.put("too large", 1, maxKept+1)
	if a.get("too large") != nil || a.get("large") == nil {
		t.Error("an answer beyond the bound was kept, or replaced others")
	}
}

// The recipe applies to the first checkpoint, and names that it drops are not compared.
func TestCompareThroughRecipe(t *testing.T) {
	w := newWorld(t, 2, nil)
	plain := w.get(t, "compare?a=step-1&b=step-2&select=config.*")
	dropped := w.get(t, "compare?a=step-1&b=step-2&select=config.*&recipe=1")
	if a, b := string(must.Get(json.Marshal(plain))(t)), string(must.Get(json.Marshal(dropped))(t)); !strings.Contains(a, `"names":1`) || a != b {
		t.Errorf("without and with the recipe: %s and %s; want the same, as both sides have the name", a, b)
	}
}

// Questions of many goroutines, while checkpoints are replaced, end with an answer or with an
// error that says that the checkpoint is gone.
func TestConcurrentQuestions(t *testing.T) {
	w := newWorld(t, 3, func(o *Options) { o.Cache = t.TempDir() })
	var texts []string
	for i := 1; i <= 3; i++ {
		for _, q := range []string{"names?c=step-%d", "checkpoint?c=step-%d", "item?c=step-%d&name=model.layers.0.w", "stats?c=step-%d&name=model.layers.0.w", "heat?c=step-%d&name=model.layers.0.w", "plot?what=sizes&c=step-%d"} {
			texts = append(texts, fmt.Sprintf(q, i))
		}
	}
	texts = append(texts, "place", "run", "steps", "compare?a=step-1&b=step-2", "overlay?a=step-2&b=step-3&name=model.layers.0.w")
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for i := range 3 * len(texts) {
				text := texts[(i*7+g*5)%len(texts)]
				_, err := w.ask(ctx, text)
				if kind := w.kindOf(err); !slices.Contains([]string{"", KindGone, KindNotFound, KindIncomplete, KindUnderWay}, kind) {
					t.Errorf("%s: an error of the kind %q: %v", text, kind, err)
				}
			}
		})
	}
	for i := range byte(5) {
		save(t, filepath.Join(w.dir, "step-2"), fmt.Sprintf("again-%d", i), 2, i)
		w.site.mu.Lock()
		for _, h := range w.site.open {
			h.mu.Lock()
			h.checked = time.Time{}
			h.mu.Unlock()
		}
		w.site.mu.Unlock()
	}
	wg.Wait()
}

func TestQuestionsAfterClose(t *testing.T) {
	w := newWorld(t, 1, nil)
	w.get(t, "names?c=step-1")
	must.Do(t, w.site.Close())
	for _, text := range []string{"checkpoint?c=step-1", "run"} {
		if _, err := w.ask(t.Context(), text); w.kindOf(err) != KindClosed {
			t.Errorf("%s after Close: %v; want an error of the kind %q", text, err, KindClosed)
		}
	}
}

// Prepare opens the checkpoint before it is asked for.
func TestPrepare(t *testing.T) {
	w := newWorld(t, 0, func(o *Options) { o.Run, o.Checkpoints = nil, []Place{{ID: Self, Label: "x"}} })
	save(t, w.dir, "save-0", 7, 1)
	w.site.Prepare()
	soon(t, "the opening", func() bool {
		w.site.mu.Lock()
		defer w.site.mu.Unlock()
		return len(w.site.open) == 1 && w.site.open[0].named[inspect.OnlyWeights].over()
	})
	w.get(t, "names?c=.")
	if len(w.opened) != 1 {
		t.Errorf("the checkpoint was opened %d times; want once", len(w.opened))
	}
	run := newWorld(t, 1, nil)
	run.site.Prepare()
	run.get(t, "place")
}

// Errors of other packages have kinds, also if they are wrapped.
func TestKinds(t *testing.T) {
	s := NewSite(Options{})
	defer s.Close()
	for _, k := range kinds {
		if e := s.answerOf(fmt.Errorf("open: %w", k.err)); e.Kind != k.kind || e.Kind == KindGone && e.Hint == "" {
			t.Errorf("%v: %+v; want the kind %q", k.err, e, k.kind)
		}
		if statuses[k.kind] == 0 {
			t.Errorf("the kind %q has no status", k.kind)
		}
	}
	if e := s.answerOf(errors.New("x")); e.Kind != KindInternal {
		t.Errorf("another error: %+v", e)
	}
}

func TestErrorsHaveNoSecrets(t *testing.T) {
	s := NewSite(Options{Redact: strings.NewReplacer("user:pass@", "", "?key=secret", "").Replace})
	defer s.Close()
	e := s.answerOf(&Error{Kind: KindInternal, Hint: "look at s3://user:pass@b/x", Err: errors.New("open s3://user:pass@b/x?key=secret: no \xff")})
	if text := e.Message + e.Hint; strings.Contains(text, "pass") || strings.Contains(text, "secret") || !strings.Contains(e.Message, "s3://b/x: no �") {
		t.Errorf("the answer is %+v; want it without secrets", e)
	}
}

// A checkpoint that is the path of the Site is named by the path, not by its id.
func TestLostPathIsNamed(t *testing.T) {
	s := NewSite(Options{Path: "runs/a/step-1", Checkpoints: []Place{{ID: Self}}})
	defer s.Close()
	if err := s.lost(Self, fs.ErrNotExist); !strings.Contains(err.Error(), `"runs/a/step-1" was removed`) {
		t.Errorf("the error is %v", err)
	}
}

// Checkpoints with few names in common are offered another comparison: with another beginning
// of names, or through a recipe.
func TestWays(t *testing.T) {
	var w *world
	w = newWorld(t, 2, func(o *Options) {
		o.Recipe, o.Guess = "", true
		o.Open = func(ctx context.Context, id string, recipe bool) (*Opened, error) {
			switch {
			case recipe && id == "other": // its form has the names of the others
				id = "step-1"
			case recipe:
				return nil, &Error{Kind: KindRecipe, Message: "no recipe fits"}
			}
			return w.open(ctx, id, recipe)
		}
	})
	for name, state := range map[string]plan.State{
		"wrapped": {"ddp": plan.State{"model": plan.State{"scale": storagetest.Filled(t, tensor.Int32, []int64{}, 1), "layers": plan.State{
			"0": plan.State{"b": storagetest.Filled(t, tensor.Int16, []int64{5}, 1)},
		}}}},
		"other": {"x": storagetest.Filled(t, tensor.Int32, []int64{4}, 1), "y": storagetest.Filled(t, tensor.Int32, []int64{4}, 1)},
	} {
		store := must.Get(file.Open(filepath.Join(w.dir, name), nil))(t)
		p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, store, storage.WriteOptions{}) }}
		must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("save-"+name, 9, 1), state))
	}
	for _, c := range []struct{ text, want string }{
		{"a=wrapped&b=step-1", `"ways":[{"from":"ddp.","to":"","names":2,"recipe":false,"swap":false}]`},
		{"a=step-1&b=wrapped", `"ways":[{"from":"","to":"ddp.","names":2,"recipe":false,"swap":false}]`},
		{"a=wrapped&b=step-1&from=ddp.", `"ways":[]`},
		{"a=wrapped&b=step-1&from=ddp.", `"renamed":"ddp.model.scale"`},
		{"a=wrapped&b=step-1&from=ddp.", `"identical":2,`},
		{"a=other&b=step-1", `"ways":[{"from":"","to":"","names":6,"recipe":true,"swap":false}]`},
		{"a=step-1&b=other", `"ways":[{"from":"","to":"","names":6,"recipe":true,"swap":true}]`},
		{"a=other&b=step-1&recipe=1&of=all", `"identical":6,`},
		{"a=step-1&b=step-2", `"ways":[]`},
	} {
		if got := string(w.get(t, "compare?"+c.text).(json.RawMessage)); !strings.Contains(got, c.want) {
			t.Errorf("compare?%s: %s; want %s", c.text, got, c.want)
		}
	}
}

// A heat map of a tensor with a damaged chunk has the other chunks, and names the damaged one.
func TestHeatOfDamaged(t *testing.T) {
	w := newWorld(t, 1, nil)
	all := w.get(t, "heat?c=step-1&name=model.layers.0.w").(*inspect.Heat)
	if all.Damaged != nil || !all.Exact {
		t.Fatalf("before: %+v", all)
	}
	it := w.get(t, "item?c=step-1&name=model.layers.0.w").(*item)
	bad := it.Chunks[1]
	file := filepath.Join(w.dir, "step-1", bad.File)
	b := must.Get(os.ReadFile(file))(t)
	for i := range bad.Length {
		b[bad.Offset+i] ^= 0x55
	}
	must.Do(t, os.WriteFile(file, b, 0o600))
	must.Do(t, os.Chtimes(file, time.Time{}, time.Now().Add(-time.Hour)))
	w.stale()

	h := w.get(t, "heat?c=step-1&name=model.layers.0.w").(*inspect.Heat)
	if len(h.Damaged) != 1 || h.Damaged[0].Chunk != 1 || h.Damaged[0].File != bad.File || h.Damaged[0].Problem == "" || !slices.Equal(h.Damaged[0].Offsets, bad.Offsets) || !slices.Equal(h.Damaged[0].Sizes, bad.Sizes) {
		t.Fatalf("damaged: %+v; want chunk 1", h.Damaged)
	}
	for i, x := range h.Mean {
		if lost := int64(i/h.Width) >= bad.Offsets[0]; x.None() != lost || !lost && x != all.Mean[i] {
			t.Errorf("cell %d is %v; was %v", i, x, all.Mean[i])
		}
	}
	if !h.Exact || h.Read*2 != all.Read {
		t.Errorf("%d elements were read, exact %v; want half of %d", h.Read, h.Exact, all.Read)
	}
	if _, err := w.ask(t.Context(), "stats?c=step-1&name=model.layers.0.w"); w.kindOf(err) != KindCorrupt {
		t.Errorf("stats: %v; want an error of the kind %q", err, KindCorrupt)
	}
}
