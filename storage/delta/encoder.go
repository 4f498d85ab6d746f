package delta

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/internal/segment"
)

// Range is a part of a file that is written: a tensor, or anything else. It becomes one or
// more segments.
type Range struct {
	Len int64
	// Width is the size of an element in bytes.
	Width int
	// Base, if not nil, holds an earlier state of the range, of the same length, at BaseOff.
	Base    *Source
	BaseOff int64
}

// Encoder decides how the segments of one file are stored. Its methods are safe for
// concurrent use.
type Encoder struct {
	ranges   []Range
	segments []planned
	allowed  map[string]bool
	tried    tally
	each     []tally // by range

	mu    sync.Mutex
	table Table        // guarded by mu
	files map[File]int // Body.File of each file; guarded by mu
}

// planned is a segment that will be written.
type planned struct {
	rng  int   // position of its range
	off  int64 // in the range
	size int
}

// tally counts attempts to store a difference.
type tally struct{ tries, wins atomic.Int32 }

// NewEncoder returns an encoder for a file that consists of the ranges. folders are the
// names of the folders that segments may refer to.
func NewEncoder(ranges []Range, folders []string) *Encoder {
	e := &Encoder{ranges: ranges, each: make([]tally, len(ranges)), allowed: map[string]bool{}, files: map[File]int{}}
	for _, f := range folders {
		e.allowed[f] = true
	}
	for i, r := range ranges {
		for off := int64(0); off < r.Len; off += SegmentBytes {
			e.segments = append(e.segments, planned{i, off, int(min(SegmentBytes, r.Len-off))})
		}
	}
	e.table.Segments = make([]Segment, len(e.segments))
	return e
}

// Lengths returns the lengths of the segments, in their order.
func (e *Encoder) Lengths() []int {
	out := make([]int, len(e.segments))
	for i, s := range e.segments {
		out[i] = s.size
	}
	return out
}

const (
	// diffShare is the largest part of a segment that a difference may have: 1/diffShare.
	diffShare = 4
	// sample is how often a difference is tried if it did not pay before.
	sample = 16
)

// Encode decides how segment i with the bytes src is stored. It returns the bytes that are
// to be stored in the delta file, in code, or nil if there are none. code has room for them
// and may be part of the result; src may be the result.
func (e *Encoder) Encode(ctx context.Context, i int, src, code []byte) ([]byte, error) {
	p := &e.segments[i]
	rng := &e.ranges[p.rng]
	s := Segment{Len: p.size, Width: rng.Width, Hash: HashOf(src)}
	var hash Hash
	var bodies []place
	ok := false
	if rng.Base != nil {
		hash, bodies, ok = rng.Base.segment(rng.BaseOff+p.off, p.size)
		ok = ok && !slices.ContainsFunc(bodies, func(b place) bool { return !e.allowed[b.file.Folder] })
	}
	if ok && hash == s.Hash {
		e.refer(&s, bodies)
		e.keep(i, s)
		return nil, nil
	}
	if ok && len(bodies) < MaxBodies && e.tries(p, i) {
		out, err := diff(ctx, src, code, rng, p, hash)
		if err != nil {
			return nil, err
		}
		e.count(p, out != nil)
		if out != nil {
			e.refer(&s, bodies)
			s.Bodies = append(s.Bodies, Body{Len: len(out), Kind: Diff})
			e.keep(i, s)
			return out, nil
		}
	}
	s.Bodies = []Body{{Len: len(src), Kind: Whole}}
	e.keep(i, s)
	return src, nil
}

// tries reports whether the bytes of the base are worth reading.
func (e *Encoder) tries(p *planned, i int) bool {
	pays := func(t *tally, first int32) bool {
		n := t.tries.Load()
		return n < first || 2*t.wins.Load() >= n
	}
	return i%sample == 0 || pays(&e.tried, sample) && pays(&e.each[p.rng], 2)
}

func (e *Encoder) count(p *planned, won bool) {
	for _, t := range []*tally{&e.tried, &e.each[p.rng]} {
		t.tries.Add(1)
		if won {
			t.wins.Add(1)
		}
	}
}

