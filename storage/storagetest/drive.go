package storagetest

import (
	"context"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
)

// Storage returns a description of a save with that id, step and number of ranks.
// It is the same each time, so that the files of the save are too.
func Storage(id string, step int64, ranks int) meta.Storage {
	return meta.Storage{
		SaveID: id, Step: &step, WorldSize: ranks, Writer: "storagetest 1",
		Time: time.Date(2026, 3, 14, 15, 9, 26, 535897932, time.UTC), Tags: map[string]string{"purpose": "test"},
	}
}

// Saving and Loading are the protocol, step by step, for the tests of formats.
type (
	Saving  = protocol.InProcessSave
	Loading = protocol.InProcessLoad
)

// NewSaving returns a save by that many ranks with default planners and new
// writers. It has not begun.
func NewSaving(p Place, st meta.Storage, ranks int) *Saving {
	s := &Saving{Storage: st}
	for range ranks {
		s.Planners = append(s.Planners, new(plan.DefaultSave))
		s.Writers = append(s.Writers, p.Writer())
	}
	return s
}

// Save saves the states, one for each rank, as a checkpoint at p.
func Save(ctx context.Context, p Place, st meta.Storage, states ...plan.State) error {
	return NewSaving(p, st, len(states)).Run(ctx, states)
}

// NewLoading returns a load by that many ranks with default planners and new
// readers. It has not begun.
func NewLoading(p Place, ranks int) *Loading {
	l := &Loading{}
	for range ranks {
		l.Planners = append(l.Planners, new(plan.DefaultLoad))
		l.Readers = append(l.Readers, p.Reader())
	}
	return l
}

// Load fills the states, one for each rank, from the checkpoint at p.
func Load(ctx context.Context, p Place, states ...plan.State) error {
	return NewLoading(p, len(states)).Run(ctx, states)
}

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

// Begun implements storage.Journal.
func (j *Journal) Begun(context.Context) bool { return j.Len() > 0 }

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
