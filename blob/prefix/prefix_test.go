package prefix_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/blob/prefix"
)

func TestStore(t *testing.T) {
	for _, p := range []string{"a/b", ""} {
		t.Run("prefix="+p, func(t *testing.T) {
			blobtest.Run(t, func(t *testing.T) blob.Store {
				inner := new(mem.Store)
				if p != "" { // neighbours that must stay out of sight
					put(t, inner, "a/a", "a/b", "a/b!", "a/bb", "c")
				}
				return prefix.New(inner, p)
			})
		})
	}
}

func put(t *testing.T, s blob.Store, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := blob.WriteAll(t.Context(), s, n, []byte(n), nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNamesOnBothSides(t *testing.T) {
	inner := &mem.Store{Name: "m"}
	s := prefix.New(prefix.New(inner, "a"), "b")
	put(t, s, "x")
	if p, err := blob.ReadAll(t.Context(), inner, "a/b/x", 10); err != nil || string(p) != "x" {
		t.Errorf("inner a/b/x = %q, %v; want x", p, err)
	}
	if got := s.String(); got != "mem://m/a/b" {
		t.Errorf("String = %q; want the inner store's with the prefix", got)
	}
}

func TestBadPrefixFailsEveryOperation(t *testing.T) {
	for _, p := range []string{"/", "/a", "a/", "..", "../a", "a//b", "a\x00"} {
		s := prefix.New(new(mem.Store), p)
		if _, err := blob.WriteAll(t.Context(), s, "x", nil, nil); !errors.Is(err, blob.ErrName) {
			t.Errorf("WriteAll below %q = %v; want ErrName", p, err)
		}
		for _, err := range s.List(t.Context(), "") {
			if !errors.Is(err, blob.ErrName) {
				t.Errorf("List below %q = %v; want ErrName", p, err)
			}
		}
	}
}

// cooler notes what it was asked to cool.
type cooler struct {
	mem.Store
	cooled []string
}

func (c *cooler) Cool(_ context.Context, name string) error {
	c.cooled = append(c.cooled, name)
	return nil
}

func TestCapabilitySpeaksInnerNames(t *testing.T) {
	inner := new(cooler)
	c, ok := blob.As[blob.Cooler](prefix.New(inner, "a"))
	if !ok {
		t.Fatal("As[Cooler] = false; want true")
	}
	if err := c.Cool(t.Context(), "x"); err != nil || len(inner.cooled) != 1 || inner.cooled[0] != "a/x" {
		t.Errorf("Cool(x) = %v, inner cooled %q; want a/x", err, inner.cooled)
	}
	if err := c.Cool(t.Context(), "../x"); !errors.Is(err, blob.ErrName) {
		t.Errorf("Cool(../x) = %v; want ErrName", err)
	}
	if err := prefix.New(new(mem.Store), "a").Cool(t.Context(), "x"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Cool over a store that cannot = %v; want errors.ErrUnsupported", err)
	}
}

func TestLocksAndTempsAreBelowThePrefix(t *testing.T) {
	inner, err := file.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := prefix.New(inner, "a/b")
	l, err := s.TryLock(t.Context(), "x", []byte("note"))
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Create(t.Context(), "y", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := inner.Locks(t.Context(), "a/b"); err != nil || len(got) != 1 || got[0].Name != "a/b/x" {
		t.Errorf("Locks of the other store = %+v, %v; want a/b/x", got, err)
	}
	if got, err := s.Locks(t.Context(), ""); err != nil || len(got) != 1 || got[0].Name != "x" || string(got[0].Note) != "note" {
		t.Errorf("Locks = %+v, %v; want x", got, err)
	}
	if got, err := s.Temps(t.Context(), ""); err != nil || len(got) != 1 || !strings.HasPrefix(got[0].Name, blob.Reserved) {
		t.Errorf("Temps = %+v, %v; want that of y, without the prefix", got, err)
	}
	if err := errors.Join(w.Abort(), l.Release()); err != nil {
		t.Error(err)
	}
	if _, err := prefix.New(new(mem.Store), "a").TryLock(t.Context(), "x", nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("TryLock over a store without locks = %v; want %v", err, errors.ErrUnsupported)
	}
}
