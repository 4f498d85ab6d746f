package autograd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/cairn-ckpt/cairn/internal/extent"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/tensor"
)

// swapPage is the unit of the file. Smaller tensors stay in memory.
const swapPage = 4096

// SwapOptions says how a [Swap] works. Nil is the same as the zero value.
type SwapOptions struct {
	// Stay says of a tensor whether it stays in memory. Nil: no tensor stays, except leaves and
	// tensors of less than 4 KiB, which always stay.
	Stay func(Saved) bool
	// BufferBytes bounds the memory of tensors that wait to be written, and of tensors that
	// are read before they are needed. Zero: 64 MiB. A larger tensor is written alone.
	BufferBytes int64
}

// Swap is a [Keeper] that moves tensors to a file while the computation goes on. In the
// backward pass it reads them before they are needed: when a tensor is needed, Swap
// starts to read the tensors that were kept before it. Memory that several operators of a graph
// keep is written once. The graph or [Graph.Backward] returns an error of the file, and so
// does every later use.
//
// One Swap is for any number of graphs. Its methods are safe for concurrent use.
type Swap struct {
	stay   func(Saved) bool
	buffer int64
	stream platform.Stream // writes and reads, in the order in which they were asked for
	file   interface {
		io.ReaderAt
		io.WriterAt
		io.Closer
	}
	path string // of the file if it could not be removed while it is open

	mu      sync.Mutex
	err     error // guarded by mu, as is all below
	space   extent.Free
	known   map[memory]*block
	order   []*keptTensor // of the tensors as they were kept; those at the end are in use
	writing []write       // may not be done
	wanted  int64         // bytes of the blocks that are to be in memory
}

var _ Keeper = (*Swap)(nil)

// NewSwap returns a swap with a file in the folder dir. The file has no name, so it is gone
// when the process ends. The caller closes the swap.
func NewSwap(ctx context.Context, p platform.Streams, dir string, opts *SwapOptions) (*Swap, error) {
	s := &Swap{buffer: 64 << 20, space: extent.New(math.MaxInt64), known: map[memory]*block{}}
	if opts != nil {
		s.stay = opts.Stay
		if opts.BufferBytes > 0 {
			s.buffer = opts.BufferBytes
		}
	}

	f, err := os.CreateTemp(dir, "cairn-swap-*")
	if err != nil {
		return nil, fmt.Errorf("a file to swap tensors to: %w", err)
	}

	s.file = f
	if os.Remove(f.Name()) != nil {
		s.path = f.Name() // this system keeps the names of open files
	}

	if s.stream, err = p.NewStream(ctx); err != nil {
		return nil, errors.Join(err, s.closeFile())
	}
	return s, nil
}

// Close frees the file. Tensors that were not released are lost.
func (s *Swap) Close() error {
	s.stream.Close()
	return s.closeFile()
}

