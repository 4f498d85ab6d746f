// Package meter counts the requests and bytes that go through a store. It
// knows nothing of what the store is and changes nothing. The contract is that
// of blob.Store.
package meter

import (
	"context"
	"iter"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/blob"
)

var (
	_ blob.Store   = (*Store)(nil)
	_ blob.Wrapper = (*Store)(nil)
)

// Counts are numbers of requests, failed ones included, and of the bytes that
// moved in those that did not fail.
type Counts struct {
	Creates, Writes, Commits, Aborts, Removes int64 // requests that write
	Opens, Reads, Stats, Lists                int64 // requests that read
	BytesWritten, BytesRead                   int64
}

// Store counts what goes through to another store.
type Store struct {
	inner blob.Store

	creates, writes, commits, aborts, removes atomic.Int64
	opens, reads, stats, lists                atomic.Int64
	bytesWritten, bytesRead                   atomic.Int64
}

// New returns a store that counts what goes through to s.
func New(s blob.Store) *Store { return &Store{inner: s} }

// Counts returns the numbers since New. While requests are under way they are
// those of no single moment.
func (s *Store) Counts() Counts {
	return Counts{
		Creates: s.creates.Load(), Writes: s.writes.Load(), Commits: s.commits.Load(),
		Aborts: s.aborts.Load(), Removes: s.removes.Load(),
		Opens: s.opens.Load(), Reads: s.reads.Load(), Stats: s.stats.Load(), Lists: s.lists.Load(),
		BytesWritten: s.bytesWritten.Load(), BytesRead: s.bytesRead.Load(),
	}
}

// Sub returns the numbers of c less those of b, for a span between two Counts.
func (c Counts) Sub(b Counts) Counts {
	return Counts{
		Creates: c.Creates - b.Creates, Writes: c.Writes - b.Writes, Commits: c.Commits - b.Commits,
		Aborts: c.Aborts - b.Aborts, Removes: c.Removes - b.Removes,
		Opens: c.Opens - b.Opens, Reads: c.Reads - b.Reads, Stats: c.Stats - b.Stats, Lists: c.Lists - b.Lists,
		BytesWritten: c.BytesWritten - b.BytesWritten, BytesRead: c.BytesRead - b.BytesRead,
	}
}

// String returns where the other store is.
func (s *Store) String() string { return s.inner.String() }

// Unwrap returns the other store.
func (s *Store) Unwrap() blob.Store { return s.inner }

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	s.creates.Add(1)
	w, err := s.inner.Create(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return &writer{s: s, inner: w}, nil
}

// Open implements [blob.Store].
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	s.opens.Add(1)
	r, err := s.inner.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return &reader{r, s}, nil
}

// Stat implements [blob.Store].
func (s *Store) Stat(ctx context.Context, name string) (blob.Info, error) {
	s.stats.Add(1)
	return s.inner.Stat(ctx, name)
}

// List implements [blob.Store]. It counts once a loop, whatever the number of
// objects.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		s.lists.Add(1)
		s.inner.List(ctx, prefix)(yield)
	}
}

// Remove implements [blob.Store].
func (s *Store) Remove(ctx context.Context, name string) error {
	s.removes.Add(1)
	return s.inner.Remove(ctx, name)
}

type writer struct {
	s     *Store
	inner blob.Writer
	ended atomic.Bool
}

func (w *writer) WriteAt(ctx context.Context, p []byte, off int64) error {
	w.s.writes.Add(1)
	err := w.inner.WriteAt(ctx, p, off)
	if err == nil {
		w.s.bytesWritten.Add(int64(len(p)))
	}
	return err
}

func (w *writer) Commit(ctx context.Context) (blob.Info, error) {
	w.s.commits.Add(1)
	w.ended.Store(true)
	return w.inner.Commit(ctx)
}

func (w *writer) Abort() error {
	if !w.ended.Swap(true) { // a deferred Abort after Commit asks for nothing
		w.s.aborts.Add(1)
	}
	return w.inner.Abort()
}

type reader struct {
	blob.Reader
	s *Store
}

func (r *reader) ReadAt(ctx context.Context, p []byte, off int64) error {
	r.s.reads.Add(1)
	err := r.Reader.ReadAt(ctx, p, off)
	if err == nil {
		r.s.bytesRead.Add(int64(len(p)))
	}
	return err
}
