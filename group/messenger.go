package group

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// The methods of [Messenger], as [Error] names them.
const (
	OpSend Op = "send"
	OpRecv Op = "recv"
)

// The tags of a group's messages are divided between their users. Tags below
// CollectiveTags are for programs, tags below LoadTags for package collective, and
// higher tags for loads in which ranks read for each other. The highest tag,
// math.MaxInt, is for groups themselves.
const (
	CollectiveTags = 1 << 28
	LoadTags       = 3 << 29
)

// Messenger is a capability of groups: their ranks can send each other messages outside of
// collective calls. Its methods take ranks of the group.
//
// # Contract
//
//   - The messages of one rank to another with one tag arrive whole, once and in
//     the order they were sent. Other tags, other ranks and other groups are
//     apart: messages that are not received delay only messages of their own tag.
//   - Messages are flow controlled: the first of a tag, if it has at most 64
//     KiB, is taken without waiting; others may wait until the receiver asks.
//   - A rank may send to itself. Methods of one rank may overlap: messages that
//     goroutines send with one tag come in either order, and each of them is
//     received once.
//   - If the context of a call ends, the call returns an error that names the other rank and
//     wraps the context's error and cause. A message of a failed Send arrives whole or not at
//     all.
//   - A rank that is not in the group, a tag below zero and the tag math.MaxInt are
//     [ErrInvalid].
//   - Once a rank of the group is lost every call fails with [ErrGone] and names it, except
//     that messages that have already arrived may still be received. If a rank has left
//     ([ErrLeft]), its earlier messages can be received too, and messages between others go
//     on: only that a call which then waits for as long as a rank may be silent fails,
//     because the others may have given up. Errors are of type [*Error].
type Messenger interface {
	// Send hands b to rank to. The caller may write to b again once it has
	// returned.
	Send(ctx context.Context, to, tag int, b []byte) error
	// Recv returns the next message that rank from sends to this one with tag.
	// The slice is the caller's.
	Recv(ctx context.Context, from, tag int) ([]byte, error)
	// RecvInto is Recv of a message of a known size, into the caller's memory: one that has not
	// len(b) bytes fails the call with a [*LengthError] and is gone. After an error b holds
	// anything; once RecvInto has returned it is not written to any more.
	RecvInto(ctx context.Context, from, tag int, b []byte) error
}

// PartSender is a capability of a [Messenger] that sends a message from several places in
// memory without copying it first.
type PartSender interface {
	// SendParts is [Messenger.Send] of the parts, one behind the other, as one message.
	SendParts(ctx context.Context, to, tag int, parts [][]byte) error
}

// Ends reports whether a rank that is gone ends the messages of rank me with
// peer at once. It is for implementations of [Messenger].
func (e *Error) Ends(me, peer int) bool {
	return !errors.Is(e.Err, ErrLeft) || slices.Contains(e.Ranks, me) || slices.Contains(e.Ranks, peer)
}

// CheckLength returns an error that wraps a [*LengthError] unless a message of got bytes from
// peer fits the memory of [Messenger.RecvInto]. It is for implementations of [Messenger].
func CheckLength(peer, got, want int) error {
	if got == want {
		return nil
	}
	return &Error{Op: OpRecv, Ranks: []int{peer}, Err: &LengthError{Got: got, Want: want}}
}

// LengthError is inside the error of a [Messenger.RecvInto] if the size of the message
// differs from the size of the caller's memory. It wraps [ErrDisagree].
type LengthError struct{ Got, Want int }

func (e *LengthError) Error() string {
	return fmt.Sprintf("message of %d bytes, not %d: %v", e.Got, e.Want, ErrDisagree)
}

// Unwrap returns [ErrDisagree].
func (e *LengthError) Unwrap() error { return ErrDisagree }

// CheckMessage returns an error that wraps [ErrInvalid] if a group of size
// ranks cannot serve a message from or to peer. It is for implementations of
// [Messenger].
func CheckMessage(op Op, peer, tag, size int) error {
	switch {
	case peer < 0 || peer >= size:
		return &Error{Op: op, Ranks: []int{peer}, Err: fmt.Errorf("peer of %d ranks: %w", size, ErrInvalid)}
	case tag < 0 || tag == math.MaxInt:
		return &Error{Op: op, Ranks: []int{peer}, Err: fmt.Errorf("tag %d: %w", tag, ErrInvalid)}
	}
	return nil
}
