package collective

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// maxVoices bounds how many different calls an error tells of.
const maxVoices = 4

// maxVoiceText bounds what a rank says of an error, so that messages of maxVoices
// of them are ones that a [group.Messenger] takes without waiting.
const maxVoiceText = 4 << 10

// verdict is what some ranks together have to say about a call. Verdicts of
// overlapping sets of ranks can be merged, in any order, so that all ranks end
// with the same one.
type verdict struct {
	// voices are the different calls, each with the lowest rank that made it, in
	// the order of these; those of the lowest ranks where there are more than
	// maxVoices.
	voices []voice
	// detail is what ranks may differ in, which all want to know. It says
	// nothing where differs is set.
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

// decodeVerdict reads what encode wrote, in a group of so many ranks.
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
