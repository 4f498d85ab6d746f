package web

import (
	"context"
	"math"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

// tensors is the answer of /api/tensors: statistics of each row of /api/names.
type tensors struct {
	// L2 is the norm of the finite elements. It is null for objects and counters.
	L2 []inspect.Number `json:"l2"`
	// NaN and Inf count elements. Inf is both infinities.
	NaN []int64 `json:"nan"`
	Inf []int64 `json:"inf"`
}

// tensorRow has the numbers of a name that the answer needs. It is kept in files, under
// tensorsVersion.
type tensorRow struct {
	At  int   `json:"at"` // the row
	L2  exact `json:"l2"`
	NaN int64 `json:"nan"`
	Inf int64 `json:"inf"`
}

const tensorsVersion = 2

// tensors answers /api/tensors.
func (s *Site) tensors(ctx context.Context, q *query, m *meter) (*tensors, error) {
	of := q.of()
	return ofCheckpoint(ctx, s, q, func(h *handle) (*tensors, error) {
		key := keyOf("tensors", tensorsVersion, h.identity(), of)
		return cached(ctx, s, m, key, func(t *tensors) int { return len(t.L2) }, func() (*tensors, error) {
			n, err := h.names(ctx, of)
			if err != nil {
				return nil, err
			}
			cache := s.cache
			if h.checkpoint().Version == nil {
				cache = nil // the key would not tell it from another checkpoint
			}
			rows, ok := load[[]tensorRow](cache, key)
			if !ok {
				if rows, err = computeTensors(ctx, h, n.Entries, of, m); err != nil {
					return nil, err
				}
				if err := h.check(ctx, 0); err != nil {
					return nil, err
				}
				store(cache, key, rows)
			}
			return newTensors(len(n.Entries), rows), nil
		})
	})
}

func newTensors(names int, rows []tensorRow) *tensors {
	t := &tensors{make([]inspect.Number, names), make([]int64, names), make([]int64, names)}
	for i := range t.L2 {
		t.L2[i] = inspect.Number(math.NaN())
	}
	for _, r := range rows {
		if r.At < names {
			t.L2[r.At], t.NaN[r.At], t.Inf[r.At] = inspect.Number(r.L2), r.NaN, r.Inf
		}
	}
	return t
}

func computeTensors(ctx context.Context, h *handle, all []*meta.Entry, of inspect.Choice, m *meter) ([]tensorRow, error) {
	md, err := h.metadata(ctx)
	if err != nil {
		return nil, err
	}
	if err := md.CheckWhole(of.Keep(md)); err != nil {
		return nil, err
	}
	var rows []tensorRow
	var entries []*meta.Entry
	for i, e := range all {
		if e.Tensor != nil && !inspect.IsCounter(e.FQN) {
			rows, entries = append(rows, tensorRow{At: i}), append(entries, e)
		}
	}

	r, err := inspect.Stats(ctx, h.checkpoint(), entries, &inspect.StatsOptions{Total: m.total, Progress: m.add})
	if err != nil {
		return nil, err
	}
	for i := range rows {
		t := &r.Tensors[i]
		rows[i].L2, rows[i].NaN, rows[i].Inf = exact(t.L2), t.NaN, t.PosInf+t.NegInf
	}
	return rows, nil
}
