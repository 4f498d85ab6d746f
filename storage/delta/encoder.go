package delta

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"unique"

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
	avoid    func(File) bool // files to which segments must not refer; nil: none
	tried    tally
	each     []tally // by range
	max      int     // bodies of a segment
	segs     *Segments
	own      unique.Handle[origin] // of the delta file, if there is a cache

	mu      sync.Mutex
	table   Table        // guarded by mu
	files   map[File]int // Body.File of each file; guarded by mu
	past    map[File]int // Step.From.File of each file; guarded by mu
	bounded int64        // bytes of segments with too many bodies in the base; guarded by mu
}

// planned is a segment that will be written.
type planned struct {
	rng  int   // position of its range
	off  int64 // in the range
	size int
}

// tally counts attempts to store a difference.
type tally struct{ tries, wins atomic.Int32 }

// NewEncoder returns an encoder for a file that consists of the ranges and is stored in the
// delta file name. folders are the names of the folders that segments may refer to. A segment
// gets at most maxBodies bodies, which are at most LongBodies. If maxBodies is 0, segments refer
// to no other file, and may have steps. The encoder puts the segments into segs, and compares
// them with the earlier ones there.
func NewEncoder(name string, ranges []Range, folders []string, maxBodies int, segs *Segments) *Encoder {
	e := newEncoder(ranges, segs)
	e.max = maxBodies
	for _, f := range folders {
		e.allowed[f] = true
	}
	if segs != nil {
		e.own = segs.origin(File{Name: name})
	}
	return e
}

// Avoid keeps segments from referring to files for which damaged returns true. It is called
// before the first segment is encoded. damaged may be nil.
func (e *Encoder) Avoid(damaged func(File) bool) { e.avoid = damaged }

func newEncoder(ranges []Range, segs *Segments) *Encoder {
	e := &Encoder{segs: segs, ranges: ranges, each: make([]tally, len(ranges)), allowed: map[string]bool{}, files: map[File]int{}, past: map[File]int{}}
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
// to be stored in the delta file, in code, or nil if there are none. code has room for them,
// a quarter more than src, and may be part of the result; src may be the result.
func (e *Encoder) Encode(ctx context.Context, i int, src, code []byte) ([]byte, error) {
	p := &e.segments[i]
	rng := &e.ranges[p.rng]
	s := Segment{Len: p.size, Width: rng.Width, Hash: HashOf(src)}
	base := e.base(rng, p)
	c := e.segs.lock(i, p.size)
	if c == nil {
		return e.encode(ctx, i, &s, base, src, nil, code)
	}
	var old []byte // the bytes of the base
	if base != nil && c.hash == base.hash {
		old = c.data
	}
	out, err := e.encode(ctx, i, &s, base, src, old, code)
	if err == nil {
		if old == nil {
			copy(c.data, src)
		}
		st := state{} // Stored says of which state they are
		if out == nil {
			last := &base.bodies[len(base.bodies)-1]
			st = state{e.segs.origin(last.file), last.Off, last.Kind}
		}
		c.set(st, s.Hash)
	}
	e.segs.unlock(c, old != nil)
	return out, err
}

// base returns the earlier state of a segment, or nil if it may not be referred to.
func (e *Encoder) base(rng *Range, p *planned) *known {
	if rng.Base == nil {
		return nil
	}
	k := rng.Base.segment(rng.BaseOff+p.off, p.size)
	if k == nil || slices.ContainsFunc(k.bodies, func(b fileBody) bool { return !e.mayRefer(b.file) }) {
		return nil
	}
	return k
}

// mayRefer reports whether segments may refer to a file of another folder.
func (e *Encoder) mayRefer(f File) bool {
	return e.allowed[f.Folder] && (e.avoid == nil || !e.avoid(f))
}

// encode is Encode of the segment s. old has the bytes of the base, and gets those of src, or is
// nil if they are to be read.
func (e *Encoder) encode(ctx context.Context, i int, s *Segment, base *known, src, old, code []byte) ([]byte, error) {
	defer func() { e.keep(i, *s) }()
	equal := base != nil && base.hash == s.Hash
	if equal && e.max > 0 {
		e.refer(s, base)
		return nil, nil
	}
	p := &e.segments[i]
	long := base != nil && len(base.bodies) >= e.max
	if base != nil && !equal && (!long || old != nil) && e.tries(p, i) {
		at := 0
		if long {
			at = copy(code, src)
		}
		out, err := e.diff(ctx, p, base, src, old, code[:at])
		if err != nil {
			return nil, err
		}
		e.count(p, out != nil)
		if out != nil && long {
			e.step(s, base, len(out)-at)
			return out, nil
		}
		if out != nil {
			e.refer(s, base)
			s.Bodies = append(s.Bodies, Body{Len: len(out), Kind: Diff})
			return out, nil
		}
	} else if old != nil {
		copy(old, src)
	}
	s.Bodies = []Body{{Len: len(src), Kind: Whole}}
	if long {
		e.mu.Lock()
		e.bounded += int64(len(src))
		e.mu.Unlock()
	}
	return src, nil
}

// step makes s a whole body with a step of n bytes from the base.
func (e *Encoder) step(s *Segment, base *known, n int) {
	last := &base.bodies[len(base.bodies)-1]
	s.Bodies = []Body{{Len: s.Len, Kind: Whole}}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bounded += int64(s.Len)
	s.Step = &Step{From: Body{File: e.pastFile(last.file), Off: last.Off, Kind: last.Kind}, Diff: Body{Len: n, Kind: Diff}}
}

// pastFile returns Step.From.File of a file. The caller holds mu.
func (e *Encoder) pastFile(f File) int {
	f.Size = 0
	n, ok := e.past[f]
	if !ok {
		n = len(e.table.Past)
		e.table.Past = append(e.table.Past, f)
		e.past[f] = n
	}
	return n
}

// Bounded returns the bytes of segments that were stored whole although they have a base,
// because the base has too many bodies.
func (e *Encoder) Bounded() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bounded
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

// diff appends the code of the difference between src and the base to code, or returns nil if
// it is too long or the base cannot be read. old has the bytes of the base, and gets those of
// src, or is nil.
func (e *Encoder) diff(ctx context.Context, p *planned, base *known, src, old, code []byte) ([]byte, error) {
	rng := &e.ranges[p.rng]
	diff := segment.Advance
	if old == nil {
		if rng.Base.slow {
			return nil, nil // the base is not worth a transfer
		}
		buf := scratch.Get().(*[]byte)
		defer scratch.Put(buf)
		old, diff = (*buf)[:len(src)], segment.AppendDiff
		if err := rng.Base.ReadAt(ctx, old, rng.BaseOff+p.off); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, nil
		}
		if HashOf(old) != base.hash {
			return nil, nil // the base is damaged
		}
	}
	form := segment.Quick
	if e.segs != nil {
		form = segment.Small // others transfer the code, and apply each difference once
	}
	out, ok := diff(code, src, old, rng.Width, len(src)/diffShare, form)
	if !ok {
		return nil, nil
	}
	return out, nil
}

