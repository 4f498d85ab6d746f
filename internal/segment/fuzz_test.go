package segment

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// fuzzLen bounds the segments of fuzzing, so that it is fast.
const fuzzLen = 1 << 16

func FuzzPatch(f *testing.F) {
	r := rand.New(rand.NewPCG(25, 0))
	for _, width := range widths {
		for _, n := range []int{0, 3, 333, 9999} {
			base := model(r, n)
			f.Add(diff(f, step(r, base, width, 0.2), base, width), uint(n), width)
		}
	}
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
