package segment

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// fuzzLen bounds the segments of fuzzing, so that it is fast.
const fuzzLen = 1 << 16

// fuzzSeeds adds codes of all widths, made by code, to the corpus in testdata.
func fuzzSeeds(f *testing.F, code func(src, base []byte, width int) ([]byte, bool)) {
	r := rand.New(rand.NewPCG(25, 0))
	for _, width := range widths {
		for _, n := range []int{0, 3, 333, 9999} {
			base := model(r, n)
			c, ok := code(step(r, base, width, 0.2), base, width)
			if !ok {
				f.Fatal("a seed has no code")
			}
			f.Add(c, uint(n), width)
		}
	}
}

func FuzzPatch(f *testing.F) {
	fuzzSeeds(f, func(src, base []byte, width int) ([]byte, bool) {
		return AppendDiff(nil, src, base, width, 20*len(src)+100)
	})
	f.Fuzz(func(t *testing.T, code []byte, length uint, width int) {
		if length > fuzzLen {
			return
		}
		base := bytes.Repeat([]byte{0x5a}, int(length))
		p := bytes.Clone(base)
		if err := Patch(p, code, width); err != nil {
			if !errors.Is(err, ErrCode) {
				t.Fatalf("the error is %v, want ErrCode", err)
			}
			return
		}
		diff(t, p, base, width)
		if err := Patch(p, code, width); err != nil || !bytes.Equal(p, base) {
			t.Fatalf("a patch does not undo itself: %v", err)
		}
	})
}

func FuzzUnpack(f *testing.F) {
	fuzzSeeds(f, func(src, _ []byte, width int) ([]byte, bool) {
		return AppendPacked(nil, src, width, 2*len(src)+100)
	})
	f.Fuzz(func(t *testing.T, code []byte, length uint, width int) {
		if length > fuzzLen {
			return
		}
		p := make([]byte, length)
		if err := Unpack(p, code, width); err != nil {
			if !errors.Is(err, ErrCode) {
				t.Fatalf("the error is %v, want ErrCode", err)
			}
			return
		}
		pack(t, p, width)
	})
}
