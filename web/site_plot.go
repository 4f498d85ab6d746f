package web

import (
	"context"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/inspect/plot"
	"github.com/cairn-ckpt/cairn/run"
)

// picture is a chart that a Site draws.
type picture struct {
	params string // besides the parameter what
	draw   func(ctx context.Context, s *Site, q *query, m *meter) (*plot.Picture, error)
}

// pictures are all charts.
var pictures = map[string]picture{
	"sizes":     {"c of color against", plotSizes},
	"shards":    {"c name", plotShards},
	"histogram": {"c name buckets scale counts", plotHistogram},
	"heatmap":   {"c name index rows cols height width show", plotHeat},
	"changes":   {"a b select of recipe from to", plotChanges},
	"overlay":   {"a b name_a name buckets scale counts recipe", plotOverlay},
	"timeline":  {"c", plotTimeline},
	"steps":     {"select of measure", plotSteps},
	"history":   {"name in scale counts measure", plotHistory},
	"metrics":   {"select names", plotMetrics},
	"run":       {"", plotRun},
}

// Pictures returns the names of the charts that Plot draws.
func Pictures() []string { return slices.Sorted(maps.Keys(pictures)) }

// PictureParams returns the parameters of a chart, apart from what. It returns nil if there is
// no such chart.
func PictureParams(what string) []string { return strings.Fields(pictures[what].params) }

// Plot draws a chart. q has its name, as what, and its parameters, as in a request of
// /api/plot. The caller's goroutine calls progress, which may be nil. An error about the
// question is an *Error.
func (s *Site) Plot(ctx context.Context, q url.Values, progress Progress) (svg []byte, err error) {
	watch(func(m *meter) {
		var p *plot.Picture
		if p, err = s.plot(ctx, &query{values: q}, m); err == nil {
			svg = p.SVG()
		}
	}, progress)
	return svg, err
}

// drawn is the answer of /api/plot.
type drawn struct {
	SVG string `json:"svg"`
}

func (s *Site) plot(ctx context.Context, q *query, m *meter) (*plot.Picture, error) {
	what := q.need("what")
	p, ok := pictures[what]
	if q.err == nil && !ok {
		q.failf("what=%s: want one of %s", quote(what), strings.Join(Pictures(), ", "))
	}
	if q.err != nil {
		return nil, q.err
	}
	q = newQuery(q.values, append(strings.Fields(p.params), "what")...)
	if q.err != nil {
		return nil, q.err
	}
	return p.draw(ctx, s, q, m)
}

// allPictureParams are the parameters of /api/plot.
func allPictureParams() string {
	all := map[string]bool{"what": true}
	for _, p := range pictures {
		for _, name := range strings.Fields(p.params) {
			all[name] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), " ")
}

// counts returns how the axis of counts of a histogram is drawn.
func (q *query) counts() []plot.Option {
	if q.choice("counts", "linear", "log") == "log" {
		return []plot.Option{plot.LogCounts}
	}
	return nil
}

// about says in a chart which checkpoints it shows. params are the parameters with their ids.
func (s *Site) about(q *query, params ...string) plot.Option {
	var labels []string
	for _, p := range params {
		labels = append(labels, s.label(q.text(p)))
	}
	return plot.About(s.redact(strings.Join(labels, " → ")))
}

func plotSizes(ctx context.Context, s *Site, q *query, m *meter) (*plot.Picture, error) {
	about := s.label(q.text("c"))
	color := q.choice("color", "dtype", "norm", "nan", "change")
	n, err := s.namesOf(ctx, q)
	if err != nil {
		return nil, err
	}
	if len(n.Entries) < n.all {
		about += ", " + string(q.of())
	}
	opts := []plot.Option{plot.About(s.redact(about))}
	if color != "dtype" {
		shades, err := s.shades(ctx, q, m, n, color)
		if err != nil {
			return nil, err
		}
		opts = append(opts, plot.Shaded(shades))
	}
	return plot.Sizes(n.Names, opts...), nil
}

