package cli

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
)

// errScheme reports an address of an unknown kind.
var errScheme = errors.New("unknown kind of store")

// schemes lists the kinds of stores.
var schemes = []struct {
	name, form string
	open       func(rest string) (blob.Store, error)
}{
	{"file", "a path or file:///path", openURL},
	{"mem", "mem://name", openMem},
}

// storeAt returns the store at an address: a path, "file:///path" with the usual
// escapes, or "mem://name", which is one store of that name for the whole process.
// The path of a file, rather than a folder, is the store of that file alone.
func storeAt(address string) (blob.Store, error) {
	name, rest, ok := strings.Cut(address, "://")
	if !ok {
		return file.OpenPath(address)
	}
	for _, s := range schemes {
		if s.name == name {
			return s.open(rest)
		}
	}
	return nil, fmt.Errorf("open store %q: %w; known are %s", address, errScheme, forms())
}

func forms() string {
	var all []string
	for _, s := range schemes {
		all = append(all, s.form)
	}
	return strings.Join(all, ", ")
}

func openURL(rest string) (blob.Store, error) {
	u, err := url.Parse("file://" + rest)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if u.Host != "" && u.Host != "localhost" {
		return nil, fmt.Errorf("open store %q: file on another host; file:///path has three slashes", u)
	}
	if u.RawQuery != "" || u.Fragment != "" || u.Path == "" {
		return nil, fmt.Errorf("open store %q: want file:///path", u)
	}
	return file.OpenPath(filepath.FromSlash(u.Path))
}

var (
	memMu     sync.Mutex
	memStores = make(map[string]*mem.Store) // guarded by memMu
)

func openMem(name string) (blob.Store, error) {
	memMu.Lock()
	defer memMu.Unlock()
	s := memStores[name]
	if s == nil {
		s = &mem.Store{Name: name}
		memStores[name] = s
	}
	return s, nil
}
