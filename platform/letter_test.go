package platform

import (
	"bytes"
	"errors"
	"io/fs"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

func letters() []letter {
	return []letter{
		{call: group.Call{Op: group.OpBarrier}},
		{call: group.Call{Op: group.OpScatter, Root: 3}, value: pack([][]byte{[]byte("a"), nil})},
		{call: group.Call{Op: group.OpBroadcast, Root: -1}, err: fs.ErrNotExist},
	}
}

func TestLettersSurvive(t *testing.T) {
	for _, l := range letters() {
		got, err := decodeLetter(l.encode())
		if err != nil || !got.call.Equal(l.call) || !bytes.Equal(got.value, l.value) || !errors.Is(got.err, l.err) {
			t.Errorf("decodeLetter = %v, %v; want %v", got, err, l)
		}
	}
}

// Ranks that make different calls are told so, whatever AllGather carries.
func TestOpenFindsMismatches(t *testing.T) {
	all := letters()
	_, err := open(group.OpBarrier, [][]byte{all[0].encode(), all[1].encode()})
	if e, ok := errors.AsType[*group.Error](err); !ok || !errors.Is(err, group.ErrDisagree) || len(e.Ranks) != 2 {
		t.Errorf("open of two calls = %v; want ErrDisagree of both ranks", err)
	}
	if _, err := open(group.OpBarrier, [][]byte{all[0].encode(), {1}}); err == nil {
		t.Error("open of a malformed message = nil; want an error")
	}
}

func FuzzDecodeLetter(f *testing.F) {
	for _, l := range letters() {
		f.Add(l.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeLetter(b)
		if err != nil {
			return
		}
		again, err := decodeLetter(l.encode())
		if err != nil || !again.call.Equal(l.call) || !bytes.Equal(again.value, l.value) || (again.err == nil) != (l.err == nil) {
			t.Errorf("decoded again = %v, %v; want %v", again, err, l)
		}
		if vs, err := unpack(l.value); err == nil && !bytes.Equal(pack(vs), l.value) {
			t.Errorf("unpack(%q) = %q, which packs to %q", l.value, vs, pack(vs))
		}
	})
}

func FuzzUnseal(f *testing.F) {
	good, _ := seal(group.Bytes{}, []byte("value"))
	bad, _ := seal(group.Func[int]{EncodeFunc: func(int) ([]byte, error) { return nil, fs.ErrNotExist }}, 0)
	f.Add(good)
	f.Add(bad)
	f.Add([]byte{2})
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := unsealBytes(b)
		if (err == nil) != (len(b) > 0 && b[0] == sealedValue) {
			t.Errorf("unsealBytes(%q) = %q, %v", b, v, err)
		}
		if err == nil && !bytes.Equal(v, b[1:]) {
			t.Errorf("unsealBytes(%q) = %q; want all behind the first byte", b, v)
		}
	})
}

// A codec that panics is a rank's error, not the end of the process.
func TestSealCatchesPanics(t *testing.T) {
	wild := group.Func[int]{
		EncodeFunc: func(int) ([]byte, error) { panic("no") },
		DecodeFunc: func([]byte) (int, error) { panic("no") },
	}
	if _, err := seal(wild, 1); !errors.Is(err, group.ErrPanic) {
		t.Errorf("seal = %v; want ErrPanic", err)
	}
	if v, err := decode(wild, []byte{sealedValue}); !errors.Is(err, group.ErrPanic) {
		t.Errorf("decode = %d, %v; want ErrPanic", v, err)
	}
}