func plotShards(ctx context.Context, s *Site, q *query, _ *meter) (*plot.Picture, error) {
	it, err := s.item(ctx, q)
	if err != nil {
		return nil, err
	}
	if it.Item.Kind != inspect.KindTensor {
		return nil, badRequest(quote(it.Item.FQN)+" is an object, not a tensor", "")
	}
	return plot.Shards(it.Item, it.Chunks, s.about(q, "c")), nil
}

func plotHistogram(ctx context.Context, s *Site, q *query, m *meter) (*plot.Picture, error) {
	opts := q.counts()
	t, err := s.stats(ctx, q, m)
	if err != nil {
		return nil, err
	}
	return plot.Histogram(t, append(opts, s.about(q, "c"))...), nil
}

func plotHeat(ctx context.Context, s *Site, q *query, _ *meter) (*plot.Picture, error) {
	show := q.choice("show", plot.ShowMean, plot.ShowMin, plot.ShowMax, plot.ShowAbs)
	h, err := s.heat(ctx, q)
	if err != nil {
		return nil, err
	}
	return plot.Heat(h, plot.Show(show), s.about(q, "c")), nil
}

func plotChanges(ctx context.Context, s *Site, q *query, m *meter) (*plot.Picture, error) {
	c, err := s.compare(ctx, q, m)
	if err != nil {
		return nil, err
	}
	return plot.Changes(c.items, s.about(q, "a", "b")), nil
}

func plotOverlay(ctx context.Context, s *Site, q *query, m *meter) (*plot.Picture, error) {
	opts := q.counts()
	o, err := s.overlay(ctx, q, m)
	if err != nil {
		return nil, err
	}
	return plot.Overlay(o, s.label(q.text("a")), s.label(q.text("b")), opts...), nil
}

func plotTimeline(ctx context.Context, s *Site, q *query, _ *meter) (*plot.Picture, error) {
	t, err := s.timeline(ctx, q)
	if err != nil {
		return nil, err
	}
	return plot.Timeline(t, s.about(q, "c")), nil
}

// measures are the numbers that a chart over the steps can show.
var measures = map[string]struct {
	title, axis string
	get         func(t *steps) [][]inspect.Number
}{
	"l2":        {"Norm of each layer", "norm (L2)", func(t *steps) [][]inspect.Number { return t.L2 }},
	"mean":      {"Mean of each layer", "mean", func(t *steps) [][]inspect.Number { return t.Mean }},
	"abs_max":   {"Largest magnitude of each layer", "largest absolute value", func(t *steps) [][]inspect.Number { return t.AbsMax }},
	"nan_share": {"Share of NaN in each layer", "share of elements that are NaN", func(t *steps) [][]inspect.Number { return t.NaNShare }},
}

func plotSteps(ctx context.Context, s *Site, q *query, m *meter) (*plot.Picture, error) {
	measure := measures[q.choice("measure", "l2", "mean", "abs_max", "nan_share")]
	t, err := s.steps(ctx, q, m)
	if err != nil {
		return nil, err
	}
	byStep := measure.get(t)
	values := make([][]float64, len(t.Layers))
	for i := range values {
		values[i] = make([]float64, len(byStep))
		for j := range byStep {
			values[i][j] = float64(byStep[j][i])
		}
	}
	return plot.Lines(measure.title, measure.axis, places(t.Steps), t.Layers, values, plot.About(s.redact(s.opts.Path))), nil
}

// places returns where steps are on an axis: the steps, or their numbers if one of them is unknown.
func places(all []step) []float64 {
	known := !slices.ContainsFunc(all, func(x step) bool { return x.Step == nil })
	at := make([]float64, len(all))
	for i := range all {
		at[i] = float64(i)
		if known {
			at[i] = float64(*all[i].Step)
		}
	}
	return at
}

