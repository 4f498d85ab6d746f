package delta

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/segment"
	"github.com/cairn-ckpt/cairn/storage"
)

// wanted is a segment that is being read through the cache.
type wanted struct {
	*Segment
	e    *entry
	buf  *[]byte // for data, if there is no entry and the segment is wanted in part
	out  []byte  // where its bytes are wanted: all of them, or the part from skip on
	skip int
	data []byte // where the segment is put together: in the entry, in out, or in memory of its own
	from int    // how many bodies make up the bytes in data, 0 for none
	step bool   // data has the state that the step begins at
}

// has reports whether data has an earlier state of the segment, or the segment itself.
func (w *wanted) has() bool { return w.from > 0 || w.step }

// readCached fills the beginning of p, which begins in segment i, and returns its length.
func (r *Reader) readCached(ctx context.Context, p []byte, off int64, i int) (n int, err error) {
	var all []wanted
	defer func() {
		for k := range all {
			r.release(&all[k], err == nil)
		}
	}()
	// Entries are locked in the order of the segments, so that readers do not wait for each other
	// in a circle.
	for skip := int(off - r.starts[i]); n < min(len(p), readBytes); i++ {
		s := &r.table.Segments[i]
		w := wanted{Segment: s, skip: skip, out: p[n:min(len(p), n+s.Len-skip)]}
		if w.e = r.segs.lock(i, s.Len); w.e != nil {
			w.from, w.step = r.have(s, w.e)
		}
		switch {
		case w.has(), w.e != nil && len(w.out) < s.Len:
			w.data = w.e.data
		case len(w.out) == s.Len:
			w.data = w.out
		default:
			w.buf = scratch.Get().(*[]byte)
			w.data = (*w.buf)[:s.Len]
		}
		all = append(all, w)
		n += len(w.out)
		skip = 0
	}
	return n, r.fill(ctx, all)
}

// have returns how many of the bodies of s make up the bytes of e, and whether the step of s
// begins at them.
func (r *Reader) have(s *Segment, e *entry) (from int, step bool) {
	if e.hash == s.Hash { // perhaps stored again at another place
		e.state = r.state(&s.Bodies[len(s.Bodies)-1])
		return len(s.Bodies), false
	}
	for n := len(s.Bodies) - 1; n > 0; n-- {
		if r.state(&s.Bodies[n-1]) == e.state {
			return n, false
		}
	}
	return 0, s.Step != nil && e.state == state{r.past[s.Step.From.File], s.Step.From.Off, s.Step.From.Kind}
}

// state returns the state of which b is the last body.
func (r *Reader) state(b *Body) state { return state{r.files[b.File].origin, b.Off, b.Kind} }

// release ends the use of a segment.
func (r *Reader) release(w *wanted, ok bool) {
	if w.buf != nil {
		scratch.Put(w.buf)
	}
	if w.e == nil {
		return
	}
	if ok && w.from < len(w.Bodies) {
		if &w.data[0] != &w.e.data[0] {
			copy(w.e.data, w.data)
		}
		w.e.set(r.state(&w.Bodies[len(w.Bodies)-1]), w.Hash)
	}
	r.segs.unlock(w.e, w.has())
}

// fill puts the segments together.
func (r *Reader) fill(ctx context.Context, all []wanted) error {
	var pieces []piece
	for k := range all {
		w := &all[k]
		if w.step {
			pieces = append(pieces, piece{Body: &w.Step.Diff, seg: k})
		}
		for n := max(1, w.from); n < len(w.Bodies); n++ {
			pieces = append(pieces, piece{Body: &w.Bodies[n], seg: k, nth: n})
		}
		if w.e != nil && w.from < len(w.Bodies) {
			w.e.set(state{}, Hash{}) // until all is well
		}
	}
	free, err := r.fetch(ctx, pieces)
	defer free()
	if err != nil {
		return err
	}
	if err := r.readWhole(ctx, all); err != nil {
		return err
	}
	slices.SortFunc(pieces, func(a, b piece) int { return cmp.Or(cmp.Compare(a.seg, b.seg), cmp.Compare(a.nth, b.nth)) })
	for k := range pieces {
		q := &pieces[k]
		w := &all[q.seg]
		if err := segment.Patch(w.data, q.code, w.Width); err != nil {
			return fmt.Errorf("%w: %s: a segment: %w", storage.ErrCorrupt, r.name, err)
		}
	}
	for k := range all {
		if w := &all[k]; &w.out[0] != &w.data[0] {
			copy(w.out, w.data[w.skip:])
		}
	}
	return nil
}

// readWhole reads the whole bodies of the segments that are not in the cache. Those
// that follow each other in their file and in memory are read at once.
func (r *Reader) readWhole(ctx context.Context, all []wanted) error {
	for k := 0; k < len(all); {
		w := &all[k]
		k++
		if w.has() {
			continue
		}
		b, dst := &w.Bodies[0], w.data
		for ; k < len(all) && !all[k].has() && len(dst)+all[k].Len <= cap(dst); k++ {
			c := &all[k].Bodies[0]
			if c.File != b.File || c.Off != b.Off+int64(len(dst)) || &dst[:len(dst)+1][len(dst)] != &all[k].data[0] {
				break
			}
			dst = dst[:len(dst)+c.Len]
		}
		if err := r.files[b.File].ReadAt(ctx, dst, b.Off); err != nil {
			return err
		}
	}
	return nil
}
