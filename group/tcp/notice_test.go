package tcp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

var equalNotice = cmp.Options{
	cmp.AllowUnexported(terms{}, roll{}, slot{}, absence{}), cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b *group.Error) bool {
		if a == nil || b == nil {
			return a == b
		}
		return strings.ToValidUTF8(a.Error(), "\uFFFD") == strings.ToValidUTF8(b.Error(), "\uFFFD") // as sent
	}),
}

// again checks that the value decoded from b survives another encoding and decoding.
func again[T any](t *testing.T, got T, err error, encode func(T) []byte, decode func([]byte) (T, error)) {
	t.Helper()
	if err != nil {
		return
	}
	second, err := decode(encode(got))
	if diff := cmp.Diff(got, second, equalNotice); err != nil || diff != "" {
		t.Fatalf("decoded again: %v\n%s", err, diff)
	}
}

func sampleTerms() terms {
	return terms{
		session: session{9}, arity: 8, timeout: time.Second, again: 3 * time.Second,
		above: "10.0.0.1:29500", missing: []int{1, 2, 300},
	}
}

func sampleRoll() roll {
	e := &group.Error{Op: opJoin, Ranks: []int{1, 2, 300}, Err: errMissing}
	return roll{notice: noticeWait, error: e, called: 5}
}

func sampleSlots() []slot {
	return []slot{{rank: 1, addr: "10.0.0.1:29500"}, {rank: 7, addr: "unix:/run/7.sock", above: "unix:/run/0.sock"}}
}

func sampleAbsent() []absence {
	return []absence{{1, rankMissing, "connection refused"}, {2, rankSilent, "no answer"}, {300, rankHere, ""}}
}

func FuzzTerms(f *testing.F) {
	s := sampleTerms()
	f.Add(s.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeTerms(b)
		again(t, got, err, func(v terms) []byte { return v.encode() }, decodeTerms)
	})
}

func FuzzRoll(f *testing.F) {
	s := sampleRoll()
	f.Add(s.encode())
	f.Add((&roll{notice: noticeMet, called: 1}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeRoll(b)
		again(t, got, err, func(v roll) []byte { return v.encode() }, decodeRoll)
	})
}

func FuzzSlots(f *testing.F) {
	f.Add(encodeSlots(sampleSlots()))
	f.Fuzz(func(t *testing.T, b []byte) {
		decode := func(b []byte) ([]slot, error) { return decodeSlots(b, 1000) }
		got, err := decode(b)
		if len(b) > maxNotice {
			return
		}
		again(t, got, err, encodeSlots, decode)
	})
}

func FuzzAbsent(f *testing.F) {
	f.Add(encodeAbsent(sampleAbsent()))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeAbsent(b)
		for i := range got {
			if i >= maxReasons { // not told
				got[i].reason = ""
			}
		}
		again(t, got, err, encodeAbsent, decodeAbsent)
	})
}

// A notice that exceeds its bounds is refused.
func TestNoticesAreBounded(t *testing.T) {
	longAddress := strings.Repeat("a", maxAddress+1)
	long := sampleTerms()
	long.above = longAddress
	fast := sampleTerms()
	fast.again = 0
	var many wire.Writer
	many.Uvarint(maxMissing + 1)
	many.B = append(many.B, make([]byte, 3*(maxMissing+1))...)
	outside := encodeSlots([]slot{{rank: 8, addr: "x"}})
	zero := encodeSlots([]slot{{rank: 0, addr: "x"}})
	far := encodeSlots([]slot{{rank: 1, addr: longAddress}})
	for claim, decode := range map[string]func() error{
		"an address too long":        func() error { _, err := decodeTerms(long.encode()); return err },
		"no time":                    func() error { _, err := decodeTerms(fast.encode()); return err },
		"a slot outside the group":   func() error { _, err := decodeSlots(outside, 8); return err },
		"a slot for rank 0":          func() error { _, err := decodeSlots(zero, 8); return err },
		"a slot with a long address": func() error { _, err := decodeSlots(far, 8); return err },
		"too many absent":            func() error { _, err := decodeAbsent(many.B); return err },
		"an unknown call":            func() error { _, err := decodeRoll((&roll{notice: 9}).encode()); return err },
		"a refusal without cause":    func() error { _, err := decodeRoll((&roll{notice: noticeRefused}).encode()); return err },
	} {
		if err := decode(); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: %v; want %v", claim, err, wire.ErrMalformed)
		}
	}
}
