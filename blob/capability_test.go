package blob_test

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// gapped is a store with a capability.
type gapped struct{ mem.Store }

func (*gapped) ReadGap() int64 { return 42 }

// wrapped wraps a store, which may be nil.
type wrapped struct{ blob.Store }

func (w wrapped) Unwrap() blob.Store { return w.Store }

func TestAsFindsTheFirstWithTheCapability(t *testing.T) {
	inner := new(gapped)
	for _, s := range []blob.Store{inner, wrapped{inner}, wrapped{wrapped{fault.New(inner)}}} {
		if g, ok := blob.As[blob.GapReader](s); !ok || g.ReadGap() != 42 {
			t.Errorf("As[GapReader](%T) = %v, %v; want the inner store", s, g, ok)
		}
	}
	outer := fault.New(fault.New(inner))
	if m, ok := blob.As[*fault.Store](outer); !ok || m != outer {
		t.Errorf("As[*fault.Store] = %p, %v; want the outer one, %p", m, ok, outer)
	}
}

func TestAsFindsNothing(t *testing.T) {
	for _, s := range []blob.Store{nil, new(mem.Store), wrapped{nil}, wrapped{new(mem.Store)}} {
		if g, ok := blob.As[blob.GapReader](s); ok || g != nil {
			t.Errorf("As[GapReader](%T) = %v, %v; want nothing", s, g, ok)
		}
	}
}

func TestErrorText(t *testing.T) {
	for want, e := range map[string]*blob.Error{
		`open "a b" in /x: file does not exist`: {Op: "open", Store: "/x", Name: "a b", Err: fs.ErrNotExist},
		`open "a": file does not exist`:         {Op: "open", Name: "a", Err: fs.ErrNotExist},
		`sweep in /x: file does not exist`:      {Op: "sweep", Store: "/x", Err: fs.ErrNotExist},
	} {
		if e.Error() != want || !errors.Is(e, fs.ErrNotExist) {
			t.Errorf("Error = %q; want %q", e, want)
		}
	}
}

// OpenKnown with a version opens that version or returns ErrChanged.
func TestOpenKnownVersion(t *testing.T) {
	inner := new(mem.Store)
	sub := must.Get(blob.NewSub(inner, "folder"))(t)
	old := must.Get(blob.WriteAll(t.Context(), sub, "a", []byte("old"), nil))(t)
	for _, o := range []blob.Info{{Name: "a", Size: 3}, old} {
		r, err := blob.OpenKnown(t.Context(), sub, o)
		if err != nil {
			t.Fatalf("OpenKnown(%+v) = %v", o, err)
		}
		r.Close()
	}
	if _, err := blob.WriteAll(t.Context(), sub, "a", []byte("new"), nil); err != nil {
		t.Fatal(err)
	}
	if r, err := blob.OpenKnown(t.Context(), sub, old); !errors.Is(err, blob.ErrChanged) {
		t.Errorf("OpenKnown of an object that was replaced = %v, %v; want ErrChanged", r, err)
	}
}
