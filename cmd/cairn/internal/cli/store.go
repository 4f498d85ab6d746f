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

// storeAt returns the store at an address: a path, "file:///path" with the usual
// escapes, or "mem://name", which is one store of that name for the whole process.
// The path of a file, rather than a folder, is the store of that file alone.
func storeAt(address string) (blob.Store, error) {
	path, local, err := localPath(address)
	name, isMem := strings.CutPrefix(address, "mem://")
	switch {
	case err != nil:
		return nil, fmt.Errorf("open store %w", err)
	case local:
		return file.OpenPath(path)
	case isMem:
		return openMem(name), nil
	}
	return nil, fmt.Errorf("open store %q: %w; known are a path or file:///path, mem://name", address, errScheme)
}

// localPath returns the path of an address on the file system.
func localPath(address string) (path string, local bool, err error) {
	if !strings.Contains(address, "://") {
		return address, true, nil
	}
	if !strings.HasPrefix(address, "file://") {
		return address, false, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Path == "" || u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || u.Fragment != "" {
		return "", false, fmt.Errorf("%s: want file:///path", address)
	}
	return filepath.FromSlash(u.Path), true, nil
}

var (
	memMu     sync.Mutex
	memStores = make(map[string]*mem.Store) // guarded by memMu
)

func openMem(name string) blob.Store {
	memMu.Lock()
	defer memMu.Unlock()
	s := memStores[name]
	if s == nil {
		s = &mem.Store{Name: name}
		memStores[name] = s
	}
	return s
}