func (s *Swap) closeFile() error {
	err := s.file.Close()
	if s.path != "" {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

// memory identifies the memory of a tensor while it exists, and the graph for which its
// contents stay the same.
type memory struct {
	at    uintptr
	bytes int64
	graph *shared
}

// block is memory that is, or will be, in the file. The lock of the swap guards it.
type block struct {
	off, bytes int64
	key        memory
	origin     weak.Pointer[tensor.Tensor] // the tensor that was kept first
	data       []byte                      // nil if it is only in the file
	state      state
	refs       int            // places that are not released
	users      int            // places that want it in memory
	done       platform.Event // after the last write or read that was queued
}

// state is the state of a block in the file.
type state uint8

const (
	absent  state = iota // not in the file
	queued               // not in the file: the write has not begun
	begun                // the write has begun
	present              // all
)

// write is a write that was queued.
type write struct {
	done  platform.Event
	bytes int64
}

// keptTensor is a tensor that an operator keeps. It does not refer to the [Kept] of the
// operator, so that the place of a graph that was given up is released with the graph.
type keptTensor struct {
	swap     *Swap
	block    *block
	index    int // in the order of the swap
	dtype    tensor.DType
	shape    []int64
	wanted   bool // guarded by the lock of the swap
	released bool // likewise
}

// swapped is the [Kept] of a place.
type swapped struct{ *keptTensor }

// Keep queues a write of the tensor. If too much waits to be written, it waits.
func (s *Swap) Keep(ctx context.Context, v Saved) (Kept, error) {
	t := v.Tensor
	if v.Leaf || t.NumBytes() < swapPage || s.stay != nil && s.stay(v) {
		return nil, nil
	}

	if err := s.room(ctx, t.NumBytes()); err != nil {
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	b := s.blockOf(v)
	b.refs++
	p := &keptTensor{swap: s, block: b, index: len(s.order), dtype: t.DType(), shape: t.Shape()}
	s.order = append(s.order, p)
	k := &swapped{p}
	runtime.AddCleanup(k, (*keptTensor).Release, p)
	return k, nil
}

// room waits until n more bytes may wait to be written.
func (s *Swap) room(ctx context.Context, n int64) error {
	for {
		first, err := s.full(n)
		if err != nil || first == nil {
			return err
		}
		if err := first.Wait(ctx); err != nil {
			return err
		}
	}
}

// full returns the end of the first write that must be done before n more bytes may wait,
// or nil.
func (s *Swap) full(n int64) (first platform.Event, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.writing = slices.DeleteFunc(s.writing, func(w write) bool {
		select {
		case <-w.done.Done():
			return true
		default:
			return false
		}
	})

	for _, w := range s.writing {
		n += w.bytes
	}

	if n <= s.buffer || len(s.writing) == 0 {
		return nil, s.err
	}
	return s.writing[0].done, s.err
}

// blockOf returns the block of the memory of a tensor, a new one if there is no block yet.
func (s *Swap) blockOf(v Saved) *block {
	t := v.Tensor
	data, contiguous := t.Bytes()
	var key memory
	if contiguous {
		key = memory{reflect.ValueOf(data).Pointer(), t.NumBytes(), v.graph}
		// If the first tensor is gone, its memory may belong to another one now.
		if b := s.known[key]; b != nil && b.origin.Value() != nil {
			return b
		}
	} else {
		data = t.Contents()
	}

	off, _ := s.space.Take(pages(t.NumBytes())) // there is always room at the end
	b := &block{off: off, bytes: t.NumBytes(), key: key, origin: weak.Make(t), data: data}
	if contiguous {
		s.known[key] = b
	}
	s.queueWrite(b)
	return b
}

func pages(n int64) int64 { return (n + swapPage - 1) / swapPage * swapPage }

func (s *Swap) queueWrite(b *block) {
	b.state = queued
	s.stream.Go(func(context.Context) error { return s.write(b) })
	b.done = s.stream.Record()
	s.writing = append(s.writing, write{b.done, b.bytes})
}

// write writes a block if that is still wanted.
func (s *Swap) write(b *block) error {
	s.mu.Lock()
	if b.state != queued || b.refs == 0 {
		s.mu.Unlock()
		return nil
	}

	b.state = begun
	data := b.data
	s.mu.Unlock()

	_, err := s.file.WriteAt(data, b.off)
	s.mu.Lock()
	defer s.mu.Unlock()

	if err != nil {
		s.err = fmt.Errorf("swap %d bytes to a file: %w", b.bytes, err)
		return s.err
	}

	b.state = present
	if b.users == 0 {
		b.data = nil
	}
	return nil
}

// read reads a block if that is still wanted.
func (s *Swap) read(b *block) error {
	s.mu.Lock()
	unwanted := b.users == 0 || b.data != nil
	s.mu.Unlock()
	if unwanted {
		return nil
	}

	data := make([]byte, b.bytes)
	_, err := s.file.ReadAt(data, b.off)
	s.mu.Lock()
	defer s.mu.Unlock()

	if err != nil {
		s.err = fmt.Errorf("swap %d bytes from a file: %w", b.bytes, err)
		return s.err
	}

	if b.users > 0 {
		b.data = data
	}
	return nil
}

// Get brings the tensor back, and begins to read those before it.
func (p *keptTensor) Get(ctx context.Context) (*tensor.Tensor, error) {
	s, b := p.swap, p.block
	s.mu.Lock()
	p.want()
	s.ahead(p.index)
	done := b.done

	// An operator may change the tensor, so a write that reads it must be done.
	here := b.data != nil && b.state != begun
	s.mu.Unlock()
	if !here {
		if err := done.Wait(ctx); err != nil {
			return nil, err
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.err != nil {
		return nil, s.err
	}
	return tensor.FromBytes(p.dtype, p.shape, b.data)
}

// ahead asks for the blocks of the places before one, the nearest first, as many as the
// buffer has room for.
func (s *Swap) ahead(before int) {
	for i := before - 1; i >= 0; i-- {
		p := s.order[i]
		if p.released || p.wanted {
			continue
		}
		if p.block.users == 0 && s.wanted+p.block.bytes > s.buffer {
			return
		}
		p.want()
	}
}

// want makes the block of the place come into memory, and stay there.
func (p *keptTensor) want() {
	if p.wanted {
		return
	}

	p.wanted = true
	s, b := p.swap, p.block
	if b.users++; b.users == 1 {
		s.wanted += b.bytes
	}

	switch {
	case b.state == queued:
		b.state = absent // it may not be needed after this
	case b.state == present && b.data == nil && b.users == 1:
		s.stream.Go(func(context.Context) error { return s.read(b) })
		b.done = s.stream.Record()
	}
}

// Release frees the block with its last place.
func (p *keptTensor) Release() {
	s, b := p.swap, p.block
	s.mu.Lock()
	defer s.mu.Unlock()

	if p.released {
		return
	}

	p.released = true
	for n := len(s.order) - 1; n >= 0 && s.order[n].released; n-- {
		s.order[n] = nil
		s.order = s.order[:n]
	}

	if p.wanted {
		if b.users--; b.users == 0 {
			s.wanted -= b.bytes
		}
	}

	if b.refs--; b.refs == 0 {
		s.free(b)
		return
	}

	switch {
	case b.users == 0 && b.state == present:
		b.data = nil
	case b.users == 0 && b.state == absent:
		s.queueWrite(b)
	}
}

// free frees a block after the writes and reads that were queued.
func (s *Swap) free(b *block) {
	b.data = nil
	if s.known[b.key] == b {
		delete(s.known, b.key)
	}

	s.stream.Go(func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.space.Put(b.off, pages(b.bytes))
		return nil
	})
}
