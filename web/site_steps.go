package web

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/run"
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

// layerRow is what the answer needs of a layer. It is kept in files: a change of its fields,
// or of their meaning, needs another stepsVersion.
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

// steps answers /api/steps about the checkpoints of the current line. It keeps the numbers of each
// checkpoint when they are computed, so that a request after a cancelled one goes on from there.
func (s *Site) steps(ctx context.Context, q *query, m *meter) (*steps, error) {
	keep, of := q.pattern("select"), q.of()
	if q.err != nil {
		return nil, q.err
	}
	log, err := s.run(ctx)
	if err != nil {
		return nil, err
	}
	done, err := s.working.take(ctx, m)
	if err != nil {
		return nil, err
	}
	defer done()
	line := slices.DeleteFunc(slices.Clone(log.Checkpoints), func(c run.Logged) bool { return c.Left })
	var total int64
	for i := range line {
		total += line[i].Bytes
	}
	m.split(total)
	out := &steps{Steps: []step{}}
	var rows [][]layerRow
	for i := range line {
		c := &line[i]
		m.begin(c.Name, c.Bytes)
		layers, err := s.layersOf(ctx, c, keyOf(q.text("select"), of), keep, of, m)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		st := step{ID: c.Name, Step: c.Step, Time: c.Time}
		if err != nil {
			st.Error = s.answerOf(err).Message
		}
		out.Steps = append(out.Steps, st)
		rows = append(rows, layers)
		if n := len(layers); n*len(line) > s.mostRows { // the other checkpoints are not read in vain
			return nil, tooManyLayers(n, len(line))
		}
	}
	return out, out.fill(rows)
}

// layersOf returns the rows of a checkpoint. names identifies the names that keep and of choose.
func (s *Site) layersOf(ctx context.Context, c *run.Logged, names string, keep func(string) bool, of inspect.Choice, m *meter) ([]layerRow, error) {
	if c.Copies == "" {
		return nil, errors.New(incompleteText(c))
	}
	o, err := s.opts.Open(ctx, c.Name, false)
	if err != nil {
		return nil, s.lost(c.Name, err)
	}
	defer o.Close()
	version, key := "", ""
	if o.Version != nil {
		if version, err = o.Version(ctx); err != nil {
			return nil, s.lost(c.Name, err)
		}
		key = keyOf(stepsVersion, version, o.Info().SaveID, names)
		if rows, ok := load[[]layerRow](s.cache, key); ok {
			return rows, nil
		}
	}
	rows, err := computeLayers(ctx, o, keep, of, m)
	if err != nil || key == "" {
		return nil, err
	}
	if now, err := o.Version(ctx); err != nil || now != version {
		return nil, errors.New("the checkpoint was removed or replaced meanwhile")
	}
	store(s.cache, key, rows)
	return rows, nil
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
