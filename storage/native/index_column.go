package native

import "github.com/cairn-ckpt/cairn/internal/wire"

// putColumn writes values, none negative, as pairs: the difference to the value
// before, zero before the first, and how often that difference repeats. Chunks
// of equal size in step with the ranks take two pairs, however many they are.
func putColumn(w *wire.Writer, values []int64) {
	prev := int64(0)
	for i := 0; i < len(values); {
		delta := values[i] - prev
		prev = values[i]
		run := 1
		for i+run < len(values) && values[i+run]-prev == delta {
			prev = values[i+run]
			run++
		}
		w.Varint(delta)
		w.Uvarint(uint64(run))
		i += run
	}
}

// readColumn reads n values that putColumn wrote into dst[0], dst[stride] and so on.
// The caller has bounded n by the input. It fails on values that are negative
// or overflow: adding to one that is not negative gives a negative sum in
// both cases.
func readColumn(r *wire.Reader, dst []int64, stride, n int) {
	v, at := int64(0), 0
	for n > 0 {
		delta := r.Varint()
		run := r.CountMax(n)
		if run == 0 {
			r.Fail("a run of no values")
			return
		}
		n -= run
		for range run {
			v += delta
			if v < 0 {
				r.Fail("a negative value in a column")
				return
			}
			dst[at] = v
			at += stride
		}
	}
}
