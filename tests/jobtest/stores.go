package jobtest

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// TempStore returns a store in a new folder.
func TempStore(t *testing.T) *file.Store {
	t.Helper()
	s := must.Get(file.Open(t.TempDir(), nil))(t)
	return s
}

// OpenFolder returns the store in a folder. Its path is joined from parts.
func OpenFolder(t *testing.T, dir ...string) *file.Store {
	t.Helper()
	s := must.Get(file.Open(filepath.Join(dir...), nil))(t)
	return s
}

// faulty are the stores behind the addresses faulty://KEY/PATH: folders in which things go
// wrong.
var (
	faultyMu sync.Mutex
	faulty   = map[string]func(dir blob.Store) blob.Store{} // guarded by faultyMu
)

func init() {
	blob.Register("faulty", func(_ context.Context, address string) (blob.Store, error) {
		u, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		dir, err := file.Open(filepath.FromSlash(u.Path), nil)
		if err != nil {
			return nil, err
		}
		faultyMu.Lock()
		defer faultyMu.Unlock()
		return faulty[u.Host](dir), nil
	})
}

// FaultyAddress returns the address of a folder that wrap makes faulty.
func FaultyAddress(t *testing.T, dir string, wrap func(dir blob.Store) blob.Store) string {
	t.Helper()
	faultyMu.Lock()
	defer faultyMu.Unlock()
	key := fmt.Sprintf("key%d", len(faulty))
	faulty[key] = wrap
	return "faulty://" + key + filepath.ToSlash(dir)
}
