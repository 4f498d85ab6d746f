package collective

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// interruption is why a Comm is broken.
type interruption struct {
	ranks []int // at fault
	err   error
}

func (i *interruption) Error() string { return i.of("").Error() }

// of returns the error of a call that the interruption ended.
func (i *interruption) of(op group.Op) error {
	return &group.Error{Op: op, Ranks: i.ranks, Err: fmt.Errorf("%w: %w", i.err, ErrBroken)}
}

// activity is a call that runs.
type activity struct {
	cancel context.CancelCauseFunc
	wide   bool
}

// breakdown makes the Comm unusable, ends the calls that run and lets those
// know who may wait for this rank. It returns why the Comm is broken, which may
// have happened before.
//
// Whoever waits within a call waits for one of the peers. So word of a broken
// Comm follows the chains of waiting ranks to their ends, although ranks that
// are in no call do not pass it on.
func (c *Comm) breakdown(why *interruption) *interruption {
	c.mu.Lock()
	if c.broken != nil {
		defer c.mu.Unlock()
		return c.broken
	}
	c.broken = why
	peers := c.peers
	for _, a := range c.active {
		if a.wide {
			peers = c.others()
		}
		a.cancel(why)
	}
	c.mu.Unlock()
	c.notify(peers, why)
	return why
}

// others returns all other ranks.
func (c *Comm) others() []int {
	out := make([]int, 0, c.size-1)
	for d := 1; d < c.size; d++ {
		out = append(out, c.at(d))
	}
	return out
}

// notify tells peers that the Comm is broken. A rank sends a peer one notice at
// most, so that a Messenger takes it without waiting.
func (c *Comm) notify(peers []int, why *interruption) {
	notice := encodeNotice(why)
	for _, p := range peers {
		_ = c.m.Send(context.Background(), p, noticeTag, notice) // who is gone needs none
	}
}

func encodeNotice(why *interruption) []byte {
	var w wire.Writer
	w.Uvarint(uint64(len(why.ranks)))
	for _, r := range why.ranks {
		w.Uvarint(uint64(r))
	}
	b, err := group.NewRemoteError(why.err).MarshalBinary()
	if err != nil { // an error from afar that is out of bounds; say the same in fewer words
		b, _ = group.NewRemoteError(errors.New("interrupted")).MarshalBinary()
	}
	w.Bytes(b)
	return w.B
}

// decodeNotice reads what encodeNotice wrote, in a group of so many ranks.
func decodeNotice(b []byte, ranks int) (*interruption, error) {
	r := wire.NewReader(b)
	why := new(interruption)
	for range r.Count(1) {
		why.ranks = append(why.ranks, r.CountMax(ranks-1))
	}
	e := new(group.RemoteError)
	if err := e.UnmarshalBinary(r.Bytes()); err != nil {
		r.Fail("notice: %w", err)
	}
	why.err = e
	return why, r.Done()
}

// Renew makes a Comm of the same ranks and options, in a group of its own: all
// ranks must call it. It is for a Comm that is broken, as long as no rank is
// gone.
func (c *Comm) Renew(ctx context.Context) (*Comm, error) {
	all := make([]int, c.size)
	for r := range all {
		all[r] = r
	}
	g, err := c.g.Sub(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("renew communicator: %w", err)
	}
	return New(g, &c.o)
}
