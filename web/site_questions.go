package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/value"
)

// question is something that a Site answers.
type question struct {
	params string // the parameters that it may have
	// stream is set if it may take long: its answer is a stream with progress.
	stream bool
	// large is set if the answer may be large, and is made anew for each request. It is not
	// set for a stream.
	large  bool
	answer func(ctx context.Context, s *Site, q *query, m *meter) (any, error)
}

// questions are all questions, by the path below /api/.
var questions = map[string]question{
	"place": {"watch", false, false, func(ctx context.Context, s *Site, q *query, _ *meter) (any, error) {
		return s.place(ctx, q.flag("watch"))
	}},
	"run": {"watch", false, false, func(ctx context.Context, s *Site, q *query, _ *meter) (any, error) {
		if q.flag("watch") {
			return s.run(ctx, s.watchAge())
		}
		return s.run(ctx, 0)
	}},
	"checkpoint": {"c", false, false, func(ctx context.Context, s *Site, q *query, _ *meter) (any, error) { return s.summary(ctx, q) }},
	"names":      {"c of", false, false, func(ctx context.Context, s *Site, q *query, _ *meter) (any, error) { return s.names(ctx, q) }},
	"item":       {"c name", false, true, func(ctx context.Context, s *Site, q *query, _ *meter) (any, error) { return s.item(ctx, q) }},
	"heat":       {"c name index rows cols height width", false, true, func(ctx context.Context, s *Site, q *query, _ *meter) (any, error) { return s.heat(ctx, q) }},
	"timeline":   {"c", false, false, func(ctx context.Context, s *Site, q *query, _ *meter) (any, error) { return s.timeline(ctx, q) }},
	"stats":      {"c name buckets scale", true, false, func(ctx context.Context, s *Site, q *query, m *meter) (any, error) { return s.stats(ctx, q, m) }},
	"compare": {"a b select of recipe from to", true, false, func(ctx context.Context, s *Site, q *query, m *meter) (any, error) {
		c, err := s.compare(ctx, q, m)
		if err != nil {
			return nil, err
		}
		return c.json, nil
	}},
	"overlay": {"a b name_a name buckets scale recipe", true, false, func(ctx context.Context, s *Site, q *query, m *meter) (any, error) { return s.overlay(ctx, q, m) }},
	"plot": {allPictureParams(), true, false, func(ctx context.Context, s *Site, q *query, m *meter) (any, error) {
		p, err := s.plot(ctx, q, m)
		if err != nil {
			return nil, err
		}
		return drawn{string(p.SVG())}, nil
	}},
	"tensors": {"c of", true, false, func(ctx context.Context, s *Site, q *query, m *meter) (any, error) { return s.tensors(ctx, q, m) }},
	"history": {"name in scale", true, false, func(ctx context.Context, s *Site, q *query, m *meter) (any, error) { return s.history(ctx, q, m) }},
	"steps":   {"select of", true, false, func(ctx context.Context, s *Site, q *query, m *meter) (any, error) { return s.steps(ctx, q, m) }},
}

// with calls fn with an open checkpoint. If the checkpoint was replaced meanwhile, with calls fn
// again, once, with the new one.
func (s *Site) with(ctx context.Context, id string, recipe bool, fn func(h *handle) error) error {
	again, err := s.withOnce(ctx, id, recipe, fn)
	if again {
		_, err = s.withOnce(ctx, id, recipe, fn)
	}
	return err
}

func (s *Site) withOnce(ctx context.Context, id string, recipe bool, fn func(h *handle) error) (replaced bool, err error) {
	h, err := s.acquire(ctx, id, recipe, freshFor)
	if err != nil {
		return false, err
	}
	defer s.release(h)
	err = h.explain(ctx, fn(h))
	if _, ours := errors.AsType[*Error](err); err != nil && !ours && ctx.Err() == nil {
		_ = s.drop(h) // the next question begins anew
	}
	r, ok := errors.AsType[*replacedError](err)
	return ok && r.h == h, err
}

// run answers /api/run.
func (s *Site) run(ctx context.Context, age time.Duration) (*run.Log, error) {
	if s.opts.Run == nil {
		return nil, &Error{Kind: KindNoRun, Message: s.opts.Path + " is a checkpoint, not a run", Hint: "'cairn web RUN' shows the folder in which the checkpoints of a run are"}
	}
	return s.list(ctx, age)
}

// ofCheckpoint returns the result of fn for the checkpoint that the parameter c names.
func ofCheckpoint[T any](ctx context.Context, s *Site, q *query, fn func(h *handle) (T, error)) (out T, err error) {
	id := q.need("c")
	if q.err != nil {
		return out, q.err
	}
	err = s.with(ctx, id, false, func(h *handle) error {
		out, err = fn(h)
		return err
	})
	return out, err
}

