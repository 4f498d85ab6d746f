package storagetest

import (
	"context"
	"sync"

	"github.com/cairn-ckpt/cairn/storage"
)

// Journal is a storage.Journal in memory. Its zero value is empty, and its
// methods are safe for concurrent use.
type Journal struct {
	mu    sync.Mutex
	files map[string]*storage.WriteResults // guarded by mu
	found int                              // guarded by mu
}

var _ storage.Journal = (*Journal)(nil)

// Finished implements storage.Journal.
func (j *Journal) Finished(_ context.Context, file string) (*storage.WriteResults, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.files[file]
	if ok {
		j.found++
	}
	return r, ok, nil
}

// Note implements storage.Journal.
func (j *Journal) Note(_ context.Context, file string, r *storage.WriteResults) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.files == nil {
		j.files = map[string]*storage.WriteResults{}
	}
	j.files[file] = r
	return nil
}

// Len returns the number of files that were noted.
func (j *Journal) Len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.files)
}

// Found returns how often Finished knew a file.
func (j *Journal) Found() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.found
}
