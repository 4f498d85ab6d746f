package demo

import (
	"context"
	"os"

	"github.com/cairn-ckpt/cairn/blob"
)

// The points of a save at which a process is killed.
const (
	killWriting   = "writing data"
	killCommit    = "record written, not in place"
	killCommitted = "record in place, nobody told"
)

// deadly is a store under which this process dies.
type deadly struct {
	blob.Store
	point string
	tell  *teller
}

var (
	_ blob.Store   = (*deadly)(nil)
	_ blob.Wrapper = (*deadly)(nil)
)

// Unwrap implements [blob.Wrapper].
func (d *deadly) Unwrap() blob.Store { return d.Store }

// Create implements [blob.Store].
func (d *deadly) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	w, err := d.Store.Create(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return &deadlyWriter{w, d, name}, nil
}

// die kills this process, as SIGKILL does: nothing is cleaned up.
func (d *deadly) die(operation string) {
	_ = d.tell.message(message{Dying: operation}) // there is nobody else to tell
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {} // until it arrives
}

type deadlyWriter struct {
	blob.Writer
	d    *deadly
	name string
}

// WriteAt implements [blob.Writer]. Of what is written last only half arrives.
func (w *deadlyWriter) WriteAt(ctx context.Context, p []byte, off int64) error {
	if w.d.point != killWriting || !isData(w.name) {
		return w.Writer.WriteAt(ctx, p, off)
	}
	_ = w.Writer.WriteAt(ctx, p[:len(p)/2], off)
	w.d.die("write " + w.name)
	return nil
}

// Commit implements [blob.Writer].
func (w *deadlyWriter) Commit(ctx context.Context) (blob.Info, error) {
	if w.name == recordName && w.d.point == killCommit {
		w.d.die("commit " + w.name)
	}
	info, err := w.Writer.Commit(ctx)
	if w.name == recordName && w.d.point == killCommitted && err == nil {
		w.d.die("commit " + w.name)
	}
	return info, err
}
