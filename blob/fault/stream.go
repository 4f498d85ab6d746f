package fault

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
)

// writer passes on what the rules let through.
type writer struct {
	s     *Store
	name  string
	inner blob.Writer

	mu    sync.Mutex
	ended bool // guarded by mu
}

func (w *writer) WriteAt(ctx context.Context, p []byte, off int64) error {
	e := Entry{Op: Write, Name: w.name, Off: off, Len: int64(len(p))}
	return w.s.do(ctx, e, func(eff effect) error {
		return w.inner.WriteAt(ctx, eff.written(p), off)
	})
}

func (w *writer) Commit(ctx context.Context) (blob.Info, error) {
	ended := w.end()
	var info blob.Info
	err := w.finish(ctx, Commit, ended, func() (err error) {
		info, err = w.inner.Commit(ctx)
		return err
	})
	if err != nil {
		return blob.Info{}, err
	}
	return info, nil
}

func (w *writer) Abort() error {
	if w.end() {
		return nil
	}
	return w.finish(context.Background(), Abort, false, w.inner.Abort)
}

// finish does op by fn. Where the rules keep it from that, the writer frees
// what it took all the same, as a failed Commit does, unless it crashed.
func (w *writer) finish(ctx context.Context, op Op, ended bool, fn func() error) error {
	reached := false
	err := w.s.do(ctx, Entry{Op: op, Name: w.name}, func(effect) error {
		reached = true
		return fn()
	})
	if !reached && !ended && !w.s.Crashed() {
		w.inner.Abort()
	}
	return err
}

// end ends the writer and reports whether it was ended before.
func (w *writer) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.ended
	w.ended = true
	return was
}

// reader passes on what the rules let through.
type reader struct {
	blob.Reader
	s    *Store
	name string
	size int64 // what the rules let it see
}

func (r *reader) Size() int64 { return r.size }

func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	e := Entry{Op: Read, Name: r.name, Off: off, Len: int64(len(p))}
	return r.s.do(ctx, e, func(eff effect) error {
		if r.size < r.Reader.Size() && (off > r.size || int64(len(p)) > r.size-off) {
			err := fmt.Errorf("%w: %d bytes at %d of %d", blob.ErrRange, len(p), off, r.size)
			return &blob.Error{Op: "read", Store: r.s.String(), Name: r.name, Err: err}
		}
		if err := r.Reader.ReadAt(ctx, p, off); err != nil {
			return err
		}
		eff.read(p)
		return nil
	})
}

// cut returns the size that is left of an object.
func (eff effect) cut(size int64) int64 {
	for _, a := range eff.edits {
		if a.edit == truncate {
			size = min(size, a.n)
		}
	}
	return size
}

// written returns what reaches the store of p, which stays as it is.
func (eff effect) written(p []byte) []byte {
	if len(eff.edits) == 0 {
		return p
	}
	p = bytes.Clone(p[:eff.cut(int64(len(p)))])
	eff.flip(p)
	return p
}

// read damages p, which was just read.
func (eff effect) read(p []byte) {
	clear(p[eff.cut(int64(len(p))):])
	eff.flip(p)
}

func (eff effect) flip(p []byte) {
	for _, a := range eff.edits {
		if a.edit == flip && len(p) > 0 {
			bit := uint64(a.n) % (uint64(len(p)) * 8)
			p[bit/8] ^= 1 << (bit % 8)
		}
	}
}
