package orbax

import (
	"bufio"
	"container/list"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	// pageBytes is the size of a page: a piece of a block that is decompressed at once.
	pageBytes = 1 << 20
	// keptBytes bounds the pages that a checkpoint keeps in memory, and keptStreams the memory of the
	// decompressors that it keeps, apart from those that are in use. A conversion reads a large block
	// in many slices, one after the other: the next slice goes on where the last one has ended.
	keptBytes   = 48 << 20
	keptStreams = 48 << 20
	// aheadBytes is the number of stored bytes that a decompressor reads at once.
	aheadBytes = 512 << 10
	// maxSpare bounds the number of free buffers.
	maxSpare = 8
)

// cache reads blocks. It keeps pages and decompressors that were used last. Its methods are safe for
// concurrent use.
type cache struct {
	store blob.Store
	small func() *zstd.Decoder
	spill spill

	mu      sync.Mutex
	pages   map[pageKey]*page // guarded by mu
	idle    *list.List        // guarded by mu; pages that are not in use, the oldest first
	bytes   int64             // guarded by mu; of pages
	spare   [][]byte          // guarded by mu; free buffers of pageBytes
	streams map[pageKey]*stream
	resting *list.List // guarded by mu; streams that are not in use, the oldest first
	weight  int64      // guarded by mu; of streams
	indexes map[pageKey]*index
	entries int  // guarded by mu; of indexes
	closed  bool // guarded by mu
}

func newCache(store blob.Store) *cache {
	return &cache{
		store: store, small: sync.OnceValue(newSmall),
		spill: spill{seen: map[pageKey]bool{}, blocks: map[pageKey]*spilled{}, refused: map[pageKey]bool{}},
		pages: map[pageKey]*page{}, idle: list.New(), streams: map[pageKey]*stream{}, resting: list.New(), indexes: map[pageKey]*index{},
	}
}

// pageKey identifies a page: the place of its block, and its number in it.
type pageKey struct {
	file      string
	offset, n int64
}

// page is a piece of a decompressed block.
type page struct {
	key   pageKey
	p     []byte
	users int           // guarded by cache.mu
	at    *list.Element // guarded by cache.mu; in cache.idle, or nil
}

// get returns a page, or nil. The caller releases it.
func (c *cache) get(key pageKey) *page {
	c.mu.Lock()
	defer c.mu.Unlock()

	pg := c.pages[key]
	if pg == nil {
		return nil
	}
	pg.users++
	if pg.at != nil {
		c.idle.Remove(pg.at)
		pg.at = nil
	}
	return pg
}

// put adds a page with the bytes p, or returns the page that is already there. The caller releases it.
func (c *cache) put(key pageKey, p []byte) *page {
	if pg := c.get(key); pg != nil {
		return pg
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	pg := &page{key: key, p: p, users: 1}
	if c.pages[key] == nil { // otherwise another one was added meanwhile, and this one is not kept
		c.pages[key] = pg
		c.bytes += int64(len(p))
	}
	c.evict()
	return pg
}

// release ends a use of a page.
func (c *cache) release(pg *page) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if pg.users--; pg.users > 0 || c.pages[pg.key] != pg {
		return
	}
	pg.at = c.idle.PushBack(pg)
	c.evict()
}

// evict forgets pages that are not in use. The caller holds mu.
func (c *cache) evict() {
	for c.bytes > keptBytes && c.idle.Len() > 0 {
		pg := c.idle.Remove(c.idle.Front()).(*page)
		delete(c.pages, pg.key)
		c.bytes -= int64(len(pg.p))
		if cap(pg.p) == pageBytes && len(c.spare) < maxSpare {
			c.spare = append(c.spare, pg.p[:pageBytes])
		}
	}
}

// memory returns a buffer of n bytes.
func (c *cache) memory(n int64) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()

	if k := len(c.spare); n <= pageBytes && n > pageBytes/2 && k > 0 {
		p := c.spare[k-1]
		c.spare = c.spare[:k-1]
		return p[:n]
	}
	if n <= pageBytes && n > pageBytes/2 {
		return make([]byte, n, pageBytes)
	}
	return make([]byte, n)
}

// close ends all decompressors.
func (c *cache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.closed = true
	for e := c.resting.Front(); e != nil; e = e.Next() {
		e.Value.(*stream).close()
	}
	c.resting.Init()
	clear(c.streams)
	c.spill.close()
}

// readPages reads a large compressed block page by page. Pages without elements of box are
// decompressed too, unless they are after all others.
func (c *cache) readPages(ctx context.Context, b *block, box tensor.Box, dst *tensor.Tensor) (read int64, err error) {
	if p := b.whole(box, dst); p != nil {
		s := &stream{b: b}
		defer s.close()
		err := s.next(ctx, c.store, p)
		return s.read, err
	}

	size, elem := b.size(), int64(b.typ.DType.Size())
	for at := int64(0); at < size; at += pageBytes {
		end := min(at+pageBytes, size)
		needed, err := b.touches(at/elem, end/elem, box)
		if err != nil {
			return read, err
		}
		if !needed {
			continue
		}

		pg, n, err := c.page(ctx, b, box, at/pageBytes)
		read += n
		if err != nil {
			return read, err
		}
		err = b.fill(pg.p, at/elem, box, dst)
		c.release(pg)
		if err != nil {
			return read, err
		}
	}
	return read, nil
}

