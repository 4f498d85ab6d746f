package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sort"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/work"
)

// chunkBytes is how many bytes Fetch receives, checks and writes at once: they stay in the
// processor's cache. leastChunk is the same if the rate is low.
const (
	chunkBytes = 256 << 10
	leastChunk = 4 << 10
)

// chunks holds buffers of chunkBytes.
var chunks = sync.Pool{New: func() any { return new([chunkBytes]byte) }}

// localError is an error of the local store. Another peer does not help against it.
type localError struct{ error }

// Unwrap returns the error of the store.
func (e *localError) Unwrap() error { return e.error }

// Fetch copies the object name from another host into the local store. The copy becomes an
// object only if it has this size and this CRC-32C; otherwise Fetch tries the next host. If no
// host has a good copy, the error wraps ErrDamaged and names the hosts. If the local store has
// an object of that name, the error wraps fs.ErrExist.
func (s *Store) Fetch(ctx context.Context, name string, size int64, sum uint32) error {
	_, err := s.local.Stat(ctx, name)
	if err == nil {
		return s.fail("fetch", name, fs.ErrExist)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	return s.fetch(ctx, name, fetching{size: size, sum: sum, ifAbsent: true})
}

// Part is a range of an object whose bytes this process has.
type Part struct {
	At, Length int64
	// Read reads from off on, counted from the start of the part. Several goroutines call it.
	Read func(p []byte, off int64) error
}

// FetchHeld is like Fetch, and does not receive the parts of the object that this process has. They are in order and
// do not overlap. It returns how many bytes it did not receive. It is zero if the bytes of a part
// cannot be read, or are not those of the object: then FetchHeld receives the whole object.
func (s *Store) FetchHeld(ctx context.Context, name string, size int64, sum uint32, parts []Part) (held int64, err error) {
	if len(parts) > 0 {
		err := s.fetch(ctx, name, fetching{size: size, sum: sum, parts: parts, ifAbsent: true})
		if err == nil {
			for _, p := range parts {
				held += p.Length
			}
			return held, nil
		}
		if _, local := errors.AsType[*localError](err); local || ctx.Err() != nil {
			return 0, err
		}
	}
	return 0, s.Fetch(ctx, name, size, sum)
}

// Refetch is like Fetch, and replaces the object of the local store. If it fails, that object stays.
func (s *Store) Refetch(ctx context.Context, name string, size int64, sum uint32) error {
	return s.fetch(ctx, name, fetching{size: size, sum: sum})
}

// fetching describes an object that is copied.
type fetching struct {
	size     int64
	sum      uint32
	parts    []Part // that are not received
	ifAbsent bool   // the copy fails if the local store has the object when it is complete
}

func (s *Store) fetch(ctx context.Context, name string, f fetching) (err error) {
	var failed []error
	done := false
	silent := s.find(ctx, name, func(p *peer, o blob.Info) (more bool) {
		err := s.fetchFrom(ctx, p, o, &f)
		if done = err == nil; done {
			return false
		}
		failed = append(failed, err)
		if _, local := errors.AsType[*localError](err); local || ctx.Err() != nil {
			return false
		}
		if len(f.parts) > 0 {
			return false // the parts may be the cause
		}
		s.report(p.Host, name, err)
		return true
	})

	switch {
	case done:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case len(failed) == 0 && silent == nil:
		err = fs.ErrNotExist
	default:
		err = errors.Join(append(failed, silent)...)
	}
	return s.fail("fetch", name, err)
}

// fetchFrom copies the object o of a peer.
func (s *Store) fetchFrom(ctx context.Context, p *peer, o blob.Info, f *fetching) error {
	if o.Size != f.size {
		return fmt.Errorf("%w: %s has %d bytes instead of %d", ErrDamaged, p, o.Size, f.size)
	}
	w, err := s.local.Create(ctx, o.Name, &blob.CreateOptions{Size: f.size, IfAbsent: f.ifAbsent})
	if err != nil {
		return &localError{err}
	}
	defer w.Abort() // does nothing once committed

	sums := make([]uint32, (f.size+s.cfg.Piece-1)/s.cfg.Piece)
	err = s.pieces(ctx, f.size, func(ctx context.Context, i int, at, n int64) (err error) {
		sums[i], err = s.fetchPiece(ctx, p, o, w, f.parts, at, n)
		return err
	})
	if err != nil {
		return err
	}

	var got uint32
	for i, crc := range sums {
		got = crc32c.Join(got, crc, min(s.cfg.Piece, f.size-int64(i)*s.cfg.Piece))
	}
	if got != f.sum {
		return fmt.Errorf("%w: the bytes of %s have the checksum %08x instead of %08x", ErrDamaged, p, got, f.sum)
	}

	if _, err := w.Commit(ctx); err != nil {
		return &localError{err}
	}
	return nil
}

// fetchPiece copies n bytes and returns their checksum. It receives the bytes between parts.
func (s *Store) fetchPiece(ctx context.Context, p *peer, o blob.Info, w blob.Writer, parts []Part, at, n int64) (crc uint32, err error) {
	end := at + n
	for i := sort.Search(len(parts), func(i int) bool { return parts[i].At+parts[i].Length > at }); at < end; i++ {
		next := end
		if i < len(parts) {
			next = max(at, min(end, parts[i].At))
		}
		if next > at {
			if crc, err = s.receive(ctx, p, o, w, at, next-at, crc); err != nil {
				return 0, err
			}
		}
		if at = next; at < end {
			next = min(end, parts[i].At+parts[i].Length)
			if crc, err = copyPart(ctx, w, &parts[i], at, next-at, crc); err != nil {
				return 0, err
			}
			at = next
		}
	}
	return crc, nil
}

// copyPart writes n bytes of a part to their place, and returns crc with them added to it.
func copyPart(ctx context.Context, w blob.Writer, part *Part, at, n int64, crc uint32) (uint32, error) {
	return move(ctx, w, at, n, crc, chunkBytes, func(b []byte, at int64) error {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		return part.Read(b, at-part.At)
	})
}

// receive copies n bytes from a peer, and returns crc with them added to it.
func (s *Store) receive(ctx context.Context, p *peer, o blob.Info, w blob.Writer, at, n int64, crc uint32) (uint32, error) {
	x, err := p.get(ctx, o, at, n)
	if err != nil {
		return 0, err
	}
	defer x.Close()
	return move(ctx, w, at, n, crc, s.chunk(), func(b []byte, _ int64) error {
		x.timer.Stop() // the wait is no stall
		if err := s.limit.Wait(ctx, len(b)); err != nil {
			return err
		}
		x.timer.Reset(s.cfg.Stall)
		_, err := io.ReadFull(x, b)
		return err
	})
}

// move writes n bytes that read returns, a chunk at a time, and returns crc with them added to it.
func move(ctx context.Context, w blob.Writer, at, n int64, crc uint32, chunk int64, read func(b []byte, at int64) error) (uint32, error) {
	buf := chunks.Get().(*[chunkBytes]byte)
	defer chunks.Put(buf)
	for n > 0 {
		b := buf[:min(chunk, n)]
		if err := read(b, at); err != nil {
			return 0, err
		}
		crc = crc32c.Update(crc, b)
		if err := w.WriteAt(ctx, b, at); err != nil {
			return 0, &localError{err}
		}
		at, n = at+int64(len(b)), n-int64(len(b))
	}
	return crc, nil
}

// pieces calls fn for the pieces of size bytes, several at a time.
func (s *Store) pieces(ctx context.Context, size int64, fn func(ctx context.Context, i int, at, n int64) error) error {
	piece := s.cfg.Piece
	return work.Each(ctx, int((size+piece-1)/piece), s.cfg.Parallel, func(ctx context.Context, i int) error {
		at := int64(i) * piece
		return fn(ctx, i, at, min(piece, size-at))
	})
}

// chunk returns how many bytes should be received at once: little enough that many receivers
// get their share while a peer waits for them.
func (s *Store) chunk() int64 {
	if s.cfg.Rate == 0 {
		return chunkBytes
	}
	return max(leastChunk, min(s.cfg.Rate/64, chunkBytes))
}
