package blob_test

import (
	"bytes"
	"errors"
	"io/fs"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
)

func TestWriteAllThenReadAll(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 1000)
	for _, c := range []struct {
		opts   *blob.CreateOptions
		data   []byte
		writes int64
	}{
		{nil, nil, 0}, {nil, data, 1}, {&blob.CreateOptions{Size: 10000}, data, 1},
		{&blob.CreateOptions{Piece: 4096}, data, 3}, {&blob.CreateOptions{Piece: 4096}, data[:8192], 2}, {&blob.CreateOptions{Piece: 1 << 20}, data, 1},
	} {
		s := fault.New(new(mem.Store))
		info, err := blob.WriteAll(t.Context(), s, "x", c.data, c.opts)
		if err != nil || info.Size != int64(len(c.data)) {
			t.Errorf("WriteAll(%d bytes, %+v) = %+v, %v; want its size", len(c.data), c.opts, info, err)
		}
		if n := s.Ops().Count(fault.Write); n != c.writes {
			t.Errorf("WriteAll(%d bytes, %+v) made %d writes; want %d", len(c.data), c.opts, n, c.writes)
		}
		got, err := blob.ReadAll(t.Context(), s, "x", int64(len(c.data)))
		if err != nil || !bytes.Equal(got, c.data) {
			t.Errorf("ReadAll = %d bytes, %v; want the %d written", len(got), err, len(c.data))
		}
	}
}

func TestWriteAllKeepsTheCallersOptions(t *testing.T) {
	opts := &blob.CreateOptions{IfAbsent: true}
	if _, err := blob.WriteAll(t.Context(), new(mem.Store), "x", []byte("hello"), opts); err != nil || opts.Size != 0 {
		t.Errorf("WriteAll = %v, options %+v; want them unchanged", err, opts)
	}
}

func TestWriteAllRefusesAnotherSize(t *testing.T) {
	s := new(mem.Store)
	if _, err := blob.WriteAll(t.Context(), s, "x", []byte("hello"), &blob.CreateOptions{Size: 6}); !errors.Is(err, blob.ErrRange) {
		t.Errorf("WriteAll(5 bytes, Size 6) = %v; want ErrRange", err)
	}
	if _, err := s.Stat(t.Context(), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat = %v; want fs.ErrNotExist", err)
	}
}

func TestWriteAllAbortsAfterAnError(t *testing.T) {
	no := errors.New("no")
	for _, op := range []fault.Op{fault.Create, fault.Write, fault.Commit} {
		s := fault.New(new(mem.Store), fault.Rule{On: op, Do: fault.Fail(no)})
		if _, err := blob.WriteAll(t.Context(), s, "x", []byte("hello"), nil); !errors.Is(err, no) {
			t.Errorf("WriteAll with a failing %v = %v; want it", op, err)
		}
		if op == fault.Write && s.Ops().Count(fault.Abort) != 1 {
			t.Errorf("operations:\n%swant an abort", s.Ops())
		}
	}
}

func TestReadAllReturnsErrors(t *testing.T) {
	no := errors.New("no")
	inner := new(mem.Store)
	if _, err := blob.WriteAll(t.Context(), inner, "x", []byte("hello"), nil); err != nil {
		t.Fatal(err)
	}
	for _, op := range []fault.Op{fault.Open, fault.Read} {
		s := fault.New(inner, fault.Rule{On: op, Do: fault.Fail(no)})
		if p, err := blob.ReadAll(t.Context(), s, "x", 100); !errors.Is(err, no) || p != nil {
			t.Errorf("ReadAll with a failing %v = %q, %v; want the error alone", op, p, err)
		}
	}
	for max, want := range map[int64]error{-1: blob.ErrTooLarge, 0: blob.ErrTooLarge, 4: blob.ErrTooLarge, 5: nil} {
		if _, err := blob.ReadAll(t.Context(), inner, "x", max); !errors.Is(err, want) {
			t.Errorf("ReadAll(max %d) = %v; want %v", max, err, want)
		}
	}
}

func TestAlignedBytes(t *testing.T) {
	for _, n := range []int{1, 7, 4095, 4096, 4097, 1 << 20} {
		p := blob.AlignedBytes(n)
		if len(p) != n || cap(p) != n || !blob.Aligned(p) {
			t.Errorf("AlignedBytes(%d) = len %d, cap %d, aligned %v; want both exact and aligned", n, len(p), cap(p), blob.Aligned(p))
		}
		if n > 1 && blob.Aligned(p[1:]) {
			t.Error("Aligned(p[1:]) = true; want false")
		}
	}
	for _, n := range []int{0, -1} {
		if p := blob.AlignedBytes(n); p != nil {
			t.Errorf("AlignedBytes(%d) = %d bytes; want nil", n, len(p))
		}
	}
}
