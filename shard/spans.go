package shard

import "fmt"

// span is a half-open interval of a dimension.
type span struct{ lo, hi int64 }

// spans are ascending disjoint spans; positions count through all of them. A
// rank's local tensor has their elements one after the other.
type spans []span

func (s spans) length() int64 {
	var n int64
	for _, p := range s {
		n += p.hi - p.lo
	}
	return n
}

// add appends a span, joined to the last one where they touch.
func (s spans) add(p span) spans {
	if p.lo == p.hi {
		return s
	}
	if n := len(s); n > 0 && s[n-1].hi == p.lo {
		s[n-1].hi = p.hi
		return s
	}
	return append(s, p)
}

// walk selects ascending intervals of positions in one pass over its spans.
type walk struct {
	from spans
	next int   // index of the span where the walk stands
	at   int64 // position of that span's first element
}

// take appends the elements at positions lo to hi to out.
func (w *walk) take(out spans, lo, hi int64) spans {
	for lo < hi && w.next < len(w.from) {
		p := w.from[w.next]
		if n := p.hi - p.lo; lo-w.at >= n {
			w.at += n
			w.next++
			continue
		}
		first := p.lo + lo - w.at
		last := min(p.hi, first+hi-lo)
		out = out.add(span{first, last})
		lo += last - first
	}
	return out
}

// shardOf returns the i-th of n ceil chunks of s.
func (s spans) shardOf(n, i int64) spans {
	lo, hi := ceilChunk(s.length(), n, i)
	return (&walk{from: s}).take(nil, lo, hi)
}

// stridedOf returns the i-th of n ceil chunks of each of split ceil chunks of s.
func (s spans) stridedOf(split, n, i int64) (spans, error) {
	length := s.length()
	if length == 0 {
		return nil, nil
	}
	size := (length-1)/split + 1
	outer := (length-1)/size + 1
	if outer > maxParts {
		return nil, fmt.Errorf("%w: split factor %d makes %d pieces, at most %d", ErrLayout, split, outer, maxParts)
	}
	var out spans
	w := walk{from: s}
	for j := range outer {
		at := j * size
		lo, hi := ceilChunk(min(size, length-at), n, i)
		out = w.take(out, at+lo, at+hi)
	}
	return out, nil
}
