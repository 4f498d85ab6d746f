package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

// chunkBytes is how many bytes Fetch receives, checks and writes at once: they stay in the
// processor's cache. leastChunk is the same if the rate is low.
const (
	chunkBytes = 256 << 10
	leastChunk = 4 << 10
)

// chunks holds buffers of chunkBytes.
var chunks = sync.Pool{New: func() any { return new([chunkBytes]byte) }}

// Fetch copies the object name from another host into the local store. The copy becomes an
// object only if it has this size and this CRC-32C; otherwise the error wraps ErrDamaged and
// names the hosts. If the local store has an object of that name, the error wraps fs.ErrExist.
func (s *Store) Fetch(ctx context.Context, name string, size int64, sum uint32) error {
	_, err := s.local.Stat(ctx, name)
	if err == nil {
		return s.fail("fetch", name, fs.ErrExist)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	var failed []error
	var final error // of the local store
	done := false
	err = s.find(ctx, name, func(p *peer, o blob.Info) bool {
		var err error
		if o.Size != size {
			err = fmt.Errorf("%w: %s has %d bytes instead of %d", ErrDamaged, p, o.Size, size)
		} else {
			err, final = s.fetchFrom(ctx, p, o, sum)
		}

		done = err == nil && final == nil
		if err != nil && ctx.Err() == nil {
			s.report(p.Host, name, err)
			failed = append(failed, err)
		}
		return !done && final == nil && ctx.Err() == nil
	})

	switch {
	case done:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case final != nil:
		return final
	case err != nil || len(failed) > 0:
		err = errors.Join(append(failed, err)...)
	default:
		err = fs.ErrNotExist
	}
	return s.fail("fetch", name, err)
}

// fetchFrom copies the object o of a peer. err is an error of the copy there, and final one of
// the local store, with which other peers do not help.
func (s *Store) fetchFrom(ctx context.Context, p *peer, o blob.Info, sum uint32) (err, final error) {
	w, final := s.local.Create(ctx, o.Name, &blob.CreateOptions{Size: o.Size, IfAbsent: true})
	if final != nil {
		return nil, final
	}
	defer w.Abort() // does nothing once committed

	sums := make([]uint32, (o.Size+s.cfg.Piece-1)/s.cfg.Piece)
	var local error
	var once sync.Once
	err = s.pieces(ctx, o.Size, func(ctx context.Context, i int, at, n int64) error {
		crc, err, writeErr := s.fetchPiece(ctx, p, o, w, at, n)
		if writeErr != nil {
			once.Do(func() { local = writeErr })
			return writeErr
		}
		sums[i] = crc
		return err
	})
	if err != nil {
		return err, local
	}

	var got uint32
	for i, crc := range sums {
		got = crc32c.Join(got, crc, min(s.cfg.Piece, o.Size-int64(i)*s.cfg.Piece))
	}
	if got != sum {
		return fmt.Errorf("%w: the bytes of %s have the checksum %08x instead of %08x", ErrDamaged, p, got, sum), nil
	}

	_, final = w.Commit(ctx)
	return nil, final
}

// fetchPiece copies n bytes and returns their checksum.
func (s *Store) fetchPiece(ctx context.Context, p *peer, o blob.Info, w blob.Writer, at, n int64) (crc uint32, err, writeErr error) {
	x, err := p.get(ctx, o, at, n)
	if err != nil {
		return 0, err, nil
	}
	defer x.Close()

	buf := chunks.Get().(*[chunkBytes]byte)
	defer chunks.Put(buf)
	chunk := s.limit.chunk()
	for n > 0 {
		b := buf[:min(chunk, n)]
		x.timer.Stop() // the wait is no stall
		if err := s.limit.wait(ctx, len(b)); err != nil {
			return 0, err, nil
		}
		x.timer.Reset(s.cfg.Stall)
		if _, err := io.ReadFull(x, b); err != nil {
			return 0, err, nil
		}
		crc = crc32c.Update(crc, b)
		if err := w.WriteAt(ctx, b, at); err != nil {
			return 0, nil, err
		}
		at, n = at+int64(len(b)), n-int64(len(b))
	}

	return crc, nil, nil
}

// limiter bounds a number of bytes per second. The zero limiter has no bound.
type limiter struct {
	rate int64

	mu   sync.Mutex
	free time.Time // guarded by mu; when the bytes so far will have taken their time
}

// chunk returns how many bytes should be received at once: little enough that many receivers
// get their share while a peer waits for them.
func (l *limiter) chunk() int64 {
	if l.rate == 0 {
		return chunkBytes
	}
	return max(leastChunk, min(l.rate/64, chunkBytes))
}

// wait waits until n more bytes may be received.
func (l *limiter) wait(ctx context.Context, n int) error {
	if l.rate == 0 {
		return nil
	}

	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	pause := l.free.Sub(now)
	l.free = l.free.Add(time.Duration(float64(n) / float64(l.rate) * float64(time.Second)))
	l.mu.Unlock()

	if pause == 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
