package tensor

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// torchCasts returns the lines of testdata/float8-torch-2.14.txt that begin with
// word, without it. testdata/float8.py made the file and explains it.
func torchCasts(t *testing.T, word string) [][]string {
	t.Helper()
	b := must.Get(os.ReadFile("testdata/float8-torch-2.14.txt"))(t)
	var out [][]string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[0] == word {
			out = append(out, f[1:])
		}
	}
	return out
}

// torchStep is where the result of a cast changes.
type torchStep struct {
	bits uint32
	code uint8
}

func parseSteps(t *testing.T, words []string) []torchStep {
	t.Helper()
	out := make([]torchStep, len(words))
	for i, w := range words {
		if n, err := fmt.Sscanf(w, "%x:%x", &out[i].bits, &out[i].code); n != 2 {
			t.Fatalf("%q: %v", w, err)
		}
	}
	return out
}

// A float32 becomes the float8 that PyTorch makes of it: on both sides of every
// number where the result changes, and everywhere between as far as rounding
// could tell numbers apart.
func TestFloat8AsInPyTorch(t *testing.T) {
	lines := torchCasts(t, "steps")
	if len(lines) != 5 {
		t.Fatalf("%d kinds are recorded; want 5", len(lines))
	}
	for _, line := range lines {
		t.Run(line[0], func(t *testing.T) {
			to := must.Value(LookupDType(line[0]))
			steps := parseSteps(t, line[1:])
			var bits []uint32
			for _, s := range steps {
				bits = append(bits, s.bits, s.bits-1)
			}
			for hi := range uint32(1 << 16) {
				bits = append(bits, hi<<16, hi<<16|1, hi<<16|0xffff)
			}
			got := convert(t, must.Value(FromBytes(Float32, []int64{int64(len(bits))}, bytesOf(bits))), to).Contents()
			for i, b := range bits {
				at, ok := slices.BinarySearchFunc(steps, b, func(s torchStep, b uint32) int { return int(int64(s.bits) - int64(b)) })
				if !ok {
					at--
				}
				if got[i] != steps[at].code {
					t.Fatalf("float32 %v (%#x) = %#02x; PyTorch makes %#02x of it", math.Float32frombits(b), b, got[i], steps[at].code)
				}
			}
		})
	}
}

// torchInputs returns the input of float8.py.
func torchInputs(d DType) []byte {
	switch d {
	case Float64:
		return convertAll(BFloat16, Float64)
	case Float16, BFloat16, Uint8, Bool:
		return everyElement(d)
	case Int8, Int16, Int32, Int64:
		var out []byte
		shifts := max(8*d.Size()-8, 1)
		for _, sign := range []int64{1, -1} {
			for n := range int64(128) {
				for s := range shifts {
					out = append(out, binary.LittleEndian.AppendUint64(nil, uint64(sign*n<<s))[:d.Size()]...)
				}
			}
		}
		return out
	}
	return everyElement(d)
}

// convertAll returns all the elements of one dtype as another.
func convertAll(from, to DType) []byte {
	p := everyElement(from)
	return must.Value(Cast(must.Value(FromBytes(from, []int64{int64(len(p) / from.Size())}, p)), to)).Contents()
}

func TestOtherTypesToFloat8AsInPyTorch(t *testing.T) {
	lines := torchCasts(t, "sum")
	if len(lines) != 9*5+5*4 {
		t.Fatalf("%d pairs are recorded; want %d", len(lines), 9*5+5*4)
	}
	for _, line := range lines {
		from, to := must.Value(LookupDType(line[0])), must.Value(LookupDType(line[1]))
		p := torchInputs(from)
		got := convert(t, must.Value(FromBytes(from, []int64{int64(len(p) / from.Size())}, p)), to)
		if sum := sha256.Sum256(got.Contents()); hex.EncodeToString(sum[:16]) != line[2] {
			t.Errorf("%v to %v differs from PyTorch's", from, to)
		}
	}
}
