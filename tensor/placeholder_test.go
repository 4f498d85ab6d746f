package tensor

import (
	"errors"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestPlaceholderHasNoMemory(t *testing.T) {
	shape := []int64{1 << 20, 1 << 20}
	p := must.Value(Placeholder(BFloat16, shape))
	if p.DType() != BFloat16 || !slices.Equal(p.Shape(), shape) || len(p.data) != 2 {
		t.Errorf("Placeholder = %v over %d bytes; want the shape over one element", p, len(p.data))
	}
	part := must.Value(p.Narrow(Box{Offsets: []int64{5, 5}, Sizes: []int64{2, 2}}))
	if err := Copy(part, must.Value(New(BFloat16, []int64{2, 2}))); !errors.Is(err, ErrPlaceholder) {
		t.Errorf("Copy into a placeholder = %v; want ErrPlaceholder", err)
	}
	if _, err := Placeholder(Invalid, nil); !errors.Is(err, ErrDType) {
		t.Errorf("Placeholder(invalid) = %v; want ErrDType", err)
	}
	if _, err := Placeholder(Float32, []int64{-1}); !errors.Is(err, ErrShape) {
		t.Errorf("Placeholder([-1]) = %v; want ErrShape", err)
	}
}

func TestMaterializeGivesPlaceholderMemory(t *testing.T) {
	for _, shape := range [][]int64{nil, {1}, {1, 1}, {2, 3}} {
		p := must.Value(Placeholder(Float32, shape))
		before := must.Value(p.Narrow(Whole(shape)))
		src := must.Value(Full(Float32, shape, float32(7)))
		if !p.IsPlaceholder() || !before.IsPlaceholder() {
			t.Errorf("%v: IsPlaceholder = %v, of a view %v; want true", shape, p.IsPlaceholder(), before.IsPlaceholder())
		}
		if _, ok := p.Bytes(); ok {
			t.Errorf("%v: a placeholder hands out memory", shape)
		}
		if err := Convert(p, src, CastAny); !errors.Is(err, ErrPlaceholder) {
			t.Errorf("%v: Convert = %v; want ErrPlaceholder", shape, err)
		}
		if err := p.Materialize(); err != nil || p.IsPlaceholder() || !Equal(p, must.Value(New(Float32, shape))) {
			t.Fatalf("%v: Materialize = %v, placeholder %v", shape, err, p.IsPlaceholder())
		}
		if err := errors.Join(Copy(p, src), p.Materialize()); err != nil || !Equal(p, src) {
			t.Errorf("%v: Copy and a second Materialize = %v, equal %v", shape, err, Equal(p, src))
		}
		if !before.IsPlaceholder() {
			t.Errorf("%v: a view that was made before has memory", shape)
		}
	}
}

func TestEmptyTensorIsNotPlaceholder(t *testing.T) {
	if p := must.Value(Placeholder(Int8, []int64{3, 0})); p.IsPlaceholder() {
		t.Error("IsPlaceholder = true; want false")
	}
}
