package collective

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

const fuzzRanks = 8

// FuzzVerdict: whatever comes, it is an error or a verdict that says the same
// again.
func FuzzVerdict(f *testing.F) {
	for _, v := range []verdict{
		{voices: []voice{{rank: 3, call: call{kind: group.OpBroadcast, dtype: tensor.Float32, count: 9, root: -2}}}},
		{differs: true, detail: uneven, voices: []voice{
			{rank: 0, call: call{kind: OpAllToAll, dtype: tensor.Int8, count: 1 << 40}},
			{rank: 7, err: group.NewRemoteError(tensor.ErrDType)},
		}},
	} {
		b, err := v.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decodeVerdict(b, fuzzRanks)
		if err != nil {
			return
		}
		b, err = v.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeVerdict(b, fuzzRanks)
		if err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("decode(encode(%+v)) = %+v, %v", v, again, err)
		}
	})
}

// FuzzNotice: whatever comes, it is an error or an interruption that says the
// same again, in valid UTF-8.
func FuzzNotice(f *testing.F) {
	f.Add(encodeNotice(&interruption{ranks: []int{2}, err: context.DeadlineExceeded}))
	f.Add(encodeNotice(&interruption{err: errors.New("")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		why, err := decodeNotice(b, fuzzRanks)
		if err != nil {
			return
		}
		again, err := decodeNotice(encodeNotice(why), fuzzRanks)
		if err != nil || again.Error() != strings.ToValidUTF8(why.Error(), "\uFFFD") {
			t.Fatalf("decode(encode(%v)) = %v, %v", why, again, err)
		}
	})
}

// FuzzHeader: whatever comes, it is an error or a header with as many elements
// as it says.
func FuzzHeader(f *testing.F) {
	f.Add(append(header{tensor.Int16, 2}.encode(), 1, 2, 3, 4))
	f.Add(header{tensor.Float64, 1 << 50}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, rest, err := decodeHeader(b)
		if err != nil {
			return
		}
		if !h.dtype.Valid() || h.count < 0 || h.bytes() <= shortest && int64(len(rest)) != h.bytes() || h.bytes() > shortest && len(rest) > 0 {
			t.Fatalf("%+v with %d bytes", h, len(rest))
		}
		if again, _, err := decodeHeader(append(h.encode(), rest...)); err != nil || again != h {
			t.Fatalf("decode(encode(%+v)) = %+v, %v", h, again, err)
		}
	})
}
