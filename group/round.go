package group

import (
	"context"
	"errors"
	"fmt"
)

// round is one rank's part in a step. Its calls on the group are the same on
// all ranks, since they depend on nothing but the outcomes of earlier ones,
// which are: that is why no rank is left waiting.
type round struct {
	g    Group
	step string
	// err is what went wrong on this rank.
	err error
}

// attempt runs fn and returns the message that tells how it went.
func (r *round) attempt(ctx context.Context, fn func() ([]byte, error)) []byte {
	var v []byte
	err := ContextError(ctx)
	if err == nil {
		err = Catch(func() (err error) {
			v, err = fn()
			return err
		})
	}
	if err != nil {
		r.err = err
		return failures{r.g.Rank(): NewRemoteError(err)}.message()
	}
	return valueMessage(v)
}

// tally returns the failures that the ranks' messages tell of.
func (r *round) tally(msgs [][]byte) failures {
	all := make(failures)
	for rank, msg := range msgs {
		if _, ok := valueOf(msg); ok {
			continue
		}
		f, err := failuresOf(msg, len(msgs))
		if err != nil || len(f) != 1 || f[rank] == nil {
			f = failures{rank: NewRemoteError(fmt.Errorf("outcome of the step: %w", errMalformed))}
		}
		all[rank] = f[rank]
	}
	return all.causes()
}

// settle tells rank 0 how this rank fared, and every rank how all did.
func (r *round) settle(ctx context.Context, msg []byte) error {
	msgs, err := r.g.Gather(ctx, 0, msg)
	if err != nil {
		return r.broken(err)
	}
	var verdict []byte
	if f := r.tally(msgs); len(f) > 0 {
		verdict = f.message()
	}
	verdict, err = r.g.Broadcast(ctx, 0, verdict)
	if err != nil {
		return r.broken(err)
	}
	if _, ok := valueOf(verdict); !ok {
		return r.failed(verdict)
	}
	return nil
}

// failed returns the error that a message of failures stands for. The message
// is the same on all ranks.
func (r *round) failed(msg []byte) error {
	e := &StepError{Step: r.step, Failures: make(map[int]error)}
	f, err := failuresOf(msg, r.g.Size())
	if err != nil {
		e.Failures[0] = fmt.Errorf("verdict on the step: %w", err)
	}
	for rank, re := range f {
		if rank == r.g.Rank() {
			re.local = r.err
		}
		e.Failures[rank] = re
	}
	return e
}

// broken returns the error of a step whose collective call failed.
func (r *round) broken(err error) error {
	e := &StepError{Step: r.step, Failures: make(map[int]error)}
	ge, ok := errors.AsType[*Error](err)
	if !ok || len(ge.Ranks) == 0 {
		e.Failures[r.g.Rank()] = err
		return e
	}
	for _, rank := range ge.Ranks {
		e.Failures[rank] = ge.Err
	}
	return e
}
