package cli

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
)

func init() { blob.Register("mem", openMem) }

var (
	memMu     sync.Mutex
	memStores = make(map[string]*mem.Store) // guarded by memMu
)

// openMem opens "mem://name", which is one store of that name for the whole process, or
// "mem://name/folder", a folder of it.
func openMem(_ context.Context, address string) (blob.Store, error) {
	rest, _, _ := strings.Cut(strings.TrimPrefix(address, "mem://"), "?")
	name, folder, _ := strings.Cut(rest, "/")
	name = name[strings.LastIndexByte(name, '@')+1:]
	folder, err := url.PathUnescape(strings.Trim(folder, "/"))
	if err != nil {
		return nil, fmt.Errorf("%w: mem://%s: %w", blob.ErrAddress, rest[strings.LastIndexByte(rest, '@')+1:], err)
	}
	memMu.Lock()
	defer memMu.Unlock()
	s := memStores[name]
	if s == nil {
		s = &mem.Store{Name: name}
		memStores[name] = s
	}
	return blob.NewSub(s, folder)
}

// isLocal reports whether an address is one of the file system.
func isLocal(address string) bool {
	_, local, err := file.LocalPath(address)
	return local && err == nil
}
