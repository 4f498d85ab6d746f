package blob_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// sub returns the folder dir of a store, beside which there are other objects.
func sub(t *testing.T, s blob.Store, dir string) blob.Store {
	t.Helper()
	for _, name := range []string{dir + "-before", dir + "0", "zzz"} {
		if _, err := blob.WriteAll(t.Context(), s, name, []byte("other"), nil); err != nil {
			t.Fatal(err)
		}
	}
	out := must.Get(blob.NewSub(s, dir))(t)
	return out
}

func TestSubKeepsTheContract(t *testing.T) {
	t.Run("mem", func(t *testing.T) {
		blobtest.Run(t, func(t *testing.T) blob.Store { return sub(t, new(mem.Store), "run/step1") })
	})
	t.Run("file", func(t *testing.T) {
		blobtest.Run(t, func(t *testing.T) blob.Store {
			s := must.Get(file.Open(t.TempDir(), &file.Options{NoSync: true}))(t)
			return sub(t, s, "run")
		})
	})
}

func TestSubHasTheLocksAndTempsOfItsFolder(t *testing.T) {
	f := must.Get(file.Open(t.TempDir(), nil))(t)
	s := sub(t, f, "run")
	if _, err := blob.WriteAll(t.Context(), s, "x", []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	locker, _ := blob.As[blob.Locker](s)
	held := must.Get(locker.TryLock(t.Context(), "save-1", nil))(t)
	defer held.Release()
	locks, err := locker.Locks(t.Context(), "")
	if err != nil || len(locks) != 1 || locks[0].Name != "save-1" {
		t.Errorf("Locks = %v, %v; want save-1", locks, err)
	}
	if outer, err := f.Locks(t.Context(), "run"); err != nil || len(outer) != 1 || outer[0].Name != "run/save-1" {
		t.Errorf("Locks of the store = %v, %v; want run/save-1", outer, err)
	}
	w := must.Get(s.Create(t.Context(), "y", nil))(t)
	defer w.Abort()
	sweeper, _ := blob.As[blob.Sweeper](s)
	temps, err := sweeper.Temps(t.Context(), "")
	if err != nil || len(temps) != 1 {
		t.Errorf("Temps = %v, %v; want that of the writer", temps, err)
	}
	without := sub(t, new(mem.Store), "run")
	locker, _ = blob.As[blob.Locker](without)
	if _, err := locker.TryLock(t.Context(), "x", nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("TryLock of a folder of a store without locks = %v; want ErrUnsupported", err)
	}
}

func TestSubOfNothing(t *testing.T) {
	s := new(mem.Store)
	if got, err := blob.NewSub(s, ""); got != blob.Store(s) || err != nil {
		t.Errorf("NewSub(s, \"\") = %v, %v; want s", got, err)
	}
	if got, err := blob.NewSub(s, "../x"); !errors.Is(err, blob.ErrName) {
		t.Errorf("NewSub(s, ../x) = %v, %v; want ErrName", got, err)
	}
}

func TestFolders(t *testing.T) {
	f := must.Get(file.Open(t.TempDir(), nil))(t)
	for name, s := range map[string]blob.Store{"mem": new(mem.Store), "file": f, "sub": sub(t, new(mem.Store), "run")} {
		for _, o := range []string{"a", "b/x", "b/y/z", "b-c/x", "b0/x/y"} {
			if _, err := blob.WriteAll(t.Context(), s, o, []byte(o), nil); err != nil {
				t.Fatal(err)
			}
		}
		for dir, want := range map[string][]string{"": {"b", "b-c", "b0"}, "b": {"y"}, "b0": {"x"}, "none": nil, "b/y": nil} {
			got, err := blob.Folders(t.Context(), s, dir)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: Folders(%q) = %v, %v; want %v", name, dir, got, err, want)
			}
		}
	}
}

func TestAddressesOfObjects(t *testing.T) {
	s := &mem.Store{Name: "objects"}
	blob.Register("objects", func(_ context.Context, address string) (blob.Store, error) {
		if address == "objects://x?secret=1" || address == "objects://x" {
			return s, nil
		}
		return blob.NewSub(s, "folder.pt")
	})
	for _, name := range []string{"one.pt", "folder.pt/x"} {
		if _, err := blob.WriteAll(t.Context(), s, name, []byte(name), nil); err != nil {
			t.Fatal(err)
		}
	}
	one, err := blob.OpenAddress(t.Context(), "objects://x/one.pt?secret=1")
	if single, ok := one.(*blob.Single); err != nil || !ok || single.Name() != "one.pt" {
		t.Errorf("OpenAddress(one.pt) = %v, %v; want that object alone", one, err)
	}
	// OpenFolder does not look whether there is an object.
	if folder, err := blob.OpenFolder(t.Context(), "objects://x/one.pt"); err != nil {
		t.Error(err)
	} else if _, single := folder.(*blob.Single); single {
		t.Error("OpenFolder(one.pt) is a single object")
	}
	folder := must.Get(blob.OpenAddress(t.Context(), "objects://x/folder.pt"))(t)
	if _, err := folder.Stat(t.Context(), "x"); err != nil {
		t.Errorf("Stat(x) of OpenAddress(folder.pt) = %v; want nil", err)
	}
	if _, err := folder.Stat(t.Context(), "one.pt"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat(one.pt) of OpenAddress(folder.pt) = %v; want ErrNotExist", err)
	}
}

