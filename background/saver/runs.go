package saver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// trainings are the runs that the trainer saves to and follows.
type trainings struct {
	*scope
	tasks *tasks

	mu       sync.Mutex
	savedTo  map[string]*savedRun // by address; guarded by mu
	followed map[string]*run.Run  // by address; guarded by mu
}

// savedRun is kept from save to save to a run.
type savedRun struct {
	line  run.Line
	chain run.Chain
	bytes *delta.Cache

	// asked is the text of exporting.
	asked     string
	exporting *run.Exporting
}

// exports returns which checkpoints of the run are exported. As long as a message says the same, the policy goes on
// from save to save.
func (r *savedRun) exports(in *InRun, m *run.Member) (*run.Exporting, error) {
	if text := in.Export.String() + "\n" + in.ExportEvery; text != r.asked {
		every, err := run.ParsePolicy(in.ExportEvery)
		if err != nil {
			return nil, err
		}
		x, err := run.NewExporting(in.Export, every, m.Address, m.Settings.Remote)
		if err != nil {
			return nil, err
		}
		r.asked, r.exporting = text, x
	}
	return r.exporting, nil
}

// saved returns the savedRun of an address.
func (s *trainings) saved(address string) *savedRun {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.savedTo[address]
	if r == nil {
		r = &savedRun{bytes: delta.NewCache(0)}
		s.savedTo[address] = r
	}
	return r
}

// refer sets the base of a save if its run has Refer set. It returns f. If the run has Remember
// set, f keeps the saved bytes in memory.
func (s *trainings) refer(v *SaveRequest, store blob.Store, f storage.Format) storage.Format {
	above, name := blob.SplitAddress(v.Store)
	native, ok := f.(native.Format)
	if v.Base != nil || v.Run == nil || !v.Run.Refer || v.Remote != "" || v.Run.Remote != "" || above == "" || name == "" || !ok ||
		blob.Scheme(v.Store) != "file" && !v.Run.Remember {
		return f
	}

	r := s.saved(above)
	if !v.Run.Remember {
		r.bytes.Clear()
		v.Base = r.chain.Next(name)
		return f
	}
	v.Base = r.chain.NextRemembered(name, store)
	native.Segments = r.bytes
	return native
}

// close ends the checks of bases.
func (s *trainings) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.savedTo {
		r.chain.Close()
	}
}

// source opens the store of a load. Versions of a run that the trainer follows share the
// store of the run, because there are many of them, and a client for each would stay.
func (s *trainings) source(address string) (blob.Store, error) {
	if blob.Scheme(address) != "file" {
		above, name := blob.SplitAddress(address)
		s.mu.Lock()
		r := s.followed[above]
		s.mu.Unlock()
		if r != nil {
			return r.Local.StoreOf(name)
		}
	}
	return s.store(address)
}

// runOf opens a run, or returns the one that was opened before: trainers ask again and again.
func (s *trainings) runOf(ctx context.Context, address string) (*run.Run, error) {
	s.mu.Lock()
	r := s.followed[address]
	s.mu.Unlock()
	if r != nil {
		return r, nil
	}
	r, err := run.Open(ctx, address, "")
	if errors.Is(err, blob.ErrAddress) {
		err = fmt.Errorf("%w: %w", storage.ErrOptions, err)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followed[address] = r
	return r, nil
}
