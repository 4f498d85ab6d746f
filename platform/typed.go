package platform

import (
	"context"

	"github.com/cairn-ckpt/cairn/group"
)

// AllGather hands every rank's v to every rank, in the order of the ranks. Where
// a rank's value cannot be encoded every rank returns a [*group.StepError] that
// names it. One that cannot be decoded is an error on the ranks that cannot.
func AllGather[T any](ctx context.Context, c AllGatherer, g Group, codec group.Codec[T], v T) ([]T, error) {
	if err := needGroup(group.OpAllGather, g); err != nil {
		return nil, err
	}
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
	if err := needGroup(group.OpGather, g); err != nil {
		return nil, err
	}
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
	if err := needGroup(group.OpSend, g); err != nil {
		return err
	}
	msg, own := seal(codec, v)
	if err := c.Send(ctx, g, to, tag, msg); err != nil {
		return err
	}
	return stepError("send", g.Rank(), own)
}

// Recv returns the next value that rank from sent to this one with tag, by
// [Send].
func Recv[T any](ctx context.Context, c ObjectComm, g Group, from, tag int, codec group.Codec[T]) (T, error) {
	var none T
	if err := needGroup(group.OpRecv, g); err != nil {
		return none, err
	}
	msg, err := c.Recv(ctx, g, from, tag)
	if err != nil {
		return none, err
	}
	return unseal("recv", from, codec, msg)
}
