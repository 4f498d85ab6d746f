package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// errStalled reports a request of which no byte has moved for too long.
var errStalled = errors.New("the connection has stalled")

// watch ends a request that has stalled. It begins with the first call of Progress, so
// requests during which the service works without a word are not watched.
type watch struct {
	idle time.Duration
	end  context.CancelCauseFunc

	mu    sync.Mutex
	timer *time.Timer // guarded by mu
	ended bool        // guarded by mu
}

type watchKey struct{}

// watched returns a context for a request and a function that ends the watch.
func watched(ctx context.Context, idle time.Duration) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	w := &watch{idle: idle, end: end}
	return context.WithValue(ctx, watchKey{}, w), w.stop
}

// Progress reports that bytes of a request have moved. From its first call on, the request
// is watched: a driver calls it when it asks for the bytes of an object, and otherwise uses
// Body and ReadFull, which call it.
func Progress(ctx context.Context) {
	w, ok := ctx.Value(watchKey{}).(*watch)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ended:
	case w.timer == nil:
		w.timer = time.AfterFunc(w.idle, func() { w.end(&Error{Err: errStalled, Retry: true, Sent: true}) })
	default:
		w.timer.Reset(w.idle)
	}
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.end(nil)
}

// Body is the body of a request. Drivers send it, so that this package sees whether the
// bytes move.
type Body struct {
	bytes.Reader
	ctx context.Context
}

// NewBody returns a body of the request with the context ctx.
func NewBody(ctx context.Context, p []byte) *Body {
	b := &Body{ctx: ctx}
	b.Reader.Reset(p)
	return b
}

// Read implements [io.Reader].
func (b *Body) Read(p []byte) (int, error) {
	Progress(b.ctx)
	return b.Reader.Read(p)
}

// WriteTo implements [io.WriterTo].
func (b *Body) WriteTo(w io.Writer) (int64, error) {
	const step = 256 << 10
	var total int64
	for {
		Progress(b.ctx)
		n, err := io.CopyN(w, &b.Reader, step)
		total += n
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// ReadFull reads the body of an answer into p, as io.ReadFull does. Drivers call it, so
// that this package sees whether the bytes move.
func ReadFull(ctx context.Context, body io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		Progress(ctx)
		var k int
		k, err = body.Read(p[n:])
		n += k
	}
	if n == len(p) {
		return n, nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