// page returns page n of a block, for a read of a box. The caller releases it.
func (c *cache) page(ctx context.Context, b *block, box tensor.Box, n int64) (pg *page, read int64, err error) {
	key := pageKey{b.file, b.offset, n}
	if pg := c.get(key); pg != nil {
		return pg, 0, nil
	}

	s := c.hold(b)
	defer c.rest(s)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
	if pg := c.get(key); pg != nil { // another goroutine has made it
		return pg, 0, nil
	}

	if s.number > n {
		s.close()
	}
	if s.dec == nil {
		if err := c.spill.again(b, box); err != nil {
			return nil, 0, err
		}
	}
	before := s.read
	for {
		at := s.number
		p := c.memory(min(pageBytes, b.size()-at*pageBytes))
		if err := s.next(ctx, c.store, p); err != nil {
			s.close()
			return nil, s.read - before, err
		}
		pg := c.put(pageKey{b.file, b.offset, at}, p)
		if at == n {
			return pg, s.read - before, nil
		}
		c.release(pg)
	}
}

// hold returns the stream of a block for a use.
func (c *cache) hold(b *block) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()

	key := pageKey{b.file, b.offset, 0}
	s := c.streams[key]
	if s == nil {
		s = &stream{b: b, key: key, turn: make(chan struct{}, 1)}
		c.streams[key] = s
	}
	if s.users++; s.at != nil {
		c.resting.Remove(s.at)
		c.weight -= s.weight
		s.at = nil
	}
	return s
}

// rest ends a use of a stream. It closes streams that were not used for long.
func (c *cache) rest(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if s.users--; s.users > 0 {
		return
	}
	if s.dec == nil || c.closed {
		s.close()
		delete(c.streams, s.key)
		return
	}
	s.at = c.resting.PushBack(s)
	c.weight += s.weight
	for c.weight > keptStreams {
		old := c.resting.Remove(c.resting.Front()).(*stream)
		c.weight -= old.weight
		delete(c.streams, old.key)
		old.close()
	}
}

// stream decompresses a large block from its beginning to its end.
type stream struct {
	b   *block
	key pageKey

	users  int           // guarded by cache.mu
	at     *list.Element // guarded by cache.mu; in cache.resting, or nil
	turn   chan struct{} // holds one element while the fields below are in use
	dec    *zstd.Decoder // nil: at the beginning
	in     *section
	number int64 // of the next page
	done   int64 // bytes that were decompressed
	weight int64 // bytes of memory
	read   int64 // bytes that were read from the file, in all uses
}

// next fills p with the next bytes of the block. After an error, the stream must be closed.
func (s *stream) next(ctx context.Context, store blob.Store, p []byte) error {
	if s.dec == nil {
		if err := s.open(ctx, store); err != nil {
			return err
		}
	}

	s.in.ctx, s.in.err = ctx, nil
	if _, err := io.ReadFull(s.dec, p); err != nil {
		return s.fail(err)
	}
	if resolve := s.b.typ.Resolve(); resolve != nil {
		resolve(p)
	}

	s.number++
	if s.done += int64(len(p)); s.done < s.b.size() {
		return nil
	}

	// The end of a frame has its checksum.
	var more [1]byte
	switch n, err := s.dec.Read(more[:]); {
	case n > 0:
		return s.b.errSize()
	case !errors.Is(err, io.EOF):
		return s.fail(err)
	}
	return nil
}

// fail returns the error of a decompressor, or the error of the file that has caused it.
func (s *stream) fail(err error) error {
	switch {
	case s.in.err != nil:
		return s.b.explain(s.in.err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return s.b.errSize()
	}
	return s.b.damaged(err)
}

// open begins to read the block.
func (s *stream) open(ctx context.Context, store blob.Store) error {
	r, err := store.Open(ctx, s.b.file)
	if err != nil {
		return s.b.explain(err)
	}

	s.in = &section{s: s, r: r, ctx: ctx, at: s.b.offset, end: s.b.offset + s.b.length}
	ahead := bufio.NewReaderSize(s.in, int(min(aheadBytes, max(16, s.b.length))))
	s.weight = aheadBytes + pageBytes
	if head, _ := ahead.Peek(zstd.HeaderMaxSize); len(head) > 0 {
		var h zstd.Header
		if h.Decode(head) == nil {
			s.weight += int64(min(max(h.WindowSize, h.FrameContentSize*uint64(bit(h.SingleSegment))), maxWindow)) * 2
		}
	}

	s.dec, err = zstd.NewReader(ahead, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return s.fail(err)
	}
	return nil
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// close ends the stream. It can be used again, from the beginning.
func (s *stream) close() {
	if s.dec != nil {
		s.dec.Close()
	}
	if s.in != nil {
		s.in.r.Close()
	}
	s.dec, s.in, s.number, s.done, s.weight = nil, nil, 0, 0, 0
}

// section reads a range of a file.
type section struct {
	s       *stream
	r       blob.Reader
	ctx     context.Context // of the current use: io.Reader has no context
	err     error           // of the last read
	at, end int64
}

// Read implements io.Reader.
func (x *section) Read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), x.end-x.at)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	if x.err = x.r.ReadAt(x.ctx, p, x.at); x.err != nil {
		return 0, x.err
	}
	x.at += int64(len(p))
	x.s.read += int64(len(p))
	return len(p), nil
}
