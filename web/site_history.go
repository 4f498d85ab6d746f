package web

import (
	"context"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/run"
)

// history is the answer of /api/history: statistics of one tensor at each step of a run.
type history struct {
	Name  string `json:"name"`
	Steps []step `json:"steps"`
	inspect.History
}

// historyVersion is part of the keys of statistics that are kept. A change of
// inspect.TensorStats, or of its meaning, needs another one.
const historyVersion = "history 1"

// history answers /api/history.
func (s *Site) history(ctx context.Context, q *query, m *meter) (*history, error) {
	name, o := q.need("name"), q.histogram()
	if q.err != nil {
		return nil, q.err
	}
	line, err := s.line(ctx)
	if err != nil {
		return nil, err
	}
	size, err := s.sizeOf(ctx, line, q.text("in"), name)
	if err != nil {
		return nil, err
	}

	p := perStep[*inspect.TensorStats]{
		key:     func(version, saveID string) string { return keyOf(historyVersion, version, saveID, name, o.Log2) },
		weight:  func(*run.Logged) int64 { return size },
		compute: func(c *Opened) (*inspect.TensorStats, error) { return tensorStats(ctx, c, name, o, m) },
	}
	steps, all, err := p.over(ctx, s, line, m)
	if err != nil {
		return nil, err
	}
	return &history{name, steps, *inspect.NewHistory(all, o.Buckets)}, nil
}

// sizeOf returns the bytes of a tensor in the checkpoint id. If id is empty, that is the
// newest complete one of the line.
func (s *Site) sizeOf(ctx context.Context, line []run.Logged, id, name string) (size int64, err error) {
	for i := range line {
		if c := &line[len(line)-1-i]; id == "" && c.Copies != "" {
			id = c.Name
		}
	}
	if id == "" {
		return 0, &Error{Kind: KindNotFound, Message: "no checkpoint of the run is complete"}
	}
	err = s.with(ctx, id, false, func(h *handle) error {
		_, e, err := h.tensor(ctx, name)
		if err == nil {
			size = e.NumBytes()
		}
		return err
	})
	return size, err
}

// tensorStats returns the statistics of a tensor, or nil if the checkpoint does not have it.
func tensorStats(ctx context.Context, c *Opened, name string, o inspect.StatsOptions, m *meter) (*inspect.TensorStats, error) {
	md, err := c.Metadata(ctx)
	if err != nil {
		return nil, err
	}
	if lost, ok := md.FindMissing(name); ok {
		return nil, lost.Err
	}
	e, ok := md.Find(name)
	if !ok || e.Tensor == nil {
		return nil, nil
	}
	o.Total, o.Progress = m.total, m.add
	r, err := inspect.Stats(ctx, c, []*meta.Entry{e}, &o)
	if err != nil {
		return nil, err
	}
	return &r.Tensors[0], nil
}
