package tensor_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// e4m3 returns the number that a byte stands for as a float8_e4m3fn, after the definition:
// one bit for the sign, four for the exponent with the bias 7, three for the fraction.
func e4m3(b byte) float64 {
	sign := 1.0
	if b >= 0x80 {
		sign = -1
	}
	exp, fraction := int(b>>3&15), float64(b&7)
	if exp == 15 && fraction == 7 {
		return math.NaN()
	}
	if exp == 0 {
		return sign * math.Ldexp(fraction/8, -6)
	}
	return sign * math.Ldexp(1+fraction/8, exp-7)
}

// nearest returns the byte of the nearest float8_e4m3fn. Of two that are equally near, it
// returns the even one.
func nearest(v float64) byte {
	best, distance := byte(0), math.Inf(1)
	for b := range 0x7f { // without the sign and without NaN
		d := math.Abs(math.Abs(v) - e4m3(byte(b)))
		if d < distance || d == distance && b%2 == 0 {
			best, distance = byte(b), d
		}
	}
	if math.Signbit(v) {
		best |= 0x80
	}
	return best
}

// quantizedReference quantises a matrix in float64, one block after the other. Quotients of
// two float32 that are rounded to float64 and then to float32 are rounded correctly.
func quantizedReference(values []float32, rows, cols int, b tensor.Blocks) (bytes []byte, factors []float32) {
	bytes = make([]byte, len(values))
	for r0 := 0; r0 < rows; r0 += int(b.Rows) {
		for c0 := 0; c0 < cols; c0 += int(b.Columns) {
			largest := 0.0
			block := func(do func(i int)) {
				for r := r0; r < min(r0+int(b.Rows), rows); r++ {
					for c := c0; c < min(c0+int(b.Columns), cols); c++ {
						do(r*cols + c)
					}
				}
			}
			block(func(i int) { largest = max(largest, math.Abs(float64(values[i]))) })
			f := float32(largest / 448)
			if f == 0 {
				f = 1
			}
			factors = append(factors, f)
			block(func(i int) {
				q := float64(float32(float64(values[i]) / float64(f)))
				bytes[i] = nearest(max(-448, min(448, q)))
			})
		}
	}
	return bytes, factors
}

// TestQuantize compares Quantize with a reference, for numbers of all sizes, and checks that
// Scale returns to within half a step.
func TestQuantize(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		rows, cols := 1+r.IntN(40), 1+r.IntN(40)
		b := tensor.Blocks{Rows: 1 + r.Int64N(16), Columns: 1 + r.Int64N(16)}
		scale := math.Ldexp(1, r.IntN(270)-149)
		values := make([]float32, rows*cols)
		for i := range values {
			switch r.IntN(8) {
			case 0:
				values[i] = 0
			case 1:
				values[i] = float32(math.Copysign(0, -1))
			case 2:
				values[i] = float32(e4m3(byte(r.IntN(0x7f))) * scale / 256)
			default:
				values[i] = float32(r.NormFloat64() * scale / 16)
			}
		}
		if r.IntN(8) == 0 {
			clear(values)
		}
		shape := []int64{int64(rows), int64(cols)}
		x := must.Get(tensor.Of(shape, slices.Clone(values)))(t)
		want, wantFactors := quantizedReference(values, rows, cols, b)
		factors := must.Get(b.FactorsFor(x, tensor.Whole(shape), tensor.Float8E4M3FN))(t)
		got := must.Get(b.Quantize(x, factors, tensor.Whole(shape), tensor.Float8E4M3FN))(t)
		if !slices.Equal(got.Contents(), want) {
			t.Fatalf("blocks of %v in %v: Quantize = % x; want % x", b, shape, got.Contents(), want)
		}
		if f := must.Get(tensor.Values[float32](factors))(t); !slices.Equal(f, wantFactors) {
			t.Fatalf("blocks of %v in %v: the factors are %v; want %v", b, shape, f, wantFactors)
		}
		back := must.Get(tensor.Cast(got, tensor.Float32))(t)
		must.Do(t, b.Scale(back, factors, tensor.Whole(shape)))
		for i, v := range must.Get(tensor.Values[float32](back))(t) {
			f := wantFactors[i/cols/int(b.Rows)*((cols+int(b.Columns)-1)/int(b.Columns))+i%cols/int(b.Columns)]
			if v != float32(e4m3(want[i]))*f {
				t.Fatalf("element %d: %v is %v after Scale; want %v", i, values[i], v, float32(e4m3(want[i]))*f)
			}
		}
	}
}

// TestQuantizeTypes checks the largest numbers of the types, and the refused types.
func TestQuantizeTypes(t *testing.T) {
	b := tensor.Blocks{Rows: 2, Columns: 2}
	box := tensor.Whole([]int64{2, 3})
	for d, most := range map[tensor.DType]float32{
		tensor.Float8E4M3FN: 448, tensor.Float8E4M3FNUZ: 240, tensor.Float8E5M2: 57344, tensor.Float8E5M2FNUZ: 57344,
	} {
		x := must.Get(tensor.Of(box.Sizes, []float32{1, -2, 2, 0, 0.5, -4}))(t)
		f := must.Get(b.FactorsFor(x, box, d))(t)
		q := must.Get(b.Quantize(x, f, box, d))(t)
		numbers := must.Get(tensor.Values[float32](must.Get(tensor.Cast(q, tensor.Float32))(t)))(t)
		factors := must.Get(tensor.Values[float32](f))(t)
		if want := []float32{most / 2, -most, most / 2, 0, most / 4, -most}; !slices.Equal(numbers, want) || !slices.Equal(factors, []float32{2 / most, 4 / most}) {
			t.Errorf("%v: Quantize = %v and %v; want %v", d, numbers, factors, want)
		}
	}
	for claim, v := range map[string]float64{"NaN": math.NaN(), "an infinity": math.Inf(-1)} {
		_, err := b.FactorsFor(must.Get(tensor.Of(box.Sizes, []float32{1, 2, 3, 4, float32(v), 5}))(t), box, tensor.Float8E4M3FN)
		if want := "the element at [1 1] is infinite or NaN"; !errors.Is(err, tensor.ErrCast) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: FactorsFor = %v; want %q", claim, err, want)
		}
	}
	if _, err := b.FactorsFor(must.Get(tensor.New(tensor.Float32, box.Sizes))(t), box, tensor.BFloat16); !errors.Is(err, tensor.ErrDType) {
		t.Errorf("to bfloat16: FactorsFor = %v; want %v", err, tensor.ErrDType)
	}
	if _, err := b.Factors([]int64{3}); !errors.Is(err, tensor.ErrShape) {
		t.Errorf("Factors of one dimension = %v; want %v", err, tensor.ErrShape)
	}
}

func BenchmarkQuantize(b *testing.B) {
	x := must.Value(tensor.New(tensor.Float32, []int64{1024, 1024}))
	values := must.Value(tensor.Values[float32](x))
	for i := range values {
		values[i] = float32(i%1000) - 500
	}
	blocks, box := tensor.Blocks{Rows: 128, Columns: 128}, tensor.Whole(x.Shape())
	b.SetBytes(1 << 20)
	for b.Loop() {
		f := must.Get(blocks.FactorsFor(x, box, tensor.Float8E4M3FN))(b)
		must.Get(blocks.Quantize(x, f, box, tensor.Float8E4M3FN))(b)
	}
}
