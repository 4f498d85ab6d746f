package stage

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cairn-ckpt/cairn/internal/extent"
)

// errClosed is the error of a snapshot that was closed.
var errClosed = errors.New("the snapshot is closed")

// minArena is the size of the smallest arena.
const minArena = 4 * pageBytes

// pageBytes is the unit in which an arena hands out memory.
const pageBytes = 4096

// fallbackMemory is the memory of a machine of which it is not known.
const fallbackMemory = 8 << 30

// Arena is memory of a fixed size for staged states. A page costs memory from its first
// use on. Freed memory is used again, lowest addresses first, so a save that follows
// another finds pages that are in memory already.
//
// Its methods are safe for concurrent use.
type Arena struct {
	mem   []byte
	file  *os.File // nil: no other process can map the memory
	limit int64    // the most bytes that alloc can return

	mu    sync.Mutex
	free  extent.Free
	freed chan struct{}
	used  int64
	peak  int64
	top   int64 // end of the memory that was in use so far
}

// NewArena returns an arena of the memory of this process. size is rounded down to
// whole pages.
func NewArena(size int64) (*Arena, error) { return newArena(size, mapPrivate) }

// NewShared returns an arena in a file without a name that another process can map: see
// File. Its end is a window for that process: see Window. Only Linux supports it.
func NewShared(size int64) (*Arena, error) {
	a, err := newArena(size, mapShared)
	if err == nil {
		start, _ := Window(a.Size())
		a.limit, a.free = start, extent.New(start)
	}
	return a, err
}

// NewFile returns a file of zeros without a name, and its memory in this process, of at least n
// bytes. Processes of the same user map it by [MapFile]. All of the memory is allocated. The
// caller ends its use by [Unmap]; the file may be closed before. Only Linux supports it.
func NewFile(n int64) (*os.File, []byte, error) {
	size := max(roundUp(n), minArena)
	if size < n || size != int64(int(size)) {
		return nil, nil, fmt.Errorf("%w: %d bytes", ErrArena, n)
	}
	mem, f, err := mapShared(size)
	if err != nil {
		return nil, nil, fmt.Errorf("a file of %d bytes: %w", size, err)
	}
	if err := errors.Join(f.Chmod(0o600), allocate(f, 0, size)); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("a file of %d bytes: %w", size, err), unmap(mem), f.Close())
	}
	return f, mem, nil
}

// Window returns where the window of a shared arena begins, and the size of its blocks.
// The other process asks for the content of its choice in these blocks.
func Window(size int64) (start, block int64) {
	window := min(max(size/8, pageBytes), 64<<20)
	window -= window % pageBytes
	block = min(max(window/8, pageBytes), 1<<20)
	return size - window, block - block%pageBytes
}

func newArena(size int64, alloc func(size int64) ([]byte, *os.File, error)) (*Arena, error) {
	size -= size % pageBytes
	if size < minArena || size != int64(int(size)) {
		return nil, fmt.Errorf("%w: %d bytes; at least %d are needed", ErrArena, size, minArena)
	}
	mem, file, err := alloc(size)
	if err != nil {
		return nil, fmt.Errorf("an arena of %d bytes: %w", size, err)
	}
	return &Arena{mem: mem, file: file, limit: size, free: extent.New(size), freed: make(chan struct{})}, nil
}

// checkFileSize returns an error that wraps ErrArena if a file has no size of an arena.
func checkFileSize(n int64) error {
	if n < minArena || n%pageBytes != 0 || n != int64(int(n)) {
		return fmt.Errorf("%w: the file has %d bytes; it needs at least %d, and whole pages of %d", ErrArena, n, minArena, pageBytes)
	}
	return nil
}

// Close returns the memory to the system. The memory must not be used after that.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return nil
	}
	err := unmap(a.mem)
	a.mem, a.free = nil, extent.Free{}
	if a.file != nil {
		err = errors.Join(err, a.file.Close())
	}
	return err
}

// File returns the file of a shared arena, or nil.
func (a *Arena) File() *os.File { return a.file }

// Size returns the number of bytes in the arena.
func (a *Arena) Size() int64 { return int64(len(a.mem)) }

// Used returns the number of bytes that are in use, and the largest number so far.
func (a *Arena) Used() (now, peak int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used, a.peak
}

// alloc returns the offset of n free bytes, which the caller frees by release. If no n
// bytes are free, ok is false, and the channel is closed once memory was freed.
func (a *Arena) alloc(n int64) (off int64, ok bool, freed <-chan struct{}) {
	n = roundUp(n)
	a.mu.Lock()
	defer a.mu.Unlock()
	off, ok = a.free.Take(n)
	if !ok {
		return 0, false, a.freed
	}
	if off+n > a.top && a.file != nil {
		// Without memory for the file, writing to it would end this process.
		if err := allocate(a.file, a.top, off+n-a.top); err != nil {
			a.free.Put(off, n)
			return 0, false, a.freed
		}
		a.top = off + n
	}
	a.used += n
	a.peak = max(a.peak, a.used)
	return off, true, nil
}

// release frees n bytes that alloc returned.
func (a *Arena) release(off, n int64) {
	n = roundUp(n)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free.Put(off, n)
	a.used -= n
	close(a.freed)
	a.freed = make(chan struct{})
}

func roundUp(n int64) int64 { return (n + pageBytes - 1) / pageBytes * pageBytes }