func TestUnknownSchemes(t *testing.T) {
	for _, address := range []string{"gopher://user:secret@x/y?key=secret#secret", "gopher://x/y.pt?key=secret", "gopher://%zz/secret"} {
		s, err := blob.OpenAddress(t.Context(), address)
		if !errors.Is(err, blob.ErrAddress) || s != nil {
			t.Fatalf("OpenAddress(%s) = %v, %v; want ErrAddress", address, s, err)
		}
		if text := err.Error(); strings.Contains(text, "secret") || !strings.Contains(text, "gopher://") || !strings.Contains(text, "file") {
			t.Errorf("OpenAddress(%s) = %v; want the address without secrets, and the known schemes", address, err)
		}
	}
}

// A URL that has lost a slash, as pathlib.Path makes it, is not a folder on the local disk.
func TestURLThatLacksASlash(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, address := range []string{"s3:/bucket/x", "S3:/bucket/x.pt", "s3:/key:secret@bucket/x?key=secret", "file:/x", "gopher:/x"} {
		s, err := blob.OpenAddress(t.Context(), address)
		if !errors.Is(err, blob.ErrAddress) || strings.Contains(err.Error(), "secret") {
			t.Errorf("OpenAddress(%s) = %v, %v; want ErrAddress without secrets", address, s, err)
		}
	}
	for _, address := range []string{"./s3:/x", "a/s3:/x", "C:/x", "s3:x"} {
		if got := blob.Scheme(address); got != "file" {
			t.Errorf("Scheme(%s) = %s; want file", address, got)
		}
	}
}

func TestSchemesInCapitals(t *testing.T) {
	var got string
	blob.Register("capitals", func(_ context.Context, address string) (blob.Store, error) {
		got = address
		return new(mem.Store), nil
	})
	if _, err := blob.OpenAddress(t.Context(), "Capitals://Bucket/X"); err != nil || got != "capitals://Bucket/X" {
		t.Errorf("OpenAddress(Capitals://Bucket/X) opens %s, %v; want capitals://Bucket/X", got, err)
	}
}

func TestSplitAddress(t *testing.T) {
	for address, want := range map[string][2]string{
		"a/b":                    {"a/", "b"},
		"/a":                     {"/", "a"},
		"a":                      {"", "a"},
		"a/b/":                   {"a/", "b"},
		"s3://b/run/step1?x=y/z": {"s3://b/run?x=y/z", "step1"},
		"s3://b/run/step%201/":   {"s3://b/run", "step 1"},
		"s3://b":                 {"s3://b", ""},
		"s3://b/":                {"s3://b/", ""},
		"file:///a":              {"file:///", "a"},
		"s3://b/%zz":             {"s3://b/%zz", ""},
	} {
		if dir, name := blob.SplitAddress(address); dir != want[0] || name != want[1] {
			t.Errorf("SplitAddress(%q) = %q, %q; want %q", address, dir, name, want)
		}
	}
}

// The error for an address of the web has advice on the download.
func TestOpenAddressOfTheWeb(t *testing.T) {
	const models = "'hf download org/name --local-dir name' makes it a folder here"
	for address, want := range map[string]string{
		"https://huggingface.co/org/name":                    models,
		"https://huggingface.co/org/name/tree/main?x=secret": models,
		"hf://org/name": models,
		"HTTPS://user:secret@huggingface.co/org/name":                models,
		"https://huggingface.co/gpt2/resolve/main/model.safetensors": "'hf download gpt2 --local-dir gpt2'",
		"https://huggingface.co/org/name;rm%20x":                     "cairn opens no web pages",
		"https://huggingface.co":                                     "cairn opens no web pages",
		"https://huggingface.co/--help":                              "cairn opens no web pages",
		"http://example.com/model.safetensors":                       "cairn opens no web pages",
		"gopher://example.com/x":                                     "this program knows the schemes",
	} {
		_, err := blob.OpenAddress(t.Context(), address)
		if !errors.Is(err, blob.ErrAddress) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("OpenAddress(%q) = %v; want ErrAddress with %q", address, err, want)
		}
	}
}
