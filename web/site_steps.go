package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
)

// steps is the answer of /api/steps: statistics of each layer at each step of a run.
type steps struct {
	Steps  []step   `json:"steps"`
	Layers []string `json:"layers"`
	// The numbers are by step, and then by layer: null if the step does not have the layer,
	// or the number is undefined.
	L2       [][]inspect.Number `json:"l2"`
	Mean     [][]inspect.Number `json:"mean"`
	AbsMax   [][]inspect.Number `json:"abs_max"`
	NaNShare [][]inspect.Number `json:"nan_share"`
}

// step is a checkpoint of a run.
type step struct {
	ID   string    `json:"id"`
	Step *int64    `json:"step"`
	Time time.Time `json:"time,omitzero"`
	// Error says why the checkpoint has no numbers.
	Error string `json:"error"`
}

// layerRow has the numbers of a layer that the answer needs. It is kept in files: a change
// of its fields, or of their meaning, needs another stepsVersion.
type layerRow struct {
	Layer    string `json:"layer"`
	L2       exact  `json:"l2"`
	Mean     exact  `json:"mean"`
	AbsMax   exact  `json:"abs_max"`
	NaNShare exact  `json:"nan_share"`
}

// stepsVersion is part of the keys of rows that are kept.
const stepsVersion = 2

// exact is a float64 that keeps its bits in JSON, also if it is not finite.
type exact float64

// MarshalText implements encoding.TextMarshaler.
func (x exact) MarshalText() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(x), 'g', -1, 64), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (x *exact) UnmarshalText(b []byte) error {
	f, err := strconv.ParseFloat(string(b), 64)
	*x = exact(f)
	return err
}

// steps answers /api/steps.
func (s *Site) steps(ctx context.Context, q *query, m *meter) (*steps, error) {
	keep, of := q.pattern("select"), q.of()
	if q.err != nil {
		return nil, q.err
	}
	line, err := s.line(ctx)
	if err != nil {
		return nil, err
	}

	p := perStep[[]layerRow]{
		key:     func(version, saveID string) string { return keyOf(stepsVersion, version, saveID, q.text("select"), of) },
		weight:  func(c *run.Logged) int64 { return c.Bytes },
		compute: func(o *Opened) ([]layerRow, error) { return computeLayers(ctx, o, keep, of, m) },
		check: func(layers []layerRow) error { // the other checkpoints are not read in vain
			if n := len(layers); n*len(line) > s.mostRows {
				return tooManyLayers(n, len(line))
			}
			return nil
		},
	}
	out := &steps{}
	var rows [][]layerRow
	if out.Steps, rows, err = p.over(ctx, s, line, m); err != nil {
		return nil, err
	}
	return out, out.fill(rows)
}

// line returns the checkpoints of the current line of the run, the oldest first.
func (s *Site) line(ctx context.Context) ([]run.Logged, error) {
	log, err := s.run(ctx, 0)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(log.Checkpoints), func(c run.Logged) bool { return c.Left }), nil
}

// perStep is something that is computed about each checkpoint of a run, and kept.
type perStep[T any] struct {
	key     func(version, saveID string) string
	weight  func(c *run.Logged) int64 // the bytes for which a checkpoint counts in the progress
	compute func(o *Opened) (T, error)
	check   func(v T) error // nil: any result is fine
}

// over computes p about each checkpoint of a line. Each result is kept when it is computed, so
// that a request after a cancelled one goes on from there. A checkpoint with an error has the
// zero value.
func (p *perStep[T]) over(ctx context.Context, s *Site, line []run.Logged, m *meter) ([]step, []T, error) {
	done, err := s.working.take(ctx, m)
	if err != nil {
		return nil, nil, err
	}
	defer done()

	var total int64
	for i := range line {
		total += p.weight(&line[i])
	}
	m.split(total)

	all, values := []step{}, []T{}
	for i := range line {
		c := &line[i]
		m.begin(c.Name, p.weight(c))
		v, err := p.of(ctx, s, c)
		if errors.Is(err, storage.ErrChanged) {
			v, err = p.of(ctx, s, c)
		}
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		st := step{ID: c.Name, Step: c.Step, Time: c.Time}
		if err != nil {
			st.Error = s.answerOf(err).Message
		} else if p.check != nil {
			if err := p.check(v); err != nil {
				return nil, nil, err
			}
		}
		all, values = append(all, st), append(values, v)
	}
	return all, values, nil
}

