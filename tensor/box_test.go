package tensor

import (
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func box(offsets, sizes []int64) Box { return Box{Offsets: offsets, Sizes: sizes} }

func TestIntersect(t *testing.T) {
	for _, c := range []struct {
		name    string
		a, b    Box
		want    Box
		overlap bool
	}{
		{"corner", box([]int64{0, 0}, []int64{4, 4}), box([]int64{2, 3}, []int64{4, 4}), box([]int64{2, 3}, []int64{2, 1}), true},
		{"inside", box([]int64{0}, []int64{9}), box([]int64{3}, []int64{2}), box([]int64{3}, []int64{2}), true},
		{"neighbours do not meet", box([]int64{0}, []int64{4}), box([]int64{4}, []int64{4}), Box{}, false},
		{"apart in one dimension", box([]int64{0, 0}, []int64{4, 2}), box([]int64{0, 2}, []int64{4, 2}), Box{}, false},
		{"an empty box meets no box", box([]int64{2}, []int64{0}), box([]int64{0}, []int64{4}), Box{}, false},
		{"scalars always meet", box(nil, nil), box(nil, nil), box([]int64{}, []int64{}), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, pair := range [][2]Box{{c.a, c.b}, {c.b, c.a}} {
				got, ok := pair[0].Intersect(pair[1])
				if ok != c.overlap || !got.Equal(c.want) {
					t.Errorf("%v.Intersect(%v) = %v, %v; want %v, %v", pair[0], pair[1], got, ok, c.want, c.overlap)
				}
			}
		})
	}
}

func TestRelative(t *testing.T) {
	part := box([]int64{1, 2}, []int64{3, 4})
	if got, want := part.Relative([]int64{1, 1}), box([]int64{0, 1}, []int64{3, 4}); !got.Equal(want) {
		t.Errorf("Relative = %v; want %v", got, want)
	}
	if got := part.End(1); got != 6 {
		t.Errorf("End(1) = %d; want 6", got)
	}
}

func TestBoxCheck(t *testing.T) {
	shape := []int64{4, 6}
	for _, c := range []struct {
		name string
		box  Box
		ok   bool
	}{
		{"whole", Whole(shape), true},
		{"empty at the very end", box([]int64{4, 6}, []int64{0, 0}), true},
		{"one too far", box([]int64{1, 0}, []int64{4, 6}), false},
		{"starts behind the end", box([]int64{5, 0}, []int64{0, 6}), false},
		{"negative offset", box([]int64{-1, 0}, []int64{2, 6}), false},
		{"negative size", box([]int64{0, 0}, []int64{-1, 6}), false},
		{"sum overflows", box([]int64{1, 0}, []int64{math.MaxInt64, 6}), false},
		{"too few dimensions", box([]int64{0}, []int64{4}), false},
		{"uneven slices", box([]int64{0}, []int64{4, 6}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.box.Check(shape)
			if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrShape) {
				t.Errorf("%v.Check(%v) = %v; want ok %v", c.box, shape, err, c.ok)
			}
		})
	}
}

func TestNumElements(t *testing.T) {
	for _, c := range []struct {
		name  string
		shape []int64
		want  int64
		ok    bool
	}{
		{"scalar", nil, 1, true},
		{"zero dimension", []int64{3, 0, 2}, 0, true},
		{"largest", []int64{math.MaxInt64}, math.MaxInt64, true},
		{"overflow", []int64{1 << 32, 1 << 31}, 0, false},
		{"overflow beside a zero", []int64{0, 1 << 32, 1 << 32}, 0, false},
		{"negative", []int64{2, -1}, 0, false},
		{"negative beside a zero", []int64{0, -1}, 0, false},
		{"too many dimensions", make([]int64, MaxDims+1), 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := NumElements(c.shape)
			if got != c.want || (err == nil) != c.ok || err != nil && !errors.Is(err, ErrShape) {
				t.Errorf("NumElements(%v) = %d, %v; want %d, ok %v", c.shape, got, err, c.want, c.ok)
			}
		})
	}
}

func TestNumBytes(t *testing.T) {
	if _, err := NumBytes(Float32, []int64{1 << 61}); !errors.Is(err, ErrShape) {
		t.Errorf("NumBytes of 2^63 bytes: %v; want %v", err, ErrShape)
	}
	if _, err := NumBytes(Invalid, nil); !errors.Is(err, ErrDType) {
		t.Errorf("NumBytes(Invalid): %v; want %v", err, ErrDType)
	}
}

func TestFlatBoxesRefusesBadIntervals(t *testing.T) {
	for _, c := range [][2]int64{{-1, 2}, {3, 2}, {0, 7}} {
		if _, err := FlatBoxes([]int64{2, 3}, c[0], c[1]); !errors.Is(err, ErrShape) {
			t.Errorf("FlatBoxes(2x3, %d, %d): %v; want %v", c[0], c[1], err, ErrShape)
		}
	}
}

func TestFlatBoxesHeadSlabsTail(t *testing.T) {
	got, err := FlatBoxes([]int64{4, 3, 2}, 3, 20)
	want := []Box{
		box([]int64{0, 1, 1}, []int64{1, 1, 1}),
		box([]int64{0, 2, 0}, []int64{1, 1, 2}),
		box([]int64{1, 0, 0}, []int64{2, 3, 2}),
		box([]int64{3, 0, 0}, []int64{1, 1, 2}),
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("FlatBoxes(4x3x2, 3, 20): %v, (-want +got)\n%s", err, diff)
	}
}

// The boxes of an interval are inside the shape, each one run of the flattened
// tensor, and together the interval in order.
func TestFlatBoxesCoverExactlyOnce(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 0, 5).Draw(t, "shape")
		n := must.Get(NumElements(shape))(t)
		lo := rapid.Int64Range(0, n).Draw(t, "lo")
		hi := rapid.Int64Range(lo, n).Draw(t, "hi")
		boxes := must.Get(FlatBoxes(shape, lo, hi))(t)
		if limit := max(2*len(shape)-1, 1); len(boxes) > limit {
			t.Errorf("FlatBoxes(%v, %d, %d) = %d boxes; want at most %d", shape, lo, hi, len(boxes), limit)
		}
		next := lo
		for _, b := range boxes {
			must.Do(t, b.Check(shape))
			eachIndex(b.Sizes, func(i []int64) {
				at := int64(0)
				for d, n := range shape {
					at = at*n + b.Offsets[d] + i[d]
				}
				if at != next {
					t.Fatalf("FlatBoxes(%v, %d, %d): box %v holds element %d where %d is due", shape, lo, hi, b, at, next)
				}
				next++
			})
		}
		if next != hi {
			t.Errorf("FlatBoxes(%v, %d, %d) ends at %d", shape, lo, hi, next)
		}
	})
}

// eachIndex calls f with every index of shape in row-major order.
func eachIndex(shape []int64, f func(i []int64)) {
	n, index := Box{Sizes: shape}.Volume(), make([]int64, len(shape))
	for flat := range n {
		for d := len(shape) - 1; d >= 0; d-- {
			index[d], flat = flat%shape[d], flat/shape[d]
		}
		f(index)
	}
}
