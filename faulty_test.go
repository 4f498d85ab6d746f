package cairn_test

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
)

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

// faultyAddress returns the address of a folder that wrap makes faulty.
func faultyAddress(t *testing.T, dir string, wrap func(dir blob.Store) blob.Store) string {
	t.Helper()
	faultyMu.Lock()
	defer faultyMu.Unlock()
	key := fmt.Sprintf("key%d", len(faulty))
	faulty[key] = wrap
	return "faulty://" + key + filepath.ToSlash(dir)
}
