package saver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"runtime"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// Memory that a message may take, for each of its bytes and in addition. An item of a
// list may be as short as "{}," and take a few hundred bytes, and lists grow by copying.
const (
	bytesPerByte = 1024
	bytesAnyway  = 4 << 20
)

// bounded runs fn and fails if it allocates out of proportion to n bytes of input.
func bounded(t *testing.T, n int, fn func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(n*bytesPerByte+bytesAnyway); got > most {
		t.Errorf("%d bytes of input took %d bytes of memory; want at most %d", n, got, most)
	}
}

// wantMessage fails unless err is one of malformed input.
func wantMessage(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, ErrMessage) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v; want ErrMessage or the end of the stream", err)
	}
}

// seedFrames adds the examples of all messages.
func seedFrames(f *testing.F) {
	f.Helper()
	for _, name := range slices.Sorted(maps.Keys(messages)) {
		b := must.Get(appendFrame(nil, kind(name), messages[name]))(f)
		f.Add(b)
	}
}

// FuzzReadFrame reads frames and decodes their bodies. A decoded body can be encoded, and
// decodes to the same body.
func FuzzReadFrame(f *testing.F) {
	seedFrames(f)
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0})
	f.Add([]byte{255, 255, 255, 255})
	f.Add([]byte{0, 0, 0, 0x40, '{'})
	f.Fuzz(func(t *testing.T, b []byte) {
		bounded(t, len(b), func() {
			r := bytes.NewReader(b)
			for {
				fr, err := readFrame(r)
				if err != nil {
					wantMessage(t, err)
					return
				}
				v, err := decodeBody(fr)
				wantMessage(t, err)
				if err != nil || v == nil {
					continue
				}
				again(t, fr.Type, v)
			}
		})
	})
}

// again encodes a body, decodes it, and encodes it again.
func again(t *testing.T, kind string, v any) {
	t.Helper()
	first, err := appendFrame(nil, kind, v)
	if err != nil {
		t.Fatalf("encode %+v: %v", v, err)
	}
	f := must.Get(readFrame(bytes.NewReader(first)))(t)
	w, err := decodeBody(f)
	if err != nil {
		t.Fatalf("decode %s: %v", first, err)
	}
	second, err := appendFrame(nil, kind, w)
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("%s is encoded as\n%s, and then as\n%s (%v)", kind, first, second, err)
	}
}

// fuzzArena is the size of the arenas of the fuzz targets.
const fuzzArena = 64 << 10

// frameOf returns a message without its length, which fuzzing would only get wrong.
func frameOf(text []byte) *frame {
	f, err := readFrame(bytes.NewReader(append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...)))
	if err != nil {
		return nil
	}
	return f
}

// FuzzState describes a state and stages it. The staged units can be read: they are
// inside of the arena and do not overlap.
func FuzzState(f *testing.F) {
	save := must.Get(appendFrame(nil, typeSave, messages["save"]))(f)
	for _, b := range []stagedBody{
		{Generation: 7, Units: []unitBody{{Stamp: 0, Items: []int{0, 1, 2}, At: []int64{64, 128, 192}}}, All: true},
		{Generation: 7, Units: []unitBody{{Stamp: 0, Items: []int{0}, At: []int64{64}}, {Stamp: 4096, Items: []int{1, 2}, At: []int64{4160, 4224}}}},
		{Generation: 7, Units: []unitBody{{Stamp: 4096, Items: []int{0}, At: []int64{-1}}}},
	} {
		staged := must.Get(appendFrame(nil, typeStaged, b))(f)
		f.Add(save[4:], staged[4:])
	}
	f.Fuzz(func(t *testing.T, save, units []byte) {
		bounded(t, len(save)+len(units), func() { stageState(t, save, units) })
	})
}

func stageState(t *testing.T, save, units []byte) {
	fs, fu := frameOf(save), frameOf(units)
	if fs == nil || fu == nil {
		return
	}
	b, err := decode[saveBody](fs, true)
	if err != nil {
		return
	}
	window, _ := stage.Window(fuzzArena)
	var inUse claims
	s, err := newSavePlanner(b, make([]byte, window), &inUse)
	wantMessage(t, err)
	if err != nil {
		return
	}
	s.released = func(int) {}
	u, err := decode[stagedBody](fu, true)
	if err != nil {
		return
	}
	err = s.stage(u)
	wantMessage(t, err)
	if err != nil {
		return
	}
	for i := 1; i < len(inUse.sorted); i++ {
		if inUse.sorted[i].lo < inUse.sorted[i-1].hi {
			t.Errorf("units overlap: %+v", inUse.sorted)
		}
	}
	for i := range s.items {
		if x := &s.items[i]; x.at >= 0 {
			binary.LittleEndian.PutUint64(s.arena[x.stamp:], b.Generation)
		}
	}
	for i := range s.local.Items {
		d, err := s.Resolve(&s.local.Items[i])
		if err != nil {
			continue // one unit lies over the stamp of another that is done
		}
		if d.Tensor != nil && d.Tensor.NumBytes() <= fuzzArena {
			d.Tensor.Contents()
		}
		if d.Release != nil {
			d.Release()
		}
	}
	s.forget()
	if len(inUse.sorted) > 0 {
		t.Errorf("%+v are in use after the save", inUse.sorted)
	}
}

// FuzzLoad asks for parts of a checkpoint. Their destinations are inside of the arena and
// do not overlap.
func FuzzLoad(f *testing.F) {
	for _, b := range []loadBody{
		messages["load"].(loadBody),
		{Load: 1, Items: []wantBody{{Name: "a", DType: "uint8", Shape: []int64{3}, At: 5}, {Name: "a", DType: "uint8", Shape: []int64{3}, Offsets: []int64{1}, Sizes: []int64{1}, At: 9}}},
		{Load: 1, Items: []wantBody{{Name: "a", DType: "complex128", Shape: []int64{0, 4}, At: fuzzArena}}},
	} {
		m := must.Get(appendFrame(nil, typeLoad, b))(f)
		f.Add(m[4:])
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		bounded(t, len(text), func() {
			fr := frameOf(text)
			if fr == nil {
				return
			}
			b, err := decode[loadBody](fr, true)
			if err != nil {
				return
			}
			window, _ := stage.Window(fuzzArena)
			p, err := newLoadPlanner(b, make([]byte, window))
			wantMessage(t, err)
			if err != nil {
				return
			}
			for _, c := range p.used {
				if c.lo < 0 || c.hi > window || c.lo >= c.hi {
					t.Errorf("%+v is used of an arena of %d", c, window)
				}
			}
			for _, w := range p.tensors {
				for i := range w.parts {
					w.parts[i].Contents()
				}
			}
			if b.Format != "" {
				decodeFormat(b.Format, b.FormatOptions)
			}
		})
	})
}
