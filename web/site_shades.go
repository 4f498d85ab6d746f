package web

import (
	"context"
	"math"
	"net/url"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/inspect/plot"
)

// shades returns the numbers that the page shows as colours of a map.
func (s *Site) shades(ctx context.Context, q *query, m *meter, n *names, color string) (*plot.Shades, error) {
	out := &plot.Shades{Values: make([]float64, len(n.Entries)), NaN: make([]bool, len(n.Entries)), Inf: make([]bool, len(n.Entries))}
	if color == "change" {
		return out, s.shadeChanges(ctx, q, m, n, out)
	}
	t, err := s.tensors(ctx, q, m)
	if err != nil {
		return nil, err
	}
	if len(t.L2) != len(n.Entries) {
		return nil, &Error{Kind: KindGone, Message: "the checkpoint was replaced meanwhile", Hint: "try again"}
	}

	out.Title, out.Log = "root mean square of the elements", true
	if color == "nan" {
		out.Title, out.Log, out.Share = "share of elements that are NaN or infinite", false, true
	}
	for i := range n.Entries {
		elements := 1.0
		for _, d := range n.Forms[n.Form[i]].Shape {
			elements *= float64(d)
		}
		out.NaN[i], out.Inf[i] = t.NaN[i] > 0, t.Inf[i] > 0
		switch odd := float64(t.NaN[i] + t.Inf[i]); {
		case color == "norm":
			out.Values[i] = float64(t.L2[i]) / math.Sqrt(elements)
		case t.L2[i].None() && odd == 0:
			out.Values[i] = math.NaN()
		default:
			out.Values[i] = odd / elements
		}
	}
	return out, nil
}

// shadeChanges sets the relative change of each tensor since another checkpoint.
func (s *Site) shadeChanges(ctx context.Context, q *query, m *meter, n *names, out *plot.Shades) error {
	pair := newQuery(url.Values{"a": {q.need("against")}, "b": {q.need("c")}, "of": {string(q.of())}}, "a", "b", "of")
	if q.err != nil {
		return q.err
	}
	c, err := s.compare(ctx, pair, m)
	if err != nil {
		return err
	}
	byName := make(map[string]*inspect.Compared, len(c.items))
	for i := range c.items {
		byName[c.items[i].FQN] = &c.items[i]
	}

	out.Title, out.Log = "relative change ‖B−A‖ / ‖A‖ since "+s.redact(s.label(q.text("against"))), true
	for i, e := range n.Entries {
		out.Values[i] = math.NaN()
		it := byName[e.FQN]
		switch {
		case it == nil:
		case it.Values != nil && it.Values.Change != nil:
			out.Values[i], out.NaN[i] = float64(it.Values.RelL2), it.Values.NaNs > 0
		case it.Status == inspect.StatusIdentical:
			out.Values[i] = 0
		}
	}
	return nil
}
