package fault_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestFlipAndTruncateReads(t *testing.T) {
	for want, do := range map[string]fault.Action{
		"iello":      fault.Flip(0), // h is 0x68
		"helln":      fault.Flip(5*8 - 8),
		"hemlo":      fault.Flip(40 + 16), // modulo the bits there are
		"he\x00\x00": fault.Truncate(2),
		"hell":       fault.Truncate(99),
	} {
		s := fault.New(seeded(t), fault.Rule{On: fault.Read, Do: do})
		r := must.Get(s.Open(t.Context(), "x"))(t)
		defer r.Close()
		p := make([]byte, len(want))
		if err := r.ReadAt(t.Context(), p, 0); err != nil || string(p) != want {
			t.Errorf("ReadAt = %q, %v; want %q", p, err, want)
		}
		if err := r.ReadAt(t.Context(), p, 0); err != nil || string(p) != "hello"[:len(p)] {
			t.Errorf("ReadAt again = %q, %v; want it undamaged", p, err)
		}
	}
}

func TestFlipWrites(t *testing.T) {
	inner := new(mem.Store)
	data := []byte("hello")
	s := fault.New(inner, fault.Rule{On: fault.Write, Do: fault.Flip(1)})
	if _, err := blob.WriteAll(t.Context(), s, "x", data, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := blob.ReadAll(t.Context(), inner, "x", 9); err != nil || string(got) != "jello" || string(data) != "hello" {
		t.Errorf("stored %q, %v, caller's bytes %q; want jello and hello", got, err, data)
	}
}

func TestTruncateWrites(t *testing.T) {
	inner := new(mem.Store)
	s := fault.New(inner, fault.Rule{On: fault.Write, Do: fault.Truncate(3)})
	w := must.Get(s.Create(t.Context(), "x", nil))(t)
	if err := w.WriteAt(t.Context(), []byte("hello"), 0); err != nil {
		t.Errorf("WriteAt = %v; want nil", err)
	}
	if info, err := w.Commit(t.Context()); err != nil || info.Size != 3 {
		t.Errorf("Commit = %+v, %v; want 3 bytes", info, err)
	}
}

func TestTruncatedObject(t *testing.T) {
	s := fault.New(seeded(t), fault.Rule{On: fault.Open | fault.Stat, Times: -1, Do: fault.Truncate(3)})
	if info, err := s.Stat(t.Context(), "x"); err != nil || info.Size != 3 {
		t.Errorf("Stat = %+v, %v; want 3 bytes", info, err)
	}
	r := must.Get(s.Open(t.Context(), "x"))(t)
	defer r.Close()
	if r.Size() != 3 {
		t.Errorf("Size = %d; want 3", r.Size())
	}
	p := make([]byte, 3)
	if err := r.ReadAt(t.Context(), p, 0); err != nil || string(p) != "hel" {
		t.Errorf("ReadAt = %q, %v; want hel", p, err)
	}
	if err := r.ReadAt(t.Context(), p, 1); !errors.Is(err, blob.ErrRange) {
		t.Errorf("ReadAt beyond the cut = %v; want ErrRange", err)
	}
}

func TestDamage(t *testing.T) {
	s := seeded(t)
	err := fault.Damage(t.Context(), s, "x", func(p []byte) []byte { return append(p[:2], '!') })
	if got, rerr := blob.ReadAll(t.Context(), s, "x", 9); err != nil || rerr != nil || string(got) != "he!" {
		t.Errorf("Damage = %v, x = %q, %v; want he!", err, got, rerr)
	}
}
