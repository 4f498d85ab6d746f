package torchsave

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/value"
)

// open opens b and checks that everything said of a file is true.
func open(t *testing.T, b []byte) {
	f, err := Open(t.Context(), reader(b), int64(len(b)))
	if err != nil {
		if !errors.Is(err, ErrMalformed) {
			t.Fatalf("Open = %v; want %v", err, ErrMalformed)
		}
		return
	}
	if f.PickleOffset < 0 || f.PickleOffset > f.PickleEnd || f.PickleEnd > int64(len(b)) {
		t.Fatalf("a pickle from %d to %d of %d", f.PickleOffset, f.PickleEnd, len(b))
	}
	if err := f.Check(t.Context(), reader(b), func(string, error) {}); err != nil {
		t.Fatalf("Check = %v", err)
	}
	v, err := Materialise(t.Context(), f.Root, reader(b), 1<<20)
	if err != nil && !errors.Is(err, ErrMalformed) {
		t.Fatalf("Materialise = %v; want %v", err, ErrMalformed)
	}
	if x, ok := f.Root.(*Tensor); ok && (x.Offset < 0 || x.Offset+x.Span() > x.End || x.End > int64(len(b)) || x.NumBytes() < 0) {
		t.Fatalf("a tensor %+v of %d bytes", x, len(b))
	}
	if err == nil {
		if _, err := Marshal(v); err != nil && !errors.Is(err, ErrValue) {
			t.Fatalf("Marshal = %v; want %v", err, ErrValue)
		}
	}
}

func FuzzOpenZip(f *testing.F) {
	f.Add(good(f))
	f.Add(fromTorch(f, "views.pt"))
	f.Add(fromTorch(f, "kinds.pt"))
	f.Add(fromTorch(f, "lazy.pt"))
	f.Add(ordinary("archive/data.pkl", emptyDict, "archive/version", "3\n"))
	for _, c := range tricks {
		b := good(f)
		c.do(forged{b})
		f.Add(b)
	}
	f.Fuzz(open)
}

func FuzzOpenLegacy(f *testing.F) {
	f.Add(fromTorch(f, "views_legacy.pt"))
	f.Add(fromTorch(f, "kinds_legacy.pt"))
	f.Add(fromTorch(f, "lazy_legacy.pt"))
	f.Add(defaultParts().bytes(f))
	p := defaultParts()
	p.root = old(value.Tuple{"k2", int64(2), int64(3)})
	f.Add(p.bytes(f))
	f.Fuzz(open)
}

// FuzzPersistentIDs opens archives of any pickle beside one storage.
func FuzzPersistentIDs(f *testing.F) {
	for _, root := range []any{
		view2(int64(0), ints(6), ints(1)), view2(int64(1), ints(2, 2), ints(0, 3)), id("storage", raw, "0", "cpu", int64(24)),
		id("storage", floats, "0", "cpu", int64(7)), call("_rebuild_parameter", view2(int64(0), ints(6), ints(1)), true, hooks()),
		call("_rebuild_tensor_v3", id("storage", raw, "0", "cpu", int64(24)), int64(0), ints(12), ints(1), false, hooks(), thing("torch", "uint16")),
	} {
		f.Add([]byte(encode(f, root)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		open(t, archiveOf(t, "data.pkl", string(data), "data/0", "0123456789abcdef01234567", "version", "3\n"))
	})
}
