package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// samples has a frame of every kind.
func samples() []frame {
	cause := group.NewRemoteError(fmt.Errorf("open: %w", fs.ErrNotExist))
	failed := &group.Error{Op: group.OpGather, Ranks: []int{1, 5}, Err: cause}
	return []frame{
		{kind: kindEnter, id: id{1}, number: 300, call: group.Call{Op: group.OpGather, Root: 3}, values: []labelled{{2, []byte("ab")}, {3, []byte{}}}},
		{kind: kindEnter, number: 1, call: group.Call{Op: group.OpSub, Ranks: []int{4, 0, 9}}, held: true},
		{kind: kindFail, number: 2, err: failed},
		{kind: kindGo, id: id{9}, number: 3},
		{kind: kindDone, number: 5},
		{kind: kindOutcome, number: 6, values: []labelled{{0, []byte("x")}}},
		{kind: kindOutcome, number: 7, err: failed},
		{kind: kindAlarm, number: 8},
		{kind: kindLost, number: 0, rank: 12, err: &group.Error{Err: cause}},
	}
}

var compare = []cmp.Option{
	cmp.AllowUnexported(frame{}, labelled{}), cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b *group.RemoteError) bool {
		return a.Text == b.Text && cmp.Equal(a.Codes, b.Codes)
	}),
}

func TestFrameRoundTrip(t *testing.T) {
	for _, f := range samples() {
		got, err := decode(f.encode())
		if diff := cmp.Diff(f, got, compare...); err != nil || diff != "" {
			t.Errorf("decode(encode) of kind %d: %v\n%s", f.kind, err, diff)
		}
	}
}

func FuzzFrame(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.encode())
	}
	f.Add([]byte{byte(kindAlive)})
	f.Add(append([]byte{byte(kindEnter)}, make([]byte, 40)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decode(b)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("decode(%x) = %v; want %v", b, err, wire.ErrMalformed)
			}
			return
		}
		if got.kind == kindAlive {
			return
		}
		again, err := decode(got.encode())
		if diff := cmp.Diff(got, again, compare...); err != nil || diff != "" {
			t.Fatalf("decoded again: %v\n%s", err, diff)
		}
	})
}

// Whatever frames come from a neighbour, the node must neither panic nor hang.
func FuzzNode(f *testing.F) {
	for _, s := range samples() {
		f.Add(s.encode(), false)
		s.id, s.number = id{}, 0
		f.Add(s.encode(), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, enter bool) {
		m := &Memory{values: inproc.New(4), tags: make(map[id]int)}
		n := New(0, 4, memoryEnd{m, 0}, Options{Arity: 2})
		defer n.Close()
		mine, theirs := newPipe(1)
		must.Do(t, n.Accept(1, mine))
		called := make(chan error, 1)
		if enter {
			go func() {
				_, err := n.World().AllGather(t.Context(), make([]byte, maxInline+1))
				called <- err
			}()
		}
		_ = theirs.WriteFrame(b) // the node may have closed the link
		_ = theirs.WriteFrame(b)
		theirs.Close()
		if enter {
			if err := <-called; err == nil {
				t.Error("a call succeeded without the other ranks")
			}
		}
	})
}

func FuzzPiece(f *testing.F) {
	for _, p := range []piece{{}, {4, 7, 10, 4, []byte("abc")}, {number: 1 << 40, total: 3, body: []byte("abc")}} {
		f.Add(append(p.appendHead(nil), p.body...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePiece(b)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("decodePiece(%x) = %v; want %v", b, err, wire.ErrMalformed)
			}
			return
		}
		again, err := decodePiece(append(p.appendHead(nil), p.body...))
		if diff := cmp.Diff(p, again, cmp.AllowUnexported(piece{})); err != nil || diff != "" {
			t.Fatalf("decoded again: %v\n%s", err, diff)
		}
	})
}
