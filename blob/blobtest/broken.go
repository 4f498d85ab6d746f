package blobtest

import (
	"context"
	"iter"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
)

// Broken is a store with some methods replaced by bad ones, for tests of code that must notice
// a broken store. A nil function means the method of Store.
type Broken struct {
	blob.Store
	DoCreate func(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error)
	DoOpen   func(ctx context.Context, name string) (blob.Reader, error)
	DoStat   func(ctx context.Context, name string) (blob.Info, error)
	DoList   func(ctx context.Context, prefix string) iter.Seq2[blob.Info, error]
	DoRemove func(ctx context.Context, name string) error

	DoRemoveVersion func(ctx context.Context, name, version string) error
}

// Create implements [blob.Store].
func (b *Broken) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	if b.DoCreate != nil {
		return b.DoCreate(ctx, name, opts)
	}
	return b.Store.Create(ctx, name, opts)
}

// Open implements [blob.Store].
func (b *Broken) Open(ctx context.Context, name string) (blob.Reader, error) {
	if b.DoOpen != nil {
		return b.DoOpen(ctx, name)
	}
	return b.Store.Open(ctx, name)
}

// Stat implements [blob.Store].
func (b *Broken) Stat(ctx context.Context, name string) (blob.Info, error) {
	if b.DoStat != nil {
		return b.DoStat(ctx, name)
	}
	return b.Store.Stat(ctx, name)
}

// List implements [blob.Store].
func (b *Broken) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	if b.DoList != nil {
		return b.DoList(ctx, prefix)
	}
	return b.Store.List(ctx, prefix)
}

// Remove implements [blob.Store].
func (b *Broken) Remove(ctx context.Context, name string) error {
	if b.DoRemove != nil {
		return b.DoRemove(ctx, name)
	}
	return b.Store.Remove(ctx, name)
}

// RemoveVersion implements [blob.VersionRemover].
func (b *Broken) RemoveVersion(ctx context.Context, name, version string) error {
	if b.DoRemoveVersion != nil {
		return b.DoRemoveVersion(ctx, name, version)
	}
	return blob.RemoveVersion(ctx, b.Store, name, version)
}

// BrokenWriter is a writer with some methods replaced.
type BrokenWriter struct {
	blob.Writer
	DoWrite  func(ctx context.Context, p []byte, off int64) error
	DoCommit func(ctx context.Context) (blob.Info, error)
	DoAbort  func() error
}

// WriteAt implements [blob.Writer].
func (w *BrokenWriter) WriteAt(ctx context.Context, p []byte, off int64) error {
	if w.DoWrite != nil {
		return w.DoWrite(ctx, p, off)
	}
	return w.Writer.WriteAt(ctx, p, off)
}

// Commit implements [blob.Writer].
func (w *BrokenWriter) Commit(ctx context.Context) (blob.Info, error) {
	if w.DoCommit != nil {
		return w.DoCommit(ctx)
	}
	return w.Writer.Commit(ctx)
}

// Abort implements [blob.Writer].
func (w *BrokenWriter) Abort() error {
	if w.DoAbort != nil {
		return w.DoAbort()
	}
	return w.Writer.Abort()
}

// BrokenReader is a reader with another ReadAt.
type BrokenReader struct {
	blob.Reader
	DoRead func(ctx context.Context, p []byte, off int64) error
}

// ReadAt implements [blob.Reader].
func (r *BrokenReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	return r.DoRead(ctx, p, off)
}

// BrokenWriters returns a store in memory with changed writers.
func BrokenWriters(change func(s blob.Store, name string, opts blob.CreateOptions, w blob.Writer) *BrokenWriter) *Broken {
	s := new(mem.Store)
	return &Broken{Store: s, DoCreate: func(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
		w, err := s.Create(ctx, name, opts)
		if err != nil {
			return nil, err
		}
		if opts == nil {
			opts = new(blob.CreateOptions)
		}
		return change(s, name, *opts, w), nil
	}}
}

// BrokenReaders returns a store in memory with changed readers.
func BrokenReaders(change func(s blob.Store, name string, r blob.Reader) *BrokenReader) *Broken {
	s := new(mem.Store)
	return &Broken{Store: s, DoOpen: func(ctx context.Context, name string) (blob.Reader, error) {
		r, err := s.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		return change(s, name, r), nil
	}}
}

// BrokenList returns a store in memory that lists something else.
func BrokenList(change func([]blob.Info) []blob.Info) *Broken {
	s := new(mem.Store)
	return &Broken{Store: s, DoList: func(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
		return func(yield func(blob.Info, error) bool) {
			var infos []blob.Info
			for info, err := range s.List(ctx, prefix) {
				if err != nil {
					yield(info, err)
					return
				}
				infos = append(infos, info)
			}
			for _, info := range change(infos) {
				if !yield(info, nil) {
					return
				}
			}
		}
	}}
}
