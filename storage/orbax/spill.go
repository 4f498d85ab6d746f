package orbax

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// errAgain reports a compressed block that would have to be decompressed a second time.
var errAgain = errors.New("the block was decompressed before")

// spill is a temporary file with decompressed blocks. A chunk of Orbax mostly has a part of all
// layers of a model, so a reader that takes one layer after the other needs each chunk as often
// as there are layers. A block is decompressed into the file when it is needed a second time.
// The file is in os.TempDir and takes at most a quarter of the bytes that are free there. A block
// for which there is no room is decompressed each time.
type spill struct {
	blob.Store // nil: ReadBox calls only Open

	mu     sync.Mutex
	file   *os.File
	size   int64
	failed bool
	seen   map[pageKey]bool     // blocks that were decompressed from the beginning
	blocks map[pageKey]*spilled // blocks in the file
	// refused are blocks that could not be decompressed into the file.
	refused map[pageKey]bool
}

// spilled is a block in the file.
type spilled struct {
	ready chan struct{} // closed once at and err are valid
	at    int64
	err   error
}

// maxAgain bounds the blocks that a spill remembers.
const maxAgain = 1 << 20

// thin is how many times the elements that a read needs it may decompress, before the block goes to
// the temporary file at once.
const thin = 4

// again notes that a block is to be decompressed from its beginning, for a box of its elements. It
// returns errAgain if that is not the first time, or if the box is a small part of the elements
// that are decompressed: then the reader needs the others too, one part after the other.
func (s *spill) again(b *block, box tensor.Box) error {
	span, all := int64(1), int64(1) // from the first element to the last, as they are stored
	for d, stride := range strides(b.shape, b.codec.Order) {
		span += (box.Sizes[d] - 1) * stride
		all *= b.shape[d]
	}
	few := box.Volume() < span/thin && span > all/2

	s.mu.Lock()
	defer s.mu.Unlock()

	key := pageKey{b.file, b.offset, 0}
	switch {
	case s.failed || s.refused[key]:
		return nil
	case few || s.seen[key]:
		return errAgain
	case len(s.seen) < maxAgain:
		s.seen[key] = true
	}
	return nil
}

// find returns a block of the file, or nil. If add is set, a block that is not there is added,
// and the caller fills it: first is true.
func (s *spill) find(b *block, add bool) (at *spilled, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	key := pageKey{b.file, b.offset, 0}
	if at = s.blocks[key]; at != nil || !add || s.failed || s.refused[key] {
		return at, false
	}
	if b.size() > freeBytes(os.TempDir())/4-s.size {
		s.refused[key] = true
		return nil, false
	}
	if s.file == nil {
		var err error
		if s.file, err = temporary(); err != nil {
			s.failed = true
			return nil, false
		}
	}
	at = &spilled{ready: make(chan struct{}), at: s.size}
	s.blocks[key] = at
	s.size += b.size()
	return at, true
}

// temporary returns a new file without a name, so that it does not outlive the process.
func temporary() (*os.File, error) {
	f, err := os.CreateTemp("", "cairn-orbax-*")
	if err == nil {
		_ = os.Remove(f.Name()) // some systems remove it only after it is closed
	}
	return f, err
}

// close removes the file. All reads have ended.
func (s *spill) close() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.failed = true
	if s.file != nil {
		_ = s.file.Close()
		_ = os.Remove(s.file.Name())
		s.file = nil
	}
	clear(s.blocks)
}

// refuse drops a block that could not be filled. If the disk is full, no block is added any more.
func (s *spill) refuse(b *block, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := pageKey{b.file, b.offset, 0}
	delete(s.blocks, key)
	s.refused[key] = true
	if _, disk := errors.AsType[*os.PathError](err); disk {
		s.failed = true
	}
}

// readSpilled reads a box of a block that is in the temporary file, or goes there if add is set.
// ok is false if it is not there.
func (c *cache) readSpilled(ctx context.Context, b *block, box tensor.Box, dst *tensor.Tensor, budget int64, add bool) (read int64, ok bool, err error) {
	at, first := c.spill.find(b, add)
	if at == nil {
		return 0, false, nil
	}

	if first {
		read, at.err = c.fillSpilled(ctx, b, at.at)
		if at.err != nil {
			c.spill.refuse(b, at.err)
		}
		close(at.ready)
	}
	select {
	case <-at.ready:
	case <-ctx.Done():
		return read, true, context.Cause(ctx)
	}
	if at.err != nil {
		return read, false, nil // the caller decompresses it again, and reports what is wrong with it
	}

	r := &reading.Region{Offset: at.at, End: at.at + b.size(), DType: b.typ.DType, Strides: strides(b.shape, b.codec.Order)}
	_, err = reading.ReadBox(ctx, &c.spill, r, b.shape, box, dst, budget)
	return read, true, err
}

// fillSpilled decompresses a block into the temporary file.
func (c *cache) fillSpilled(ctx context.Context, b *block, at int64) (read int64, err error) {
	s := &stream{b: b}
	defer s.close()
	p := make([]byte, min(pageBytes, b.size()))
	for done := int64(0); done < b.size(); {
		p = p[:min(pageBytes, b.size()-done)]
		if err := s.next(ctx, c.store, p); err != nil {
			return s.read, err
		}
		if _, err := c.spill.file.WriteAt(p, at+done); err != nil {
			return s.read, err
		}
		done += int64(len(p))
	}
	return s.read, nil
}

// Open returns a reader of the file. With it, a spill is a store for reading.ReadBox.
func (s *spill) Open(context.Context, string) (blob.Reader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil, blob.ErrClosed
	}
	return &spillReader{s.file, s.size}, nil
}

// spillReader reads the file.
type spillReader struct {
	file *os.File
	size int64
}

func (r *spillReader) ReadAt(_ context.Context, p []byte, off int64) error {
	if _, err := r.file.ReadAt(p, off); err != nil {
		return fmt.Errorf("the temporary file of decompressed chunks: %w", err)
	}
	return nil
}

func (r *spillReader) Size() int64  { return r.size }
func (r *spillReader) Close() error { return nil }
