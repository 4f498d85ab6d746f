package flax

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func read(t testing.TB, b []byte) (any, error) {
	t.Helper()
	s := new(mem.Store)
	must.Get(blob.WriteAll(t.Context(), s, "x", b, nil))(t)
	r := must.Get(s.Open(t.Context(), "x"))(t)
	defer r.Close()
	return Read(t.Context(), r)
}

const array = "\xc7\x1e\x01\x93\x92\x02\x02\xa7float32\xc4\x100123456789abcdef"

func TestRead(t *testing.T) {
	for in, want := range map[string]any{
		"\x83\xa1a\x92\x01\xff\xa1b\xc0\xa1c" + array: Map{"a": []any{int64(1), int64(-1)}, "b": nil, "c": &Array{"float32", []int64{2, 2}, 28, 16}},
		"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00":        1.5,
		"\xca\x3f\xc0\x00\x00":                        1.5,
		"\xd1\xff\xfe":                                int64(-2),
		"\xcf\xff\xff\xff\xff\xff\xff\xff\xff":        uint64(1<<64 - 1),
		"\xc3":                                        true,
		"\xd9\x03abc":                                 "abc",
		"\xc4\x02\x00\xff":                            []byte{0, 255},
		"\xc7\x0b\x02\x92\xca\x3f\x80\x00\x00\xca\x40\x00\x00\x00": complex(1, 2),
	} {
		if got, err := read(t, []byte(in)); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q = %v, %v; want %v", in, got, err, want)
		}
	}
	got, err := read(t, []byte("\xc7\x0c\x03\x93\x90\xa5int16\xc4\x02\x05\x00"))
	if want := (&Array{"int16", []int64{}, 13, 2}); err != nil || !cmp.Equal(got, any(want)) {
		t.Errorf("a scalar of NumPy = %+v, %v; want %+v", got, err, want)
	}
}

func TestReadRefuses(t *testing.T) {
	deep := make([]byte, 1000)
	for i := range deep {
		deep[i] = 0x91
	}
	for in, want := range map[string]error{
		"":                                      ErrMalformed,
		"\xc1":                                  ErrMalformed,
		"\x82\xa1a\x01\xa1a\x02":                ErrMalformed, // a key twice
		"\x81\x01\x02":                          ErrMalformed, // a key that is no string
		"\xdf\xff\xff\xff\xff":                  ErrMalformed,
		"\xdd\xff\xff\xff\xff":                  ErrMalformed,
		"\xdb\xff\xff\xff\xffabc":               ErrMalformed,
		"\xa2\xff\xff":                          ErrMalformed,
		"\x01\x01":                              ErrMalformed,
		string(deep):                            ErrMalformed,
		array[:len(array)-1]:                    ErrMalformed,
		"\xd4\x07\x00":                          ErrUnsupported,
		"\x81\xb9__msgpack_chunked_array__\xc3": ErrUnsupported,
	} {
		if _, err := read(t, []byte(in)); !errors.Is(err, want) {
			t.Errorf("%.40q: %v; want %v", in, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x83\xa1a\x92\x01\xff\xa1b\xc0\xa1c" + array))
	f.Add([]byte("\xc7\x0b\x02\x92\xca\x3f\x80\x00\x00\xca\x40\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := read(t, b); err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) {
			t.Fatalf("%v; want a named error", err)
		}
	})
}
