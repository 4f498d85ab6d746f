package tensor

import "slices"

// The row-major order of a view's elements is the order of its contiguous form.
// Here are the ways to reach a stretch [lo, hi) of it without making all of it.

// element returns the memory of the i-th element.
func (t *Tensor) element(i int64) []byte {
	at, size := t.offset, t.size()
	for d, n := range slices.Backward(t.shape) {
		at += i % n * t.strides[d]
		i /= n
	}
	return t.data[at*size : (at+1)*size]
}

// gather copies the elements [lo, hi) into p.
func (t *Tensor) gather(p []byte, lo, hi int64) {
	t.eachFlat(lo, hi, func(part *Tensor, at, end int64) {
		copyElements(contiguous(t.dtype, part.shape, p[at:end]), part)
	})
}

// scatter copies p over the elements [lo, hi).
func (t *Tensor) scatter(p []byte, lo, hi int64) {
	t.eachFlat(lo, hi, func(part *Tensor, at, end int64) {
		copyElements(part, contiguous(t.dtype, part.shape, p[at:end]))
	})
}

// eachFlat calls f with the boxes of [lo, hi), which must lie inside t, as views,
// and with the interval of bytes that each takes in a row of all of them.
func (t *Tensor) eachFlat(lo, hi int64, f func(part *Tensor, at, end int64)) {
	if lo == hi {
		return
	}
	at := int64(0)
	for _, b := range appendFlat(nil, t.shape, nil, lo, hi) {
		part := t.narrow(b)
		end := at + part.NumBytes()
		f(part, at, end)
		at = end
	}
}

// scratch returns the buffer that room and stretch need for n elements: nil
// where they can do with t's own memory.
func (t *Tensor) scratch(n int64) []byte {
	if t.Contiguous() && t.aligned() {
		return nil
	}
	return make([]byte, n*t.size())
}

// room returns where the elements [lo, hi) lie, or else buf for them.
func (t *Tensor) room(buf []byte, lo, hi int64) []byte {
	if buf == nil {
		return t.memory()[lo*t.size() : hi*t.size()]
	}
	return buf[:(hi-lo)*t.size()]
}

// stretch returns the elements [lo, hi), where they lie or gathered into buf.
func (t *Tensor) stretch(buf []byte, lo, hi int64) []byte {
	p := t.room(buf, lo, hi)
	if buf != nil {
		t.gather(p, lo, hi)
	}
	return p
}

// aligned reports whether Go may look at t's memory as at numbers.
func (t *Tensor) aligned() bool { return t.dtype.Aligned(t.memory()) }