// numbers are the measures of a tensor over the steps that are drawn as a line.
var numbers = map[string]struct {
	axis string
	get  func(h *history) []inspect.Number
}{
	"l2":        {"norm (L2)", func(h *history) []inspect.Number { return h.L2 }},
	"mean":      {"mean", func(h *history) []inspect.Number { return h.Mean }},
	"std":       {"standard deviation", func(h *history) []inspect.Number { return h.Std }},
	"abs_max":   {"largest absolute value", func(h *history) []inspect.Number { return h.AbsMax }},
	"nan_share": {"share of elements that are NaN", func(h *history) []inspect.Number { return h.NaNShare }},
}

func plotHistory(ctx context.Context, s *Site, q *query, m *meter) (*plot.Picture, error) {
	opts, measure := q.counts(), q.choice("measure", "histogram", "l2", "mean", "std", "abs_max", "nan_share")
	h, err := s.history(ctx, q, m)
	if err != nil {
		return nil, err
	}
	opts = append(opts, plot.About(s.redact(s.opts.Path)))
	if measure != "histogram" {
		n := numbers[measure]
		values := make([]float64, len(h.Steps))
		for i, v := range n.get(h) {
			values[i] = float64(v)
		}
		return plot.Lines(h.Name, n.axis, places(h.Steps), []string{n.axis}, [][]float64{values}, opts...), nil
	}
	labels := make([]string, len(h.Steps))
	for i, x := range h.Steps {
		labels[i] = x.ID
		if x.Step != nil {
			labels[i] = strconv.FormatInt(*x.Step, 10)
		}
	}
	return plot.HistogramOverTime(h.Name, labels, h.Histogram, opts...), nil
}

// plotMetrics draws the metrics of the checkpoints of the current line.
func plotMetrics(ctx context.Context, s *Site, q *query, _ *meter) (*plot.Picture, error) {
	keep := q.pattern("select")
	if q.err != nil {
		return nil, q.err
	}

	line, err := s.line(ctx)
	if err != nil {
		return nil, err
	}

	chosen := strings.FieldsFunc(q.text("names"), func(r rune) bool { return r == '\n' })
	all := map[string][]float64{}
	steps := make([]step, len(line))
	for i := range line {
		steps[i] = step{ID: line[i].Name, Step: line[i].Step}
		for name, v := range line[i].Metrics {
			if keep != nil && !keep(name) || len(chosen) > 0 && !slices.Contains(chosen, name) {
				continue
			}
			if all[name] == nil {
				all[name] = slices.Repeat([]float64{math.NaN()}, len(line))
			}
			if all[name][i] = v; math.IsNaN(v) {
				all[name][i] = math.Inf(1) // not finite, but there
			}
		}
	}

	names := slices.Sorted(maps.Keys(all))
	values := make([][]float64, len(names))
	for i, name := range names {
		values[i] = all[name]
	}
	return plot.Metrics(places(steps), names, values, plot.About(s.redact(s.opts.Path))), nil
}

func plotRun(ctx context.Context, s *Site, _ *query, _ *meter) (*plot.Picture, error) {
	log, err := s.run(ctx, 0)
	if err != nil {
		return nil, err
	}
	removes := func(v *run.LoggedVerdict) bool { return v != nil && v.Outcome == run.WouldRemove }
	var points []plot.RunPoint
	for i := range log.Checkpoints {
		c := &log.Checkpoints[i]
		p := plot.RunPoint{Label: c.Name, Step: c.Step, LocalRemoved: removes(c.Verdict), RemoteRemoved: removes(c.RemoteVerdict)}
		if c.Local != nil {
			p.Local = c.Local.Bytes
		}
		if c.Remote != nil {
			p.Remote = c.Remote.Bytes
		}
		points = append(points, p)
	}
	return plot.Run(points, plot.About(s.redact(s.opts.Path))), nil
}
