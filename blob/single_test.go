package blob_test

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func names(t *testing.T, s blob.Store, prefix string) []string {
	t.Helper()
	var out []string
	for info, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, info.Name)
	}
	return out
}

func TestSingleShowsOneObject(t *testing.T) {
	ctx := t.Context()
	m := &mem.Store{Name: "m"}
	for _, n := range []string{"model.p", "model.pt", "model.pt2", "other"} {
		if _, err := blob.WriteAll(ctx, m, n, []byte(n), nil); err != nil {
			t.Fatal(err)
		}
	}
	s := blob.NewSingle(m, "model.pt")
	if got := names(t, s, ""); len(got) != 1 || got[0] != "model.pt" {
		t.Errorf("List = %v; want the one object", got)
	}
	if got := names(t, s, "x"); got != nil {
		t.Errorf("List(x) = %v; want nothing", got)
	}
	b, err := blob.ReadAll(ctx, s, "model.pt", 100)
	if err != nil || string(b) != "model.pt" {
		t.Errorf("the object: %q, %v", b, err)
	}
	if _, err := s.Open(ctx, "other"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of another: %v; want ErrNotExist", err)
	}
	if _, err := s.Stat(ctx, "../x"); !errors.Is(err, blob.ErrName) {
		t.Errorf("Stat of a bad name: %v; want ErrName", err)
	}
	if _, err := s.Create(ctx, "new", nil); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Create of another: %v; want ErrPermission", err)
	}
	if err := s.Remove(ctx, "other"); err != nil {
		t.Errorf("Remove of another: %v", err)
	}
	if _, err := m.Stat(ctx, "other"); err != nil {
		t.Errorf("the other object is gone: %v", err)
	}
	if got := s.String(); got != m.String()+"/model.pt" {
		t.Errorf("String = %q", got)
	}
}

func TestSingleWritesItsObject(t *testing.T) {
	ctx := context.Background()
	m := &mem.Store{}
	s := blob.NewSingle(m, "a")
	if got := names(t, s, ""); got != nil {
		t.Errorf("List before: %v", got)
	}
	if _, err := blob.WriteAll(ctx, s, "a", []byte("1"), nil); err != nil {
		t.Fatal(err)
	}
	must.Do(t, s.Remove(ctx, "a"))
	if _, err := m.Stat(ctx, "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
}
