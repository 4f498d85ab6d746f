package collective

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// agree returns the verdict of all ranks on a call. The error is a refusal unless
// all ranks have made the same call with valid arguments.
//
// At step i every rank sends its verdict to the rank 2^i further on, and merges the
// verdict of the rank 2^i before it: after log2(n) steps each rank has the verdict of
// all. The messages do not depend on the call, so ranks that make different calls do
// not wait for messages that never come. Each message is small and the first of its
// sender and tag, so sending does not wait.
func agree(ctx context.Context, c *Comm, tag int, t *task) (verdict, error) {
	mine := voice{rank: c.rank, call: t.call}
	if t.err != nil {
		mine.err = group.NewRemoteError(t.err)
		mine.err.Text = mine.err.Text[:min(len(mine.err.Text), maxVoiceText)]
	}

	v := verdict{voices: []voice{mine}, detail: t.detail}
	if err := ctx.Err(); err != nil {
		return v, err
	}

	for d := 1; d < c.size; d *= 2 {
		out, err := v.encode()
		if err != nil {
			return v, err
		}

		if err := c.m.Send(ctx, c.at(d), tag, out); err != nil {
			return v, err
		}

		in, err := c.m.Recv(ctx, c.at(-d), tag)
		if err != nil {
			return v, err
		}

		heard, err := decodeVerdict(in, c.size)
		if err != nil {
			return v, fmt.Errorf("agreement from rank %d: %w", c.at(-d), err)
		}
		v.merge(&heard)
	}

	if err := v.error(); err != nil {
		return v, refusal{err}
	}
	return v, nil
}

const (
	// maxVoices bounds how many different calls an error lists.
	maxVoices = 4
	// maxVoiceText bounds the text of an error, so that a [group.Messenger] takes a
	// message of maxVoices of them without waiting.
	maxVoiceText = 4 << 10
)

// verdict is the combined opinion of some ranks on a call. Verdicts of overlapping
// sets of ranks can be merged, in any order, so that all ranks end with the same one.
type verdict struct {
	// voices are the different calls, each with the lowest rank that made it, in
	// the order of these ranks; at most the first maxVoices.
	voices []voice
	// detail is a value that ranks may differ in. It is undefined if differs is set.
	detail  uint64
	differs bool
}

// voice is a call that a rank made, or tried to make.
type voice struct {
	rank int
	call call
	err  *group.RemoteError // the error of its arguments, or nil
}

func (v *voice) same(o *voice) bool {
	if v.call != o.call || (v.err == nil) != (o.err == nil) {
		return false
	}
	return v.err == nil || v.err.Text == o.err.Text
}

func (v *verdict) merge(o *verdict) {
	v.differs = v.differs || o.differs || v.detail != o.detail
	for _, n := range o.voices {
		i := slices.IndexFunc(v.voices, func(m voice) bool { return m.same(&n) })
		if i < 0 {
			v.voices = append(v.voices, n)
			continue
		}
		v.voices[i].rank = min(v.voices[i].rank, n.rank)
	}

	slices.SortFunc(v.voices, func(a, b voice) int { return cmp.Compare(a.rank, b.rank) })
	v.voices = v.voices[:min(len(v.voices), maxVoices)]
}

// error returns why the call fails on all ranks, or nil.
func (v *verdict) error() error {
	if len(v.voices) == 1 && v.voices[0].err == nil {
		return nil
	}

	var failed, all []int
	var first error
	var said []string
	for _, m := range v.voices {
		if m.err != nil {
			failed = append(failed, m.rank)
			first = cmp.Or[error](first, m.err)
		}
		all = append(all, m.rank)
		said = append(said, fmt.Sprintf("rank %d called %v", m.rank, m.call))
	}

	e := &group.Error{Op: v.voices[0].call.kind, Ranks: failed, Err: first}
	if first == nil {
		e.Ranks, e.Err = all, fmt.Errorf("%s: %w", strings.Join(said, ", "), group.ErrDisagree)
	}
	return e
}

func (v *verdict) encode() ([]byte, error) {
	var w wire.Writer
	w.Bool(v.differs)
	w.U64(v.detail)
	w.Byte(byte(len(v.voices)))

	for _, m := range v.voices {
		w.Uvarint(uint64(m.rank))
		m.call.encode(&w)
		var b []byte
		if m.err != nil {
			var err error
			if b, err = m.err.MarshalBinary(); err != nil {
				return nil, err
			}
		}

		w.Bytes(b)
	}

	return w.B, nil
}

// decodeVerdict is the inverse of encode, in a group of that size.
func decodeVerdict(b []byte, ranks int) (verdict, error) {
	r := wire.NewReader(b)
	v := verdict{differs: r.Bool(), detail: r.U64()}
	n := int(r.Byte())
	if n < 1 || n > maxVoices {
		r.Fail("%d voices", n)
	}

	for range n {
		m := voice{rank: r.CountMax(ranks - 1), call: decodeCall(r)}
		if b := r.Bytes(); len(b) > 0 {
			m.err = new(group.RemoteError)
			if err := m.err.UnmarshalBinary(b); err != nil {
				r.Fail("voice: %w", err)
			}
		}

		if r.Err() != nil {
			return verdict{}, r.Err()
		}
		v.voices = append(v.voices, m)
	}

	return v, r.Done()
}