// refer makes the bodies of the base those of s.
func (e *Encoder) refer(s *Segment, base *known) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.Bodies = make([]Body, len(base.bodies), len(base.bodies)+1)
	for i, b := range base.bodies {
		n, ok := e.files[b.file]
		if !ok {
			e.table.Files = append(e.table.Files, b.file)
			n = len(e.table.Files)
			e.files[b.file] = n
		}
		s.Bodies[i] = b.Body
		s.Bodies[i].File = n
	}
	if base.step != nil {
		s.Step = &Step{From: base.step.From, Diff: base.step.Diff}
		s.Step.From.File = e.pastFile(base.past)
		s.Step.Diff.File = s.Bodies[0].File
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
	s := &e.table.Segments[i]
	last := &s.Bodies[len(s.Bodies)-1]
	last.Off = off
	if last.Kind == Whole && s.Step != nil {
		s.Step.Diff.Off = off + int64(last.Len)
	}
	e.mu.Unlock()
	if c := e.segs.lock(i, s.Len); c != nil {
		if c.hash == s.Hash {
			c.set(state{e.own, off, last.Kind}, s.Hash)
		}
		c.mu.Unlock()
	}
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
	name   string
	starts []int64

	mu    sync.Mutex
	parts map[int]*gathered // segments of which some bytes have come; guarded by mu
}

// gathered is a segment of which some bytes have come.
type gathered struct {
	data []byte
	left int
}

// NewHasher returns a hasher for the file name, which consists of the ranges. The segments
// are put into segs.
func NewHasher(name string, ranges []Range, segs *Segments) *Hasher {
	h := &Hasher{enc: newEncoder(ranges, segs), name: name, parts: map[int]*gathered{}}
	if segs != nil {
		h.enc.own = segs.origin(File{Name: name})
	}
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
			h.set(i, p[:n])
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
		w = &gathered{data: make([]byte, n), left: n}
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
		h.set(i, w.data)
	}
}

func (h *Hasher) set(i int, p []byte) {
	s, sum := &h.enc.segments[i], HashOf(p)
	h.enc.keep(i, Segment{
		Len: s.size, Width: h.enc.ranges[s.rng].Width, Hash: sum, Bodies: []Body{{File: 1, Off: h.starts[i], Len: s.size}},
	})
	if h.enc.segs != nil {
		h.enc.segs.put(i, p, sum, state{h.enc.own, h.starts[i], Whole})
	}
}

// Finish returns the table of the file, of which all bytes have come.
func (h *Hasher) Finish(size int64, crc uint32) *Table {
	t := h.enc.Finish(size, crc)
	t.Files = []File{{Name: h.name, Size: size}}
	return t
}
