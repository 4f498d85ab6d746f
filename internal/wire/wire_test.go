package wire

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

func TestValuesReadAsWritten(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		var (
			u  = rapid.Uint64().Draw(t, "uvarint")
			v  = rapid.Int64().Draw(t, "varint")
			n  = rapid.Int64Range(0, math.MaxInt64).Draw(t, "size")
			a  = rapid.Uint32().Draw(t, "u32")
			b  = rapid.Uint64().Draw(t, "u64")
			by = rapid.Byte().Draw(t, "byte")
			ok = rapid.Bool().Draw(t, "bool")
			p  = rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
			s  = rapid.String().Draw(t, "string")
		)
		var w Writer
		w.Uvarint(u)
		w.Varint(v)
		w.Uvarint(uint64(n))
		w.U32(a)
		w.U64(b)
		w.Byte(by)
		w.Bool(ok)
		w.Bytes(p)
		w.String(s)

		r := NewReader(w.B)
		if got := r.Uvarint(); got != u {
			t.Errorf("Uvarint() = %d; want %d", got, u)
		}
		if got := r.Varint(); got != v {
			t.Errorf("Varint() = %d; want %d", got, v)
		}
		if got := r.Size(); got != n {
			t.Errorf("Size() = %d; want %d", got, n)
		}
		if got := r.U32(); got != a {
			t.Errorf("U32() = %d; want %d", got, a)
		}
		if got := r.U64(); got != b {
			t.Errorf("U64() = %d; want %d", got, b)
		}
		if got := r.Byte(); got != by {
			t.Errorf("Byte() = %d; want %d", got, by)
		}
		if got := r.Bool(); got != ok {
			t.Errorf("Bool() = %v; want %v", got, ok)
		}
		if got := r.Bytes(); !bytes.Equal(got, p) || got == nil {
			t.Errorf("Bytes() = %v; want %v, not nil", got, p)
		}
		if got := r.String(); got != s {
			t.Errorf("String() = %q; want %q", got, s)
		}
		if err := r.Done(); err != nil {
			t.Errorf("Done() = %v; want nil", err)
		}
	})
}

func TestMalformedInputIsRefused(t *testing.T) {
	long := bytes.Repeat([]byte{0xff}, 11)
	for name, tc := range map[string]struct {
		in   []byte
		read func(*Reader)
		want string
	}{
		"varint cut short":           {[]byte{0x80}, func(r *Reader) { r.Uvarint() }, "ends inside"},
		"varint without bytes":       {nil, func(r *Reader) { r.Varint() }, "ends inside"},
		"varint above 64 bits":       {long, func(r *Reader) { r.Uvarint() }, "more than 64 bits"},
		"varint with needless bytes": {[]byte{0x81, 0x00}, func(r *Reader) { r.Uvarint() }, "needless"},
		"size above int64":           {append(bytes.Repeat([]byte{0xff}, 9), 1), func(r *Reader) { r.Size() }, "does not fit"},
		"u32 cut short":              {[]byte{1, 2, 3}, func(r *Reader) { r.U32() }, "4 bytes wanted, 3 left"},
		"u64 cut short":              {[]byte{1, 2, 3}, func(r *Reader) { r.U64() }, "8 bytes wanted, 3 left"},
		"byte without bytes":         {nil, func(r *Reader) { r.Byte() }, "1 bytes wanted"},
		"boolean of 2":               {[]byte{2}, func(r *Reader) { r.Bool() }, "a boolean of 2"},
		"bytes beyond the end":       {[]byte{3, 1, 2}, func(r *Reader) { r.Bytes() }, "at most 2"},
		"string beyond the end":      {[]byte{200, 1, 'x'}, func(r *Reader) { _ = r.String() }, "a count of 200"},
		"more items than bytes":      {[]byte{3, 0, 0, 0, 0, 0}, func(r *Reader) { r.Count(2) }, "a count of 3, but at most 2"},
		"more items than the limit":  {[]byte{9}, func(r *Reader) { r.CountMax(8) }, "a count of 9, but at most 8"},
		"raw of a negative length":   {[]byte{1}, func(r *Reader) { r.Raw(-1) }, "-1 bytes wanted"},
		"bytes left over":            {[]byte{1, 2}, func(r *Reader) { r.Byte() }, "1 bytes after the end"},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReader(tc.in)
			tc.read(r)
			err := r.Done()
			if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Done() = %v; want ErrMalformed with %q", err, tc.want)
			}
		})
	}
}

func TestTheFirstErrorSticks(t *testing.T) {
	r := NewReader([]byte{2, 1, 1, 1, 1, 1, 1, 1, 1, 1})
	r.Bool()
	first := r.Err()
	if first == nil {
		t.Fatal("Err() = nil after a bad boolean")
	}
	cause := errors.New("second")
	r.Fail("%w", cause)
	if r.Uvarint() != 0 || r.U32() != 0 || r.U64() != 0 || r.Count(1) != 0 || r.Bytes() != nil || r.Len() != 0 {
		t.Error("a getter returned something after an error")
	}
	if err := r.Done(); err != first {
		t.Errorf("Done() = %v; want the first error %v", err, first)
	}
	r.Reset([]byte{7})
	if got := r.Byte(); got != 7 || r.Done() != nil {
		t.Errorf("after Reset: Byte() = %d, Done() = %v; want 7, nil", got, r.Done())
	}
	r.Fail("%w", cause)
	if err := r.Err(); !errors.Is(err, cause) || !errors.Is(err, ErrMalformed) {
		t.Errorf("Err() = %v; want both ErrMalformed and the cause", err)
	}
}

func TestRawBytesCannotGrowIntoTheInput(t *testing.T) {
	in := []byte{1, 'a', 'b'}
	p := NewReader(in).Bytes()
	_ = append(p, 'X')
	if in[2] != 'b' {
		t.Error("appending to the result of Bytes changed the input")
	}
}
