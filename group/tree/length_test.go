package tree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestFramesOnAStream(t *testing.T) {
	var s bytes.Buffer
	w := &FrameWriter{W: &s}
	for _, f := range []string{"a", "b", "headbody"} {
		must.Do(t, w.WriteFrame([]byte(f)))
	}
	if got, want := s.String(), "\x01\x00\x00\x00a\x01\x00\x00\x00b\x08\x00\x00\x00headbody"; got != want {
		t.Errorf("stream %q; want %q", got, want)
	}
	for _, want := range []string{"a", "b", "headbody"} {
		if got, err := ReadFrame(&s, 8); string(got) != want || err != nil {
			t.Errorf("ReadFrame = %q, %v; want %q", got, err, want)
		}
	}
	if _, err := ReadFrame(&s, 8); err != io.EOF {
		t.Errorf("ReadFrame at the end = %v; want io.EOF", err)
	}
}

func TestMalformedFrames(t *testing.T) {
	w := &FrameWriter{W: io.Discard}
	for claim, body := range map[string][]byte{"empty": nil, "too long": make([]byte, MaxFrame+1)} {
		if err := w.WriteFrame(body); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: WriteFrame = %v; want ErrFrame", claim, err)
		}
	}
	for _, c := range []struct {
		claim, stream string
		want          error
	}{
		{"empty", "\x00\x00\x00\x00", ErrFrame},
		{"too long", "\x09\x00\x00\x00123456789", ErrFrame},
		{"far too long", "\xff\xff\xff\xff", ErrFrame},
		{"cut in its length", "\x01\x00", io.ErrUnexpectedEOF},
		{"cut behind its length", "\x01\x00\x00\x00", io.ErrUnexpectedEOF},
		{"cut", "\x08\x00\x00\x001234567", io.ErrUnexpectedEOF},
	} {
		if b, err := ReadFrame(bytes.NewReader([]byte(c.stream)), 8); !errors.Is(err, c.want) {
			t.Errorf("%s: ReadFrame = %q, %v; want %v", c.claim, b, err, c.want)
		}
	}
}

// Bytes that are read as frames are written as the same bytes.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00a\x03\x00\x00\x00bcd"))
	f.Add([]byte("\x00\x00\x00\x00"))
	f.Add(binary.LittleEndian.AppendUint32(nil, 65))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := bytes.NewReader(stream)
		var again bytes.Buffer
		w := &FrameWriter{W: &again}
		for {
			b, err := ReadFrame(r, 64)
			if err != nil {
				break
			}
			if len(b) == 0 || len(b) > 64 {
				t.Fatalf("ReadFrame = %d bytes", len(b))
			}
			must.Do(t, w.WriteFrame(b))
		}
		if !bytes.HasPrefix(stream, again.Bytes()) {
			t.Errorf("read %x as frames that are written as %x", stream, again.Bytes())
		}
	})
}
