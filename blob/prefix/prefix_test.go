package prefix_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
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
