package cli

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestPathsAndFileURLs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a dir?")
	escaped := (&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String()
	for i, address := range []string{dir, escaped, strings.Replace(escaped, "file://", "file://localhost", 1)} {
		s, err := blob.OpenAddress(t.Context(), address)
		if err != nil {
			t.Fatalf("OpenAddress(%q) = %v; want nil", address, err)
		}
		name := string(rune('a' + i))
		if _, err := blob.WriteAll(t.Context(), s, name, []byte(address), nil); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != address {
			t.Errorf("OpenAddress(%q) and WriteAll: file = %q, %v; want %q", address, got, err, address)
		}
	}
}

func TestMemStoresAreSharedByName(t *testing.T) {
	open := func(address string) blob.Store {
		s := must.Get(blob.OpenAddress(t.Context(), address))(t)
		return s
	}
	a, same, other := open("mem://a"), open("mem://a"), open("mem://b")
	if a != same || a == other || a.String() != "mem://a" {
		t.Errorf("mem://a = %p and %p, mem://b = %p; want the first two the same", a, same, other)
	}
	if _, err := blob.WriteAll(t.Context(), open("mem://a/folder"), "x", []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Stat(t.Context(), "folder/x"); err != nil {
		t.Errorf("Stat(folder/x) of mem://a after x was written to mem://a/folder = %v; want nil", err)
	}
}

func TestUnknownSchemeListsKnownOnes(t *testing.T) {
	s, err := blob.OpenAddress(t.Context(), "gopher://x/y")
	if !errors.Is(err, blob.ErrAddress) || s != nil {
		t.Fatalf("OpenAddress = %v, %v; want ErrAddress", s, err)
	}
	for _, want := range []string{"gopher://x/y", "file", "mem"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("OpenAddress = %q; want it to say %s", err, want)
		}
	}
}

func TestStoreOfSingleFile(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"f", "g"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, n), []byte(n), 0o666))
	}
	t.Chdir(dir)
	for _, address := range []string{filepath.Join(dir, "f"), "f", "./f"} {
		s, err := blob.OpenAddress(t.Context(), address)
		if err != nil {
			t.Fatalf("OpenAddress(%q): %v", address, err)
		}
		var names []string
		for info, err := range s.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, info.Name)
		}
		if len(names) != 1 || names[0] != "f" {
			t.Errorf("OpenAddress(%q) holds %v; want the file alone", address, names)
		}
	}
}

func TestBadAddressesRefused(t *testing.T) {
	for _, address := range []string{"", "file://", "file://host/path", "file:///a?b=c", "file:///a#b", "file:///%zz", "://x"} {
		if s, err := blob.OpenAddress(t.Context(), address); err == nil || s != nil {
			t.Errorf("OpenAddress(%q) = %v, %v; want an error and a nil store", address, s, err)
		}
	}
}
