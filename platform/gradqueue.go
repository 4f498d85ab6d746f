package platform

import "context"

// GradQueue completes the reductions of gradients in the background while the backward pass
// goes on. At most two are under way: the one before the last is complete when Set
// returns. It is for one goroutine.
type GradQueue struct {
	stream Stream
	last   Event // the last reduction is complete; nil if there was no reduction
}

// NewGradQueue returns a queue that completes reductions on s. The caller closes s.
func NewGradQueue(s Stream) *GradQueue { return &GradQueue{stream: s} }

// Set takes a reduction that was started and a function to call when it is done, such as one
// that moves the result to its place; post may be nil. Then it waits until the reduction of
// the call before is done and its function has returned. A reduction or a function that fails
// ends the queue: Set and Wait return the error, and no other function is called.
func (q *GradQueue) Set(ctx context.Context, handle *Work, post func() error) error {
	before := q.last
	q.stream.Wait(handle)
	if post != nil {
		q.stream.Go(func(context.Context) error { return post() })
	}

	q.last = q.stream.Record()
	if before == nil {
		return nil
	}
	return before.Wait(ctx)
}

// Wait waits until all reductions are done and their functions have returned. If ctx has
// a current stream, that stream waits, and Wait returns at once.
func (q *GradQueue) Wait(ctx context.Context) error {
	return Run(ctx, q.stream.Record().Wait)
}
