// Package all opens a store by its address. It knows which stores there are,
// and nothing else of them. The contract is that of blob.Store.
package all

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/blob/only"
)

// ErrScheme reports an address of a kind that is not known here.
var ErrScheme = errors.New("unknown kind of store")

// schemes are the stores there are. A new one takes a line here.
var schemes = []struct {
	name, form string
	open       func(rest string) (blob.Store, error)
}{
	{"file", "a path or file:///path", openURL},
	{"mem", "mem://name", openMem},
}

// Open returns the store at an address: a path, "file:///path" with the usual
// escapes, or "mem://name", which is the same store for everybody in the
// process who says the same name. The path of a file, rather than a directory,
// is the store of that file alone.
func Open(address string) (blob.Store, error) {
	name, rest, ok := strings.Cut(address, "://")
	if !ok {
		return openPath(address)
	}
	for _, s := range schemes {
		if s.name == name {
			return s.open(rest)
		}
	}
	return nil, fmt.Errorf("open store %q: %w; known are %s", address, ErrScheme, forms())
}

func forms() string {
	var all []string
	for _, s := range schemes {
		all = append(all, s.form)
	}
	return strings.Join(all, ", ")
}

func openPath(path string) (blob.Store, error) {
	if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
		dir, name := filepath.Split(path)
		if dir == "" {
			dir = "."
		}
		s, err := file.Open(dir, nil)
		if err != nil {
			return nil, err
		}
		return only.New(s, name), nil
	}
	s, err := file.Open(path, nil)
	if err != nil {
		return nil, err // not a nil *file.Store in a blob.Store
	}
	return s, nil
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
	return openPath(filepath.FromSlash(u.Path))
}

var (
	mu     sync.Mutex
	stores = make(map[string]*mem.Store) // guarded by mu
)

func openMem(name string) (blob.Store, error) {
	mu.Lock()
	defer mu.Unlock()
	s := stores[name]
	if s == nil {
		s = &mem.Store{Name: name}
		stores[name] = s
	}
	return s, nil
}
