package platform

import (
	"bytes"
	"errors"
	"io/fs"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

func contributions() []contribution {
	return []contribution{
		{call: group.Call{Op: group.OpBarrier}},
		{call: group.Call{Op: group.OpScatter, Root: 3}, value: pack([][]byte{[]byte("a"), nil})},
		{call: group.Call{Op: group.OpBroadcast, Root: -1}, err: fs.ErrNotExist},
	}
}

func TestContributionsSurviveEncoding(t *testing.T) {
	for _, l := range contributions() {
		got, err := decodeContribution(l.encode())
		if err != nil || !got.call.Equal(l.call) || !bytes.Equal(got.value, l.value) || !errors.Is(got.err, l.err) {
			t.Errorf("decodeContribution = %v, %v; want %v", got, err, l)
		}
	}
}

// Ranks that make different calls are told so, whatever AllGather carries.
func TestGatheredReportsDifferentCalls(t *testing.T) {
	all := contributions()
	_, err := open(group.OpBarrier, [][]byte{all[0].encode(), all[1].encode()})
	if e, ok := errors.AsType[*group.Error](err); !ok || !errors.Is(err, group.ErrDisagree) || len(e.Ranks) != 2 {
		t.Errorf("open of two calls = %v; want ErrDisagree of both ranks", err)
	}
	if _, err := open(group.OpBarrier, [][]byte{all[0].encode(), {200}}); err == nil {
		t.Error("open of a malformed message = nil; want an error")
	}
}

func FuzzDecodeContribution(f *testing.F) {
	for _, l := range contributions() {
		f.Add(l.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeContribution(b)
		if err != nil {
			return
		}
		again, err := decodeContribution(l.encode())
		if err != nil || !again.call.Equal(l.call) || !bytes.Equal(again.value, l.value) || (again.err == nil) != (l.err == nil) {
			t.Errorf("decoded again = %v, %v; want %v", again, err, l)
		}
		if vs, err := unpack(l.value); err == nil && !bytes.Equal(pack(vs), l.value) {
			t.Errorf("unpack(%q) = %q, which packs to %q", l.value, vs, pack(vs))
		}
	})
}

// A codec that panics is a rank's error, not the end of the process.
func TestCodecPanicsAreErrors(t *testing.T) {
	wild := group.Func[int]{
		EncodeFunc: func(int) ([]byte, error) { panic("no") },
		DecodeFunc: func([]byte) (int, error) { panic("no") },
	}
	if _, err := seal(wild, 1); !errors.Is(err, group.ErrPanic) {
		t.Errorf("seal = %v; want ErrPanic", err)
	}
	if v, err := decode(wild, nil); !errors.Is(err, group.ErrPanic) {
		t.Errorf("decode = %d, %v; want ErrPanic", v, err)
	}
}
