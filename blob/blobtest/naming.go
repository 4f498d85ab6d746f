package blobtest

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
)

// badNames are refused by every method.
var badNames = []string{
	"", ".", "..", "/", "/a", "a/", "a//b", "a/./b", "a/../b", "../a", "a/..", "./a", "a\\b", "a\x00b", "a\nb", "a\x7f", "a\u0085b",
	"a\xffb", blob.Reserved + "x", "a/" + blob.Reserved + "x/b", strings.Repeat("e", blob.MaxElement+1),
	strings.Repeat("a/", blob.MaxName/2) + "b",
}

// badPrefixes begin no name.
var badPrefixes = []string{"/", "//", "../", "a//", "a/./", "a/../b", "./", "a\x00", "\\", "a\xff", blob.Reserved, "a/" + blob.Reserved + "x"}

var naming = []claim{
	{"BadNamesRefused", func(t *testing.T, s blob.Store) {
		for _, name := range badNames {
			_, err := s.Create(t.Context(), name, nil)
			wantErr(t, err, blob.ErrName, "create", name)
			_, err = s.Open(t.Context(), name)
			wantErr(t, err, blob.ErrName, "open", name)
			_, err = s.Stat(t.Context(), name)
			wantErr(t, err, blob.ErrName, "stat", name)
			wantErr(t, s.Remove(t.Context(), name), blob.ErrName, "remove", name)
		}
	}},
	{"OddNamesAccepted", func(t *testing.T, s blob.Store) {
		odd := []string{
			" ", "a b", " a/ b ", "…", "世界/ñandú", "a+b&c=d?e#f%20", "a'b\"c", "*", "-rf", "~", "$HOME", ".metadata", "...", "a..b", "..a/b..",
			".cairn", strings.Repeat("e", blob.MaxElement), strings.Repeat("deep/", 100) + "x",
		}
		for _, name := range odd {
			put(t, s, name, "I am "+name)
		}
		for _, name := range odd {
			wantObject(t, s, name, "I am "+name)
		}
		for _, name := range odd {
			if err := s.Remove(t.Context(), name); err != nil {
				t.Errorf("Remove(%q) = %v; want nil", name, err)
			}
		}
		if ns := names(t, s, ""); len(ns) > 0 {
			t.Errorf("List = %q after all was removed; want nothing", ns)
		}
	}},
	{"NoDirectories", func(t *testing.T, s blob.Store) {
		put(t, s, "a/b/c", "hello")
		wantNone(t, s, "a")
		wantNone(t, s, "a/b")
		if err := s.Remove(t.Context(), "a/b/c"); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a/b", "a"} { // what were directories become objects
			put(t, s, name, "I am "+name)
			wantObject(t, s, name, "I am "+name)
			if err := s.Remove(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"NestedNamesHeldOrRefused", func(t *testing.T, s blob.Store) {
		put(t, s, "a", "leaf")
		put(t, s, "b/c", "leaf")
		for _, name := range []string{"a/b", "a/b/c", "b"} {
			for _, ifAbsent := range []bool{true, false} {
				_, err := blob.WriteAll(t.Context(), s, name, []byte("I am "+name), &blob.CreateOptions{IfAbsent: ifAbsent})
				if err == nil {
					wantObject(t, s, name, "I am "+name)
				} else {
					wantNone(t, s, name)
				}
				if err != nil && !errors.Is(err, blob.ErrNested) || errors.Is(err, fs.ErrExist) {
					t.Errorf("WriteAll(%q) = %v; want nil or ErrNested alone", name, err)
				}
				if err := s.Remove(t.Context(), name); err != nil {
					t.Errorf("Remove(%q) = %v; want nil", name, err)
				}
			}
		}
		wantObject(t, s, "a", "leaf")
		wantObject(t, s, "b/c", "leaf")
	}},
	{"SaysWhereItIs", func(t *testing.T, s blob.Store) {
		if s.String() == "" {
			t.Error("String is empty; want a path or a URL")
		}
		_, err := s.Stat(t.Context(), "no such thing")
		if err == nil || !strings.Contains(err.Error(), "no such thing") {
			t.Errorf("Stat = %v; want an error that names the object", err)
		}
	}},
}