// of returns p of one checkpoint.
func (p *perStep[T]) of(ctx context.Context, s *Site, c *run.Logged) (zero T, err error) {
	if c.Copies == "" {
		return zero, errors.New(incompleteText(c))
	}
	o, err := s.opts.Open(ctx, c.Name, false)
	if err != nil {
		return zero, s.lost(c.Name, err)
	}
	defer o.Close()

	version, key := "", ""
	if o.Version != nil {
		if version, err = o.Version(ctx); err != nil {
			return zero, s.lost(c.Name, err)
		}
		key = p.key(version, o.Info().SaveID)
		if v, ok := load[T](s.cache, key); ok {
			return v, nil
		}
	}

	v, err := p.compute(o)
	if key == "" {
		return v, err
	}

	now, lost := o.Version(ctx)
	if errors.Is(lost, fs.ErrNotExist) || lost == nil && now != version {
		return zero, fmt.Errorf("%s: %w", c.Name, storage.ErrChanged)
	}
	if err := cmp.Or(err, lost); err != nil {
		return zero, err
	}

	store(s.cache, key, v)
	return v, nil
}

// incompleteText says why a checkpoint cannot be read.
func incompleteText(c *run.Logged) string {
	for _, copied := range []*run.Copy{c.Local, c.Remote} {
		if copied != nil && copied.Problem != "" {
			return copied.Problem
		}
	}
	return "the checkpoint is not complete"
}

func computeLayers(ctx context.Context, o *Opened, selected func(string) bool, of inspect.Choice, m *meter) ([]layerRow, error) {
	md, err := o.Metadata(ctx)
	if err != nil {
		return nil, err
	}
	inRole := of.Keep(md)
	keep := func(fqn string) bool {
		return inRole(fqn) && !inspect.IsCounter(fqn) && (selected == nil || selected(fqn))
	}
	if err := md.CheckWhole(keep); err != nil {
		return nil, err
	}
	entries := slices.DeleteFunc(inspect.Select(md), func(e *meta.Entry) bool { return e.Tensor == nil || !keep(e.FQN) })
	r, err := inspect.Stats(ctx, o, entries, &inspect.StatsOptions{Total: m.total, Progress: m.add})
	if err != nil {
		return nil, err
	}
	rows := []layerRow{}
	for _, l := range inspect.Layers(r) {
		rows = append(rows, layerRow{l.Layer, exact(l.L2), exact(l.Mean), exact(l.AbsMax), exact(l.NaNShare)})
	}
	return rows, nil
}

func tooManyLayers(layers, checkpoints int) error {
	return badRequest(fmt.Sprintf("there are %d layers in %d checkpoints: more than a chart can show", layers, checkpoints), "select fewer names by a pattern, such as layers.0.*")
}

// fill sets the layers and the numbers.
func (t *steps) fill(rows [][]layerRow) error {
	at := map[string]int{}
	t.Layers = []string{}
	for _, layers := range slices.Backward(rows) { // the newest checkpoint has the order that counts
		for _, l := range layers {
			if _, ok := at[l.Layer]; !ok {
				at[l.Layer] = len(t.Layers)
				t.Layers = append(t.Layers, l.Layer)
			}
		}
	}

	if n := len(t.Layers) * len(rows); n > maxStepRows {
		return tooManyLayers(len(t.Layers), len(rows))
	}

	undefined := inspect.Number(math.NaN())
	for _, c := range []struct {
		to  *[][]inspect.Number
		get func(l *layerRow) exact
	}{
		{&t.L2, func(l *layerRow) exact { return l.L2 }},
		{&t.Mean, func(l *layerRow) exact { return l.Mean }},
		{&t.AbsMax, func(l *layerRow) exact { return l.AbsMax }},
		{&t.NaNShare, func(l *layerRow) exact { return l.NaNShare }},
	} {
		*c.to = make([][]inspect.Number, len(rows))
		for i, layers := range rows {
			line := slices.Repeat([]inspect.Number{undefined}, len(t.Layers))
			for j := range layers {
				line[at[layers[j].Layer]] = inspect.Number(c.get(&layers[j]))
			}
			(*c.to)[i] = line
		}
	}
	return nil
}
