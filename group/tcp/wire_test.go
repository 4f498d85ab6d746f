package tcp

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/internal/wire"
)

func sampleHello() hello {
	return hello{purpose: toLink, from: 3, to: 1, size: 8, session: session{1, 2}, job: "train", nonce: [nonceSize]byte{7}}
}

func FuzzHandshake(f *testing.F) {
	h := sampleHello()
	f.Add(h.encode())
	f.Add([]byte(magic + "\x00\x00"))
	f.Add([]byte(magic + "\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, raw, err := readHello(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, _, err := readHello(bytes.NewReader(h.encode()))
		if diff := cmp.Diff(h, again, cmp.AllowUnexported(hello{})); err != nil || diff != "" {
			t.Fatalf("readHello(%x), again: %v\n%s", raw, err, diff)
		}
	})
}

// frameOf returns a frame without the length before it.
func frameOf(l frame) []byte { return l.encode(l.body)[4:] }

func FuzzMessageFrame(f *testing.F) {
	for _, l := range []frame{
		{kind: frameAlive}, {kind: frameQuit},
		{kind: framePiece, lane: lane{group: [16]byte{1}, tag: 300}, first: true, total: 9, body: []byte("abc")},
		{kind: frameDrop, lane: lane{tag: 1}}, {kind: frameGrant, n: laneWindow},
	} {
		f.Add(frameOf(l))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeFrame(b)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("decodeFrame = %v; want %v", err, wire.ErrMalformed)
			}
			return
		}
		again, err := decodeFrame(frameOf(l))
		if diff := cmp.Diff(l, again, cmp.AllowUnexported(frame{}, lane{}), cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("again: %v\n%s", err, diff)
		}
	})
}

// FuzzConnFrames reads frames of a stream.
func FuzzConnFrames(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 5, 2, 0, 0, 0, 1, 2})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		here, there := net.Pipe()
		defer here.Close()
		go func() {
			there.Write(b)
			there.Close()
		}()
		r, read := newConn(here), 0
		for {
			p, err := r.readFrame(64)
			if err != nil {
				return
			}
			read += 4 + len(p)
			if len(p) == 0 || len(p) > 64 || read > len(b) {
				t.Fatalf("frame of %d bytes after %d of %d", len(p), read, len(b))
			}
		}
	})
}