// summary is the answer of /api/checkpoint.
type summary struct {
	*inspect.Summary
	// Timeline reports whether the checkpoint has a timeline.
	Timeline bool `json:"timeline"`
}

// summary answers /api/checkpoint.
func (s *Site) summary(ctx context.Context, q *query) (*summary, error) {
	return ofCheckpoint(ctx, s, q, func(h *handle) (*summary, error) {
		sum, err := h.summary(ctx)
		return &summary{sum, len(h.checkpoint().Info().Timeline) > 0}, err
	})
}

// timeline answers /api/timeline.
func (s *Site) timeline(ctx context.Context, q *query) (*inspect.Timeline, error) {
	return ofCheckpoint(ctx, s, q, func(h *handle) (*inspect.Timeline, error) { return inspect.NewTimeline(h.checkpoint().Info()) })
}

// The bounds of an answer about one name.
const (
	maxValue       = 1 << 20  // bytes of the shown value
	maxValueRead   = 64 << 20 // bytes of an object that is read
	maxShownChunks = 20_000

	ellipsis = "…" // ends a text that inspect.Repr has cut
)

// item is the answer of /api/item.
type item struct {
	Item *inspect.Item `json:"item"`
	related
	// Value is an object in Python's notation. Truncated is set if it is longer.
	Value     string `json:"value"`
	Truncated bool   `json:"truncated"`
	// Chunks are the first chunks, and Omitted counts the others.
	Chunks  []inspect.Chunk `json:"chunks"`
	Omitted int             `json:"omitted"`
}

