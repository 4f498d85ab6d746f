package platform

import (
	"context"

	"github.com/cairn-ckpt/cairn/group"
)

// ObjectComm moves bytes between the ranks of a group. The functions [AllGather],
// [Gather], [Scatter], [Broadcast], [Send] and [Recv] do so with values.
//
// # Contract
//
// See [group.Group] and [group.Messenger]; the group is an argument here:
// collective calls have one outcome; no call waits for a rank that has
// gone; slices that go in must not be written to again, except slices for
// Send; slices that come out may be shared, except slices of Recv. One rank's
// collective calls on one group must not overlap.
type ObjectComm interface {
	// Barrier returns once every rank of g has called it. It fails on all ranks
	// or on no rank.
	Barrier(ctx context.Context, g Group) error
	// AllGather hands every rank's v to every rank, in the order of the ranks.
	AllGather(ctx context.Context, g Group, v []byte) ([][]byte, error)
	// Gather hands every rank's v to root, in the order of the ranks. The
	// other ranks get nil.
	Gather(ctx context.Context, g Group, root int, v []byte) ([][]byte, error)
	// Scatter hands vs[r] of root to rank r. The others' vs are ignored.
	Scatter(ctx context.Context, g Group, root int, vs [][]byte) ([]byte, error)
	// Broadcast hands root's v to all ranks.
	Broadcast(ctx context.Context, g Group, root int, v []byte) ([]byte, error)
	// Send hands v to rank to. If the group has no messages between two
	// ranks the error wraps [errors.ErrUnsupported].
	Send(ctx context.Context, g Group, to, tag int, v []byte) error
	// Recv returns the next message that rank from sent to this one with tag.
	Recv(ctx context.Context, g Group, from, tag int) ([]byte, error)
}

// AllGather hands every rank's v to every rank, in the order of the ranks. If a
// value cannot be encoded, every rank returns a [*group.StepError] that names its rank.
// A value that cannot be decoded is an error on the ranks that cannot decode it.
func AllGather[T any](ctx context.Context, c ObjectComm, g Group, codec group.Codec[T], v T) ([]T, error) {
	msg, own := seal(codec, v)
	msgs, err := c.AllGather(ctx, g, msg)
	if err != nil {
		return nil, err
	}
	return unsealAll("all-gather", g.Rank(), own, codec, msgs)
}

// Gather hands every rank's v to root, in the order of the ranks; the others get
// nil. A value that cannot be encoded is an error on its rank and on root.
func Gather[T any](ctx context.Context, c ObjectComm, g Group, root int, codec group.Codec[T], v T) ([]T, error) {
	msg, own := seal(codec, v)
	msgs, err := c.Gather(ctx, g, root, msg)
	if err != nil {
		return nil, err
	}
	if g.Rank() == root {
		return unsealAll("gather", root, own, codec, msgs)
	}
	return nil, stepError("gather", g.Rank(), own)
}

// Scatter hands vs[r] of root to rank r. The others' vs are ignored. A value that
// cannot be encoded is an error on root and on the rank that it is for.
func Scatter[T any](ctx context.Context, c ObjectComm, g Group, root int, codec group.Codec[T], vs []T) (T, error) {
	var none T
	if err := needGroup(group.OpScatter, g); err != nil {
		return none, err
	}
	var msgs [][]byte
	var first error
	if g.Rank() == root {
		for _, v := range vs {
			msg, err := seal(codec, v)
			if first == nil {
				first = err
			}
			msgs = append(msgs, msg)
		}
	}
	msg, err := c.Scatter(ctx, g, root, msgs)
	if err != nil {
		return none, err
	}
	if first != nil {
		return none, stepError("scatter", root, first)
	}
	return unseal("scatter", root, codec, msg)
}

// Broadcast hands root's v to all ranks. A value that cannot be encoded is an
// error on all of them.
func Broadcast[T any](ctx context.Context, c ObjectComm, g Group, root int, codec group.Codec[T], v T) (T, error) {
	var none T
	if err := needGroup(group.OpBroadcast, g); err != nil {
		return none, err
	}
	var msg []byte
	var own error
	if g.Rank() == root {
		msg, own = seal(codec, v)
	}
	msg, err := c.Broadcast(ctx, g, root, msg)
	if err != nil {
		return none, err
	}
	if own != nil {
		return none, stepError("broadcast", root, own)
	}
	return unseal("broadcast", root, codec, msg)
}

// Send hands v to rank to. A value that cannot be encoded is an error here and
// in the receiver's [Recv].
func Send[T any](ctx context.Context, c ObjectComm, g Group, to, tag int, codec group.Codec[T], v T) error {
	msg, own := seal(codec, v)
	if err := c.Send(ctx, g, to, tag, msg); err != nil {
		return err
	}
	return stepError("send", g.Rank(), own)
}

// Recv returns the next value that rank from sent to this one with tag, by
// [Send].
func Recv[T any](ctx context.Context, c ObjectComm, g Group, from, tag int, codec group.Codec[T]) (T, error) {
	msg, err := c.Recv(ctx, g, from, tag)
	if err != nil {
		var none T
		return none, err
	}
	return unseal("recv", from, codec, msg)
}

// seal encodes v as an outcome, so that no rank waits for a value that cannot be
// encoded. It also returns the error of the encoding.
func seal[T any](codec group.Codec[T], v T) ([]byte, error) {
	var b []byte
	err := group.Catch(func() (err error) {
		b, err = codec.Encode(v)
		return err
	})
	if err != nil {
		err = group.NewRemoteError(err) // the same text on all ranks
	}
	return group.EncodeOutcome(b, err), err
}

func unseal[T any](step string, from int, codec group.Codec[T], msg []byte) (T, error) {
	v, err := decode(codec, msg)
	if err != nil {
		return v, stepError(step, from, err)
	}
	return v, nil
}

// unsealAll returns the values of all ranks; own is the error with which this
// one sealed its own.
func unsealAll[T any](step string, me int, own error, codec group.Codec[T], msgs [][]byte) ([]T, error) {
	values, failures := make([]T, len(msgs)), map[int]error{}
	for r, msg := range msgs {
		v, err := decode(codec, msg)
		if r == me && own != nil {
			err = own
		}
		if err != nil {
			failures[r] = err
		}
		values[r] = v
	}
	if len(failures) > 0 {
		return nil, &group.StepError{Step: step, Failures: failures}
	}
	return values, nil
}

func decode[T any](codec group.Codec[T], msg []byte) (v T, err error) {
	b, err := group.DecodeOutcome(msg)
	if err != nil {
		return v, err
	}
	err = group.Catch(func() (err error) {
		v, err = codec.Decode(b)
		return err
	})
	return v, err
}

// stepError returns the error of a step that failed on one rank, nil if it
// did not.
func stepError(step string, rank int, err error) error {
	if err == nil {
		return nil
	}
	return &group.StepError{Step: step, Failures: map[int]error{rank: err}}
}
