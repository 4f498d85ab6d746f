package platform

import (
	"context"
	"errors"
)

// ErrClosed reports work that did not run because its [Stream] was closed.
var ErrClosed = errors.New("the stream is closed")

// Streams is the capability of platforms that run work in the background, in order.
type Streams interface {
	// NewStream returns a stream. Its work is given ctx and does not begin after ctx has
	// ended. The caller closes the stream.
	NewStream(ctx context.Context) (Stream, error)
}

// Stream is an ordered queue of work that runs in the background.
//
// # Contract
//
//   - The work of one stream runs in the order in which it was queued, one after the
//     other. The work of different streams runs at the same time, unless Wait orders it.
//   - Queueing does not wait for work.
//   - Work sees all writes of a goroutine before the goroutine queued it. A goroutine that
//     waited for work, by Synchronize or by an event, sees all writes of the work.
//   - If work fails or panics, no other work of the stream begins, because it may need the
//     result. Synchronize, and events that are recorded afterwards, have the first error.
//     So does a stream that waits for such an event.
//
// Methods are safe for concurrent use.
type Stream interface {
	// Go queues fn. The context that fn is given has no current stream: see [Run]. A panic
	// of fn is an error that wraps [group.ErrPanic].
	Go(fn func(ctx context.Context) error)
	// Record returns an event that occurs when the work that was queued so far is done.
	Record() Event
	// Wait makes the work that is queued afterwards wait until e has occurred.
	Wait(e Event)
	// Synchronize waits for the work that was queued so far and returns its first error. If
	// ctx ends before, it returns an error that wraps ctx's, and the work goes on.
	Synchronize(ctx context.Context) error
	// Close drops the work that has not begun, ends the context of the work that runs, and waits
	// for it. The error of work that is dropped wraps [ErrClosed]. Work of the stream must not
	// call Close. A second Close has no effect.
	Close()
}

// Event is a moment that work can wait for: the moment of [Stream.Record], or the end of a
// [Work], such as an asynchronous collective call.
type Event interface {
	// Done returns a channel that is closed once the event has occurred.
	Done() <-chan struct{}
	// Wait waits for the event and returns the error of the work before it. If ctx ends before,
	// it returns an error that wraps ctx's.
	Wait(ctx context.Context) error
}

var _ Event = (*Work)(nil)

type streamKey struct{}

// WithStream returns a context with s as its current stream. Nil means no stream.
func WithStream(ctx context.Context, s Stream) context.Context {
	return context.WithValue(ctx, streamKey{}, s)
}

// CurrentStream returns the stream of [WithStream], or nil.
func CurrentStream(ctx context.Context) Stream {
	s, _ := ctx.Value(streamKey{}).(Stream)
	return s
}

// Run queues fn on the current stream of ctx and returns nil. If there is no such stream,
// as in work that runs on one, it calls fn and returns its error.
func Run(ctx context.Context, fn func(ctx context.Context) error) error {
	s := CurrentStream(ctx)
	if s == nil {
		return fn(ctx)
	}
	s.Go(fn)
	return nil
}