// diff returns the code of the difference between src and the segment of the base, whose
// hash is given, or nil if the code is too long or the base cannot be read.
func diff(ctx context.Context, src, code []byte, rng *Range, p *planned, hash Hash) ([]byte, error) {
	buf := scratch.Get().(*[]byte)
	defer scratch.Put(buf)
	old := (*buf)[:len(src)]
	if err := rng.Base.ReadAt(ctx, old, rng.BaseOff+p.off); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, nil
	}
	if HashOf(old) != hash {
		return nil, nil // the base is damaged
	}
	out, ok := segment.AppendDiff(code[:0], src, old, rng.Width, len(src)/diffShare)
	if !ok {
		return nil, nil
	}
	return out, nil
}

// refer makes the bodies of the base those of s.
func (e *Encoder) refer(s *Segment, bodies []place) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Bodies = make([]Body, len(bodies), len(bodies)+1)
	for i, b := range bodies {
		n, ok := e.files[b.file]
		if !ok {
			e.table.Files = append(e.table.Files, b.file)
			n = len(e.table.Files)
			e.files[b.file] = n
		}
		s.Bodies[i] = b.Body
		s.Bodies[i].File = n
	}
}

// keep makes s segment i.
func (e *Encoder) keep(i int, s Segment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.Segments[i] = s
}

// Stored says at which offset of the delta file the bytes that Encode returned are.
func (e *Encoder) Stored(i int, off int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.table.Segments[i].Bodies
	b[len(b)-1].Off = off
}

// Finish returns the table of the file, which has the given size and checksum.
func (e *Encoder) Finish(size int64, crc uint32) *Table {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.Size, e.table.CRC32C = size, crc
	return &e.table
}

// Hasher computes the hashes of the segments of a file that is stored as it is. Pieces of
// the file may come in any order and from several goroutines, each byte once.
type Hasher struct {
	enc    *Encoder
	starts []int64

	mu    sync.Mutex
	parts map[int]*part // segments of which some bytes have come; guarded by mu
}

// part is a segment of which some bytes have come.
type part struct {
	data []byte
	left int
}

// NewHasher returns a hasher for a file that consists of the ranges.
func NewHasher(ranges []Range) *Hasher {
	h := &Hasher{enc: NewEncoder(ranges, nil), parts: map[int]*part{}}
	h.starts = make([]int64, 1, 1+len(h.enc.segments))
	for _, s := range h.enc.segments {
		h.starts = append(h.starts, h.starts[len(h.starts)-1]+int64(s.size))
	}
	return h
}

// Add adds p, the bytes of the file from off on.
func (h *Hasher) Add(p []byte, off int64) {
	i, _ := slices.BinarySearch(h.starts, off+1)
	for i--; len(p) > 0; i++ {
		n := min(int64(len(p)), h.starts[i+1]-off)
		if n == int64(h.enc.segments[i].size) {
			h.set(i, HashOf(p[:n]))
		} else {
			h.addPart(i, p[:n], off-h.starts[i])
		}
		p, off = p[n:], off+n
	}
}

// addPart adds some bytes of segment i.
func (h *Hasher) addPart(i int, p []byte, at int64) {
	h.mu.Lock()
	w := h.parts[i]
	if w == nil {
		n := h.enc.segments[i].size
		w = &part{data: make([]byte, n), left: n}
		h.parts[i] = w
	}
	copy(w.data[at:], p)
	w.left -= len(p)
	done := w.left == 0
	if done {
		delete(h.parts, i)
	}
	h.mu.Unlock()
	if done {
		h.set(i, HashOf(w.data))
	}
}

func (h *Hasher) set(i int, sum Hash) {
	s := &h.enc.segments[i]
	h.enc.keep(i, Segment{
		Len: s.size, Width: h.enc.ranges[s.rng].Width, Hash: sum, Bodies: []Body{{File: 1, Off: h.starts[i], Len: s.size}},
	})
}

// Finish returns the table of the file, of which all bytes have come.
func (h *Hasher) Finish(name string, size int64, crc uint32) *Table {
	t := h.enc.Finish(size, crc)
	t.Files = []File{{Name: name, Size: size}}
	return t
}
