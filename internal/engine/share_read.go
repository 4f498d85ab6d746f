package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

var _ storage.Receiver = (*sharing)(nil)

// readAll reads what this rank reads: first what others wait for, in as many
// calls as the memory for it demands, and with the last of it the rest.
func (s *sharing) readAll(ctx context.Context) (storage.ReadStats, error) {
	var stats storage.ReadStats
	for rest := s.mine; ; {
		n, weight := s.round(rest)
		if s.stage.Acquire(ctx, weight) != nil {
			return stats, context.Cause(ctx)
		}
		now := rest[:n]
		rest = rest[n:]
		st, err := s.readRound(ctx, now, len(rest) == 0)
		stats.Add(st)
		if err != nil || len(rest) == 0 {
			return stats, err
		}
	}
}

// round returns how many of the pieces are read by one call, and what they take
// of the memory for pieces that cannot be read into their place. It is half of it
// at most, unless a single one takes more, so that a round is read while another
// is sent.
func (s *sharing) round(rest []*piece) (n int, weight int64) {
	for _, p := range rest {
		if !p.direct {
			p.weight = min(p.bytes, s.stageMax)
		}
		if n > 0 && weight+p.weight > s.stageMax/2 {
			break
		}
		n, weight = n+1, weight+p.weight
	}
	return n, weight
}

// readRound reads some pieces, and what the rank reads for itself if it is the
// last round.
func (s *sharing) readRound(ctx context.Context, pieces []*piece, last bool) (storage.ReadStats, error) {
	p := &plan.LoadPlan{PlannerData: s.data.PlannerData}
	s.mu.Lock()
	s.open += len(pieces)
	if last {
		pieces = append(pieces[:len(pieces):len(pieces)], s.alone...)
	}
	for _, c := range pieces {
		k := c.item.Key()
		s.awaited[k] = append(s.awaited[k], c)
		p.Items = append(p.Items, c.item)
	}
	s.mu.Unlock()
	if last {
		for i := range s.data.Items {
			if s.data.Items[i].Kind != plan.KindTensor {
				p.Items = append(p.Items, s.data.Items[i])
			}
		}
	}
	st, err := s.Reader.ReadData(ctx, p, s)
	if err != nil {
		return st, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open > 0 {
		return st, fmt.Errorf("%w: the reader has not handed over %d items of its plan", plan.ErrProtocol, s.open)
	}
	return st, nil
}

// ResolveTensor returns the memory that a part is read into: the planner's, or
// some of its own where that cannot be sent as it is.
func (s *sharing) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.takeAwaited(it)
	if p == nil {
		return nil, fmt.Errorf("%w: the reader asks for an item that is not in its plan, or for the second time", plan.ErrProtocol)
	}
	to := p.to
	if len(p.ranks) > 0 && !p.direct {
		var err error
		if to, err = tensor.New(p.dtype, p.item.Lengths); err != nil {
			return nil, err
		}
	}
	s.resolved[to] = p
	return to, nil
}

// takeAwaited returns a part that the reader will not ask for again, or nil. The
// lock is held.
func (s *sharing) takeAwaited(it *plan.ReadItem) *piece {
	k := it.Key()
	list := s.awaited[k]
	i := slices.IndexFunc(list, func(p *piece) bool { return p.item.Equal(it) })
	if i < 0 {
		return nil
	}
	p := list[i]
	s.awaited[k] = slices.Delete(list, i, i+1)
	return p
}

// CommitTensor takes a part that was read and verified, and passes it on.
func (s *sharing) CommitTensor(_ *plan.ReadItem, t *tensor.Tensor) error {
	s.mu.Lock()
	p := s.resolved[t]
	delete(s.resolved, t)
	if p != nil && len(p.ranks) > 0 {
		s.open--
	}
	s.mu.Unlock()
	switch {
	case p == nil:
		return fmt.Errorf("%w: the reader hands over what it was not given", plan.ErrProtocol)
	case len(p.ranks) == 0:
		return s.commit(p)
	case !p.direct:
		if err := s.fill(p, t); err != nil {
			return err
		}
		if err := s.commit(p); err != nil {
			return err
		}
	}
	p.body, _ = t.Bytes()
	p.crc = crc32c.Update(headSum(p.id, p.bytes), p.body)
	for _, r := range p.ranks {
		s.boxes[r] <- p // has room for all
	}
	return nil
}

// LoadBytes passes a value on.
func (s *sharing) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	return s.dst.LoadBytes(it, codec, data)
}

// sent notes that one more rank has a piece. When all have it, its memory is free
// and, if it is the planner's, handed over: not before, because the planner may
// change it.
func (s *sharing) sent(p *piece) error {
	if p.left.Add(-1) > 0 {
		return nil
	}
	p.body = nil
	if p.direct {
		return s.commit(p)
	}
	s.stage.Release(p.weight)
	return nil
}
