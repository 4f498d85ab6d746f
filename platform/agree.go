package platform

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Agree lets all ranks of comm go on or fail together, before or after a part of a larger
// collective call. op names that call in errors. call describes the call, and must be the
// same on all ranks. failed is the error of this rank, or nil.
//
// It is a collective call. If a rank has failed, or the calls differ, it returns one
// [*group.Error] on all ranks, which names the ranks and wraps the error of the first of them
// or [group.ErrDisagree]. Otherwise it costs one small all-reduce.
func Agree(ctx context.Context, comm TensorComm, op group.Op, call string, failed error) error {
	mine := newNote(call, failed)
	wrong := int64(0)
	if failed != nil {
		wrong = 1
	}

	// All digests are equal if the largest is the smallest.
	t, err := tensor.Of([]int64{3}, []int64{mine.Digest, -mine.Digest, wrong})
	if err != nil {
		return err
	}

	if err := comm.AllReduce(ctx, t, collective.Max); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}

	most, err := tensor.Values[int64](t)
	if err != nil {
		return err
	}
	if most[0] != -most[1] || most[2] != 0 {
		return refuse(ctx, comm, op, mine)
	}
	return nil
}

// note is a rank's part of the error of a call that fails on all ranks.
type note struct {
	// Wrong is the error of the rank. Nil: Call describes its call, perhaps shortened, and
	// Digest identifies the call.
	Wrong  *group.RemoteError
	Call   string
	Digest int64
}

const (
	// noteBytes is the size of an encoded note. noteText is the size of a text in it,
	// which may be several times as long when it is encoded.
	noteBytes, noteText = 16 << 10, 1 << 10
	// maxCalls is the largest number of calls that an error lists.
	maxCalls = 4
)

func newNote(call string, failed error) note {
	short := func(text string) string { return strings.ToValidUTF8(text[:min(len(text), noteText)], "") }
	if failed == nil {
		sum := sha256.Sum256([]byte(call))
		return note{Call: short(call), Digest: int64(binary.LittleEndian.Uint64(sum[:]) >> 1)} // not negative
	}
	e := *group.NewRemoteError(failed)
	e.Text = short(e.Text)
	return note{Wrong: &e}
}

// refuse returns the error of a call that fails on all ranks.
func refuse(ctx context.Context, comm TensorComm, op group.Op, mine note) error {
	b, err := json.Marshal(mine)
	if err != nil || len(b) > noteBytes {
		return fmt.Errorf("%s: a note of %d bytes: %w", op, len(b), cmp.Or(err, error(group.ErrInvalid)))
	}

	padded := append(b, bytes.Repeat([]byte(" "), noteBytes-len(b))...)
	src, err := tensor.FromBytes(tensor.Uint8, []int64{noteBytes}, padded)
	if err != nil {
		return err
	}

	all := make([]byte, noteBytes*comm.Size())
	dst, err := tensor.FromBytes(tensor.Uint8, []int64{int64(len(all))}, all)
	if err != nil {
		return err
	}

	if err := comm.AllGather(ctx, dst, src); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}

	notes := make([]note, comm.Size())
	for r := range notes {
		if err := json.Unmarshal(all[r*noteBytes:(r+1)*noteBytes], &notes[r]); err != nil {
			return fmt.Errorf("%s: note of rank %d: %w", op, r, err)
		}
	}

	notes[comm.Rank()] = mine // with the error itself
	return refusal(op, notes)
}

// refusal returns the error that all ranks return, made from their notes.
func refusal(op group.Op, notes []note) error {
	e := &group.Error{Op: op}
	var calls []string
	known := map[int64]bool{}
	for r, n := range notes {
		switch {
		case n.Wrong != nil:
			if e.Err == nil {
				e.Ranks, e.Err = nil, n.Wrong
			}
			e.Ranks = append(e.Ranks, r)
		case e.Err == nil && !known[n.Digest] && len(calls) < maxCalls:
			known[n.Digest] = true
			e.Ranks = append(e.Ranks, r)
			calls = append(calls, fmt.Sprintf("rank %d called %s", r, n.Call))
		}
	}

	if e.Err == nil {
		e.Err = fmt.Errorf("%s: %w", strings.Join(calls, ", "), group.ErrDisagree)
	}
	return e
}
