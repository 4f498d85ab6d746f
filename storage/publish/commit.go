package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Commit makes record the record, in one atomic step, of the checkpoint that
// consists of the results' files, and then removes what nobody needs any more.
// After an error nothing has appeared, unless it wraps storage.ErrUncertain.
func (p *Place) Commit(ctx context.Context, record []byte, results []*storage.WriteResults) error {
	named, err := p.checkFiles(ctx, results)
	if err != nil {
		return err
	}
	var old *Existing
	var oldErr error
	if !p.opts.RankLocal {
		old, oldErr = p.f.Read(ctx, p.store)
	}
	if err := p.replace(ctx, record); err != nil {
		return err
	}
	if p.opts.RankLocal {
		return nil
	}
	p.sweep(ctx, named, old, oldErr)
	return nil
}

// checkFiles looks whether every file that the ranks wrote is there, whole. It
// returns the names of those files, and the record's.
func (p *Place) checkFiles(ctx context.Context, results []*storage.WriteResults) (map[string]bool, error) {
	have, err := p.dataFiles(ctx)
	if err != nil {
		return nil, err
	}
	if err := CheckFiles(have, results); err != nil {
		return nil, err
	}
	named := map[string]bool{p.f.Record: true}
	for _, r := range results {
		for _, f := range r.Files {
			named[f.Name] = true
		}
	}
	return named, nil
}

// replace replaces the record. Where the store reports an error, what is there
// afterwards tells whether the commit took place: if it is another record, or
// none, it did not; if it is ours, it is visible, but nobody knows whether it
// would survive the loss of power.
func (p *Place) replace(ctx context.Context, record []byte) error {
	name, ifAbsent := p.record()
	_, err := blob.WriteAll(ctx, p.store, name, record, &blob.CreateOptions{IfAbsent: ifAbsent})
	if err == nil {
		p.written.Keep(true)
		return nil
	}
	now, readErr := blob.ReadAll(context.WithoutCancel(ctx), p.store, name, int64(len(record)))
	switch {
	case readErr == nil && bytes.Equal(now, record):
		err = fmt.Errorf("%s is there, but: %w", name, err)
	case readErr == nil || errors.Is(readErr, fs.ErrNotExist) || errors.Is(readErr, blob.ErrTooLarge):
		if ifAbsent && errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: %w", storage.ErrExists, err)
		}
		return err
	}
	p.written.Keep(true)
	return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
}

// sweep removes what no record names any more: the files of the checkpoint
// before, and what dead saves left behind. Nothing of it can harm the checkpoint,
// so it only warns.
func (p *Place) sweep(ctx context.Context, named map[string]bool, old *Existing, oldErr error) {
	switch {
	case oldErr == nil:
		for _, name := range old.Files {
			if !named[name] {
				p.warn(p.store.Remove(ctx, name))
			}
		}
	case !errors.Is(oldErr, storage.ErrNotFound) && !errors.Is(oldErr, storage.ErrIncomplete):
		p.warn(oldErr)
	}
	if p.opts.SweepAfter < 0 {
		return
	}
	p.warn(p.sweepAbandoned(ctx, named))
	p.warn(SweepTemp(ctx, p.store, p.opts.SweepAfter))
}

// SweepTemp removes temporary files that dead writers left in store at least
// olderThan ago; a negative age means never. A store below a prefix is left
// alone: the sweep would walk through everything beside the checkpoint.
func SweepTemp(ctx context.Context, store blob.Store, olderThan time.Duration) error {
	s, ok := store.(blob.Sweeper)
	if !ok || olderThan < 0 {
		return nil
	}
	_, err := s.SweepTemp(ctx, olderThan)
	return err
}

// sweepAbandoned removes data files that are not named and that nobody has
// touched for so long that no save can be writing them.
func (p *Place) sweepAbandoned(ctx context.Context, named map[string]bool) error {
	var errs []error
	for info, err := range p.store.List(ctx, p.f.Prefix) {
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		_, _, ours := p.f.Parse(info.Name)
		if ours && !named[info.Name] && time.Since(info.ModTime) > p.opts.SweepAfter {
			errs = append(errs, p.store.Remove(ctx, info.Name))
		}
	}
	return errors.Join(errs...)
}
