package slime

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

// of returns the source of a frame in memory.
func of(p []byte) source { return func() io.Reader { return bytes.NewReader(p) } }

// frameOf compresses bytes.
func frameOf(t testing.TB, p []byte) []byte {
	t.Helper()
	z := must.Get(zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(true)))(t)
	return z.EncodeAll(p, nil)
}

// anonymous compresses a few bytes into a frame that does not declare its size.
func anonymous(t testing.TB, p []byte) []byte {
	t.Helper()
	return must.Get(zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)))(t).EncodeAll(p, nil)
}

// changes returns a difference in the encoding Overwrite.
func changes(count uint32, positions []uint32, values string) []byte {
	p := binary.LittleEndian.AppendUint32(nil, count)
	for _, at := range positions {
		p = binary.LittleEndian.AppendUint32(p, at)
	}
	return append(p, values...)
}

// apply undoes encode, and the frame declares its size, which slime needs.
func TestCodecRoundTrip(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{0, 1, 7, 8, 9, 255, 256, 1000, stepBytes - 1, stepBytes, stepBytes + 9, 300_000}).Draw(t, "bytes")
		seed := rapid.Byte().Draw(t, "seed")
		old := make([]byte, n)
		for i := range old {
			old[i] = seed + byte(i*i>>3)
		}
		p := slices.Clone(old)
		if n > 0 {
			for range rapid.IntRange(0, 200).Draw(t, "changes") {
				p[rapid.IntRange(0, n-1).Draw(t, "at")] = rapid.Byte().Draw(t, "value")
			}
		}
		encoding := rapid.SampledFrom(encodings).Draw(t, "encoding")
		diff := must.Get(newEncoder(encoding))(t).encode(slices.Clone(old), p)
		if bytes.Equal(old, p) {
			if diff != nil {
				t.Fatalf("%d bytes for equal states", len(diff))
			}
			return
		}
		var h zstd.Header
		if err := h.Decode(diff); err != nil || !h.HasFCS {
			t.Fatalf("the frame of %d bytes does not declare its size (%v)", n, err)
		}
		must.Do(t, check(encoding, of(diff)))
		must.Do(t, apply(encoding, old, of(diff)))
		if !bytes.Equal(old, p) {
			t.Fatal("other bytes")
		}
	})
}

// A difference that does not fit its tensor is refused, and never written beyond it.
func TestApplyRefuses(t *testing.T) {
	eight := make([]byte, 8)
	for name, tt := range map[string]struct {
		encoding string
		frame    []byte
		want     string
	}{
		"a shorter xor":              {XOR, frameOf(t, eight[:7]), "the frame has 7 bytes, the tensor 8"},
		"a longer xor":               {XOR, frameOf(t, make([]byte, 9)), "the frame has 9 bytes, the tensor 8"},
		"no size, and too short":     {XOR, anonymous(t, eight[:7]), "EOF"},
		"no size, and too long":      {XOR, anonymous(t, make([]byte, 9)), "more bytes"},
		"two frames":                 {XOR, slices.Concat(frameOf(t, eight), frameOf(t, eight)), "more bytes"},
		"half a frame":               {XOR, frameOf(t, eight)[:6], "EOF"},
		"not a frame":                {XOR, []byte("hello world, this is not zstd"), "cannot be applied"},
		"nothing":                    {XOR, nil, "cannot be applied"},
		"no count":                   {Overwrite, frameOf(t, []byte{1, 0}), "EOF"},
		"too many changes":           {Overwrite, frameOf(t, changes(9, []uint32{0}, "a")), "it changes 9 bytes of a tensor of 8"},
		"a huge count":               {Overwrite, frameOf(t, changes(math.MaxUint32, nil, "")), "it changes 4294967295 bytes"},
		"fewer values":               {Overwrite, frameOf(t, changes(2, []uint32{0, 1}, "a")), "the frame has 13 bytes, 2 changes have 14"},
		"more values":                {Overwrite, frameOf(t, changes(1, []uint32{0}, "ab")), "the frame has 10 bytes, 1 changes have 9"},
		"a position beyond the end":  {Overwrite, frameOf(t, changes(1, []uint32{8}, "a")), "the position 8"},
		"positions that do not grow": {Overwrite, frameOf(t, changes(2, []uint32{3, 3}, "ab")), "the position 3 after 3"},
		"positions that fall":        {Overwrite, frameOf(t, changes(2, []uint32{3, 1}, "ab")), "the position 1 after 3"},
	} {
		err := apply(tt.encoding, make([]byte, 8), of(tt.frame))
		if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", name, err, tt.want)
		}
	}
	must.Do(t, apply(Overwrite, make([]byte, 8), of(frameOf(t, changes(0, nil, "")))))
}

// Checksums have the texts that slime writes.
func TestSums(t *testing.T) {
	for kind, want := range map[string]string{
		Adler32: "062c0215",
		BLAKE3:  "ea8f163db38682925e4491c5e58d4bb3506ef8c14eb78a86e908c5624a67200f",
		XXH3:    "b5e9c1ad071b3e7fc779cfaa5e523818",
	} {
		got := sums[kind]([]byte("hello"))
		if got != want {
			t.Errorf("%s = %s; want %s", kind, got, want)
		}
		must.Do(t, checkSum(kind, got))
		for _, bad := range []string{"", got[1:], got + "0", strings.ToUpper(got), strings.Repeat("x", len(got))} {
			if bad != got && checkSum(kind, bad) == nil {
				t.Errorf("%s: %q is accepted", kind, bad)
			}
		}
	}
}