// item answers /api/item.
func (s *Site) item(ctx context.Context, q *query) (out *item, err error) {
	id, name := q.need("c"), q.need("name")
	if q.err != nil {
		return nil, q.err
	}

	done, err := s.reading.take(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer done()

	err = s.with(ctx, id, false, func(h *handle) error {
		md, e, err := h.entry(ctx, name)
		if err != nil {
			return err
		}
		beside, err := h.related(ctx, md, name)
		if err != nil {
			return err
		}

		out = &item{Item: inspect.NewItem(e), related: beside, Chunks: []inspect.Chunk{}}
		for c := range inspect.Chunks(e) {
			if len(out.Chunks) == maxShownChunks {
				out.Omitted = len(e.Tensor.Chunks) - maxShownChunks
				break
			}
			out.Chunks = append(out.Chunks, c)
		}

		if e.Bytes == nil {
			return nil
		}
		return out.readValue(ctx, h.checkpoint(), e)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// readValue sets the value of an object. That it cannot be decoded is not an error: the rest
// of the answer is of use.
func (it *item) readValue(ctx context.Context, c *Opened, e *meta.Entry) error {
	if e.Bytes.Size > maxValueRead {
		it.Item.Problem = fmt.Sprintf("the object has %d bytes: more than %d are not read for the page", e.Bytes.Size, maxValueRead)
		return nil
	}
	codec, data, err := c.ReadBytes(ctx, e)
	if err != nil {
		return err
	}
	it.Item.Decode(codec, data)
	v, err := value.Decode(codec, data)
	if err != nil {
		it.Item.Problem = err.Error()
		return nil
	}
	it.Value = inspect.Repr(v, maxValue)
	// A text that was cut is as long as the limit, or shorter by a part of a character.
	it.Truncated = strings.HasSuffix(it.Value, ellipsis) && len(it.Value) >= maxValue
	return nil
}

// heat answers /api/heat.
func (s *Site) heat(ctx context.Context, q *query) (out *inspect.Heat, err error) {
	id, name := q.need("c"), q.need("name")
	o := inspect.HeatOptions{
		Index: q.text("index"), Rows: q.span("rows"), Cols: q.span("cols"),
		Height: q.count("height", 0, 1, maxCells), Width: q.count("width", 0, 1, maxCells),
		Damaged: func(err error) bool { return errors.Is(err, storage.ErrCorrupt) || errors.Is(err, fs.ErrNotExist) },
	}
	if q.err != nil {
		return nil, q.err
	}
	done, err := s.reading.take(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer done()

	err = s.with(ctx, id, false, func(h *handle) error {
		_, e, err := h.tensor(ctx, name)
		if err != nil {
			return err
		}
		if out, err = inspect.NewHeat(ctx, h.checkpoint(), e, o); err == nil && len(out.Damaged) > 0 {
			err = h.check(ctx, 0) // the files of a checkpoint that was replaced are not damaged
		}
		return err
	})
	if err != nil {
		return nil, err
	}

	for i := range out.Damaged {
		out.Damaged[i].Problem = s.redact(out.Damaged[i].Problem)
	}
	return out, nil
}

// maxCells is the most cells of a heat map in a row or a column.
const maxCells = 1024

// cached returns the answer to a question about checkpoints of certain versions, of which it
// computes at most maxWorking at the same time. rows returns about how large the answer is.
func cached[T any](ctx context.Context, s *Site, m *meter, key string, rows func(v T) int, compute func() (T, error)) (T, error) {
	if v, ok := s.answers.get(key).(T); ok {
		return v, nil
	}
	var zero T
	done, err := s.working.take(ctx, m)
	if err != nil {
		return zero, err
	}
	defer done()
	if v, ok := s.answers.get(key).(T); ok { // while this question waited
		return v, nil
	}
	v, err := compute()
	if err != nil {
		return zero, err
	}
	s.answers.put(key, v, rows(v))
	return v, nil
}

// keyOf joins the parts of the key of a question.
func keyOf(parts ...any) string { return fmt.Sprintf("%q", parts) }

// stats answers /api/stats.
func (s *Site) stats(ctx context.Context, q *query, m *meter) (out *inspect.TensorStats, err error) {
	id, name, o := q.need("c"), q.need("name"), q.histogram()
	if q.err != nil {
		return nil, q.err
	}
	err = s.with(ctx, id, false, func(h *handle) error {
		_, e, err := h.tensor(ctx, name)
		if err != nil {
			return err
		}
		key := keyOf("stats", h.identity(), name, o.Buckets, o.Log2)
		out, err = cached(ctx, s, m, key, func(*inspect.TensorStats) int { return o.Buckets }, func() (*inspect.TensorStats, error) {
			o.Total, o.Progress = m.total, m.add
			r, err := inspect.Stats(ctx, h.checkpoint(), []*meta.Entry{e}, &o)
			if err != nil {
				return nil, err
			}
			return &r.Tensors[0], nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// both calls fn with two open checkpoints, the first through the recipe if that is set.
func (s *Site) both(ctx context.Context, a, b string, recipe bool, fn func(a, b *handle) error) error {
	return s.with(ctx, a, recipe, func(a *handle) error {
		return s.with(ctx, b, false, func(b *handle) error { return a.explain(ctx, fn(a, b)) })
	})
}

// comparison is the answer of /api/compare.
type comparison struct {
	inspect.Comparison
	// Items has the items of Comparison as columns: there may be 200,000.
	Items *inspect.ComparedColumns `json:"items"`
	// Ways are other comparisons, which would find more names in both.
	Ways []way `json:"ways"`
}

// way is a comparison that finds more names in both: with another beginning of names, or through
// a recipe, of A and B or, if Swap is set, of B and A.
type way struct {
	inspect.PrefixChange
	Recipe bool `json:"recipe"`
	Swap   bool `json:"swap"`
}

// compared is a comparison that is kept.
type compared struct {
	items []inspect.Compared // for a chart: descriptions have the kinds only
	json  json.RawMessage
}

func newCompared(c *inspect.Comparison, ways []way) (*compared, error) {
	text, err := encode(comparison{*c, inspect.NewComparedColumns(c.Items), ways})
	if err != nil {
		return nil, err
	}
	tensor, object := &inspect.Item{Kind: inspect.KindTensor}, &inspect.Item{Kind: inspect.KindObject}
	for i := range c.Items {
		for _, it := range []**inspect.Item{&c.Items[i].A, &c.Items[i].B} {
			switch {
			case *it == nil:
			case (*it).Kind == inspect.KindTensor:
				*it = tensor
			default:
				*it = object
			}
		}
	}
	return &compared{slices.Clip(c.Items), slices.Clip(text)}, nil
}

// compare answers /api/compare.
func (s *Site) compare(ctx context.Context, q *query, m *meter) (out *compared, err error) {
	a, b, keep, of, recipe := q.need("a"), q.need("b"), q.pattern("select"), q.of(), q.flag("recipe")
	prefix := inspect.PrefixChange{From: q.text("from"), To: q.text("to")}
	if q.err != nil {
		return nil, q.err
	}
	err = s.both(ctx, a, b, recipe, func(a, b *handle) error {
		key := keyOf("compare", a.identity(), b.identity(), q.text("select"), of, prefix)
		out, err = cached(ctx, s, m, key, func(c *compared) int { return 1 + len(c.items) }, func() (*compared, error) {
			c, err := s.compareNow(ctx, a, b, keep, of, prefix, m)
			if err != nil {
				return nil, err
			}
			ways, err := s.waysFor(ctx, a, b, c)
			if err != nil {
				return nil, err
			}
			return newCompared(c, ways)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// waysFor returns other comparisons, if few names are in both.
func (s *Site) waysFor(ctx context.Context, a, b *handle, c *inspect.Comparison) ([]way, error) {
	out := []way{}
	if c.Missing == 0 || c.Extra == 0 {
		return out, nil
	}
	for _, p := range c.PrefixChanges() {
		out = append(out, way{PrefixChange: p})
	}
	if common := c.Names - c.Missing - c.Extra; len(out) > 0 || a.key.recipe || common > min(c.Missing, c.Extra) || s.opts.Recipe == "" && !s.opts.Guess {
		return out, nil
	}

	for i, pair := range [][2]*handle{{a, b}, {b, a}} {
		n, err := s.namesThrough(ctx, pair[0].key.id, pair[1])
		if err != nil {
			return nil, err
		}
		if n > 0 {
			out = append(out, way{PrefixChange: inspect.PrefixChange{Names: n}, Recipe: true, Swap: i == 1})
		}
	}
	return out, nil
}

// namesThrough returns how many names of a checkpoint, seen through the recipe, b has. It returns
// 0 if no recipe fits, or if b lacks most of these names.
func (s *Site) namesThrough(ctx context.Context, id string, b *handle) (n int, err error) {
	h, err := s.acquire(ctx, id, true, freshFor)
	if err != nil {
		return 0, context.Cause(ctx)
	}
	defer s.release(h)
	of, err := h.metadata(ctx)
	if err != nil {
		return 0, context.Cause(ctx)
	}
	md, err := b.metadata(ctx)
	if err != nil {
		return 0, err
	}
	for i := range of.Entries {
		if _, ok := md.Find(of.Entries[i].FQN); ok {
			n++
		}
	}
	if 2*n < len(of.Entries) {
		return 0, nil
	}
	return n, nil
}

func (s *Site) compareNow(ctx context.Context, a, b *handle, selected func(string) bool, of inspect.Choice, prefix inspect.PrefixChange, m *meter) (*inspect.Comparison, error) {
	var sides [2]inspect.Side
	for i, h := range []*handle{a, b} {
		md, err := h.metadata(ctx)
		if err != nil {
			return nil, err
		}
		sides[i] = inspect.Side{Content: h.checkpoint(), Metadata: md}
	}
	inRole := of.Keep(sides[0].Metadata, sides[1].Metadata)
	keep := func(fqn string) bool { return inRole(fqn) && (selected == nil || selected(fqn)) }
	for i := range sides {
		if err := sides[i].Metadata.CheckWhole(keep); err != nil {
			return nil, err
		}
	}

	o := &inspect.CompareOptions{All: true, Change: true, Keep: keep, Total: m.total, Progress: m.add}
	if prefix != (inspect.PrefixChange{}) {
		has := func(i int) func(string) bool {
			return func(name string) bool {
				_, ok := sides[i].Metadata.Find(name)
				return ok
			}
		}
		o.Rename = prefix.Rename(has(0), has(1))
	}
	if drops := a.checkpoint().Drops; drops != nil {
		names, err := drops(ctx, b.checkpoint(), sides[1].Metadata)
		if err != nil {
			return nil, err
		}
		without := make(map[string]bool, len(names))
		for _, n := range names {
			without[n] = true
		}
		o.KeepExtra = func(fqn string) bool { return !without[fqn] && keep(fqn) }
	}
	return inspect.Compare(ctx, sides[0], sides[1], o)
}

// overlay answers /api/overlay.
func (s *Site) overlay(ctx context.Context, q *query, m *meter) (out *inspect.Overlaid, err error) {
	a, b, name, recipe, o := q.need("a"), q.need("b"), q.need("name"), q.flag("recipe"), q.histogram()
	nameA := name
	if q.values.Has("name_a") {
		nameA = q.text("name_a")
	}
	if q.err != nil {
		return nil, q.err
	}
	err = s.both(ctx, a, b, recipe, func(a, b *handle) error {
		_, ea, err := a.tensor(ctx, nameA)
		if err != nil {
			return err
		}
		_, eb, err := b.tensor(ctx, name)
		if err != nil {
			return err
		}
		key := keyOf("overlay", a.identity(), b.identity(), nameA, name, o.Buckets, o.Log2)
		out, err = cached(ctx, s, m, key, func(*inspect.Overlaid) int { return 2 * o.Buckets }, func() (*inspect.Overlaid, error) {
			o.Total, o.Progress = m.total, m.add
			return inspect.Overlay(ctx, a.checkpoint(), b.checkpoint(), ea, eb, &o)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
