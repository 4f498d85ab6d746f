package blob_test

import (
	"errors"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
)

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "a/b": true, ".metadata": true, "..a": true, "a..": true, "...": true, " ": true, "世/界": true, "a:b": true,
		strings.Repeat("e", blob.MaxElement):          true,
		strings.Repeat("a/", blob.MaxName/2-1) + "bc": true,
		blob.Reserved[:len(blob.Reserved)-1]:          true,
		"a" + blob.Reserved:                           true,
		"":                                            false,
		".":                                           false,
		"..":                                          false,
		"/a":                                          false,
		"a/":                                          false,
		"a//b":                                        false,
		"a/./b":                                       false,
		"a/../b":                                      false,
		"a\\b":                                        false,
		"a\x00":                                       false,
		"a\tb":                                        false,
		"\x7f":                                        false,
		"\u0085":                                      false,
		"\xff":                                        false,
		blob.Reserved:                                 false,
		"a/" + blob.Reserved + "b":                    false,
		strings.Repeat("e", blob.MaxElement+1):        false,
		"a/" + strings.Repeat("é", blob.MaxElement/2+1):            false,
		strings.Repeat("a/", blob.MaxName/2) + "b":                 false,
		strings.Repeat("\x00", 1<<20) + "a message of this length": false,
	} {
		err := blob.CheckName(name)
		if ok != (err == nil) || !ok && !errors.Is(err, blob.ErrName) {
			t.Errorf("CheckName(%.40q) = %v; want ok: %v", name, err, ok)
		}
		if err != nil && len(err.Error()) > 8*blob.MaxName {
			t.Errorf("CheckName(%.40q) has a message of %d bytes; want a bounded one", name, len(err.Error()))
		}
	}
}

func TestCheckPrefix(t *testing.T) {
	for prefix, ok := range map[string]bool{
		"": true, "a": true, "a/": true, "a/.": true, "a/..": true, ".": true, "..": true, ".cairn-tmp": true,
		strings.Repeat("e", blob.MaxElement): true,
		"/":                                  false, "a//": false, "./": false, "../": false, "a/../": false, "a\x00": false,
		blob.Reserved: false, blob.Reserved + "x": false, strings.Repeat("e", blob.MaxElement+1): false,
	} {
		err := blob.CheckPrefix(prefix)
		if ok != (err == nil) || !ok && !errors.Is(err, blob.ErrName) {
			t.Errorf("CheckPrefix(%.40q) = %v; want ok: %v", prefix, err, ok)
		}
	}
}

// FuzzCheckName: a name that passes is a clean path, and every beginning of it is a valid
// prefix.
func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"a/b", "../a", "a\xffb", "世/界", ".cairn-tmp-x", "a/.", "C:/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if blob.CheckName(name) != nil {
			return
		}
		if path.Clean(name) != name || !filepath.IsLocal(name) || !utf8.ValidString(name) || len(name) > blob.MaxName {
			t.Errorf("CheckName(%q) = nil; want ErrName", name)
		}
		for i := range name {
			if err := blob.CheckPrefix(name[:i]); err != nil {
				t.Errorf("CheckPrefix(%q) = %v; want nil, as %q is a name", name[:i], err, name)
			}
		}
	})
}
