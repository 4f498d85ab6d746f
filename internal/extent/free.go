// Package extent hands out intervals of a space, such as a file or a mapped memory. It holds
// no bytes and does not depend on the kind of the space.
package extent

import (
	"cmp"
	"slices"
)

// Free is the free part of a space. Its methods are for one goroutine at a time.
type Free struct {
	free []interval // sorted, not adjacent
}

type interval struct{ off, len int64 }

// New returns a space of size units, all of them free.
func New(size int64) Free { return Free{[]interval{{0, size}}} }

// Take returns the lowest offset of n free units, which are in use from then on.
func (f *Free) Take(n int64) (off int64, ok bool) {
	i := slices.IndexFunc(f.free, func(e interval) bool { return e.len >= n })
	if i < 0 {
		return 0, false
	}

	e := &f.free[i]
	off = e.off
	e.off, e.len = e.off+n, e.len-n
	if e.len == 0 {
		f.free = slices.Delete(f.free, i, i+1)
	}
	return off, true
}

// Put frees n units that Take returned.
func (f *Free) Put(off, n int64) {
	i, _ := slices.BinarySearchFunc(f.free, off, func(e interval, off int64) int { return cmp.Compare(e.off, off) })
	f.free = slices.Insert(f.free, i, interval{off, n})
	if i+1 < len(f.free) && off+n == f.free[i+1].off {
		f.free[i].len += f.free[i+1].len
		f.free = slices.Delete(f.free, i+1, i+2)
	}
	if i > 0 && f.free[i-1].off+f.free[i-1].len == off {
		f.free[i-1].len += f.free[i].len
		f.free = slices.Delete(f.free, i, i+1)
	}
}
