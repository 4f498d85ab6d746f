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

// payload is what travels with the messages by which ranks agree. Its methods
// are called once for each step, only as long as all have made the same call.
type payload interface {
	// outgoing returns what goes to the rank that is that many ranks further on.
	outgoing(distance int) []byte
	// incoming takes what comes from the rank that is as many ranks before.
	incoming(distance int, b []byte) error
}

// agree returns what all ranks have to say about a call, which has failed with a
// refusal unless they have all made the same and can.
//
// At step i every rank tells the one that is 2^i ranks further on what it knows,
// and hears the same from the one as far before: after log2(n) steps each knows
// of all. What is sent does not depend on the call, so ranks that make different
// ones do not wait for what never comes. Each message is the first of its sender
// and tag, and small, so that sending does not wait.
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
		if err := tell(ctx, c, tag, d, &v, t); err != nil {
			return v, err
		}
		if err := hear(ctx, c, tag, d, &v, t); err != nil {
			return v, err
		}
	}
	if err := v.error(); err != nil {
		return v, refusal{err}
	}
	return v, nil
}

func tell(ctx context.Context, c *Comm, tag, distance int, v *verdict, t *task) error {
	var w wire.Writer
	if err := v.encode(&w); err != nil {
		return err
	}
	if t.payload != nil && v.agreed() {
		w.B = append(w.B, t.payload.outgoing(distance)...)
	}
	return c.m.Send(ctx, c.at(distance), tag, w.B)
}

func hear(ctx context.Context, c *Comm, tag, distance int, v *verdict, t *task) error {
	from := c.at(-distance)
	b, err := c.m.Recv(ctx, from, tag)
	if err != nil {
		return err
	}
	r := wire.NewReader(b)
	heard, err := decodeVerdict(r, c.size)
	if err != nil {
		return fmt.Errorf("agreement from rank %d: %w", from, err)
	}
	v.merge(&heard)
	if t.payload == nil || !v.agreed() {
		return nil
	}
	if err := t.payload.incoming(distance, r.Raw(r.Len())); err != nil {
		return fmt.Errorf("agreement from rank %d: %w", from, err)
	}
	return nil
}

// blocks is a payload of one block of each rank, all of one size. After the
// agreement every rank has all of them.
type blocks struct {
	ranks int
	size  int
	// mem holds this rank's block, that of the rank before it, and so on.
	mem []byte
}

func newBlocks(ranks int, own []byte) *blocks {
	b := &blocks{ranks: ranks, size: len(own), mem: make([]byte, ranks*len(own))}
	copy(b.mem, own)
	return b
}

func (b *blocks) outgoing(distance int) []byte {
	return b.mem[:min(distance, b.ranks-distance)*b.size]
}

func (b *blocks) incoming(distance int, in []byte) error {
	room := b.mem[distance*b.size:]
	room = room[:min(len(room), distance*b.size)]
	if len(in) != len(room) {
		return fmt.Errorf("%d bytes of elements, not %d: %w", len(in), len(room), wire.ErrMalformed)
	}
	copy(room, in)
	return nil
}

// of returns the block of the rank that is that many ranks before this one.
func (b *blocks) of(distance int) []byte { return b.mem[distance*b.size : (distance+1)*b.size] }

// token is a payload that one rank has at first and all have at last.
type token struct {
	ranks int
	// after is how far this rank is from the one that has it at first.
	after int
	mem   []byte
}

func (k *token) outgoing(distance int) []byte {
	if k.after < distance && k.after+distance < k.ranks {
		return k.mem
	}
	return nil
}

func (k *token) incoming(distance int, in []byte) error {
	if k.after < distance || k.after >= 2*distance {
		return nil
	}
	if len(in) != len(k.mem) {
		return fmt.Errorf("%d bytes of elements, not %d: %w", len(in), len(k.mem), wire.ErrMalformed)
	}
	copy(k.mem, in)
	return nil
}

// maxVoices bounds how many different calls an error lists.
const maxVoices = 4

// maxVoiceText bounds what a rank says of an error, so that messages of maxVoices
// of them are ones that a [group.Messenger] takes without waiting.
const maxVoiceText = 4 << 10

// verdict is what some ranks together have to say about a call. Verdicts of
// overlapping sets of ranks can be merged, in any order, so that all ranks end
// with the same one.
type verdict struct {
	// voices are the different calls, each with the lowest rank that made it, in
	// the order of these; those of the lowest ranks if there are more than
	// maxVoices.
	voices []voice
	// detail is what ranks may differ in, which all want to know. It says
	// nothing if differs is set.
	detail  uint64
	differs bool
}

// voice is a call that a rank made, or could not make.
type voice struct {
	rank int
	call call
	err  *group.RemoteError // what was wrong with its arguments, or nil
}

func (v *voice) same(o *voice) bool {
	if v.call != o.call || (v.err == nil) != (o.err == nil) {
		return false
	}
	return v.err == nil || v.err.Text == o.err.Text
}

// merge adds what other ranks have to say.
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

// agreed reports whether all have made the same call, and could.
func (v *verdict) agreed() bool { return len(v.voices) == 1 && v.voices[0].err == nil }

// error returns why the call fails on all ranks, or nil.
func (v *verdict) error() error {
	if v.agreed() {
		return nil
	}
	var ranks []int
	var first error
	for _, m := range v.voices {
		if m.err != nil {
			ranks = append(ranks, m.rank)
			first = cmp.Or[error](first, m.err)
		}
	}
	if first != nil {
		op := kinds[v.voices[0].call.kind]
		return &group.Error{Op: op, Ranks: ranks, Err: first}
	}
	return v.mismatch()
}

func (v *verdict) mismatch() error {
	var ranks []int
	var said []string
	for _, m := range v.voices {
		ranks = append(ranks, m.rank)
		said = append(said, fmt.Sprintf("rank %d called %v", m.rank, m.call))
	}
	err := fmt.Errorf("%s: %w", strings.Join(said, ", "), group.ErrDisagree)
	return &group.Error{Op: kinds[v.voices[0].call.kind], Ranks: ranks, Err: err}
}

func (v *verdict) encode(w *wire.Writer) error {
	w.Bool(v.differs)
	w.U64(v.detail)
	w.Byte(byte(len(v.voices)))
	for _, m := range v.voices {
		w.Uvarint(uint64(m.rank))
		m.call.encode(w)
		var b []byte
		if m.err != nil {
			var err error
			if b, err = m.err.MarshalBinary(); err != nil {
				return err
			}
		}
		w.Bytes(b)
	}
	return nil
}

// decodeVerdict reads what encode wrote, in a group of that size.
func decodeVerdict(r *wire.Reader, ranks int) (verdict, error) {
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
	return v, r.Err()
}
