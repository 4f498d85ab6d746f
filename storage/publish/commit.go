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
// consists of the results' files, and then removes what no checkpoint needs.
// After an error nothing has appeared, unless it wraps storage.ErrUncertain.
func (p *Place) Commit(ctx context.Context, record []byte, results []*storage.WriteResults) error {
	named, err := p.checkFiles(ctx, results)
	if err != nil {
		return err
	}
	if p.opts.RankLocal {
		return p.replace(ctx, record)
	}
	err = Locked(ctx, p.store, func() error {
		old, oldErr := p.f.Read(ctx, p.store)
		if oldErr == nil {
			if err := p.mark.Replaces(old.Files); err != nil {
				return err
			}
		}
		if err := p.replace(ctx, record); err != nil {
			return err
		}
		p.removeOld(ctx, named, old, oldErr)
		return nil
	})
	if err == nil && p.opts.SweepAfter >= 0 {
		p.sweep(ctx, p.opts.SweepAfter)
	}
	if err == nil || errors.Is(err, storage.ErrUncertain) {
		p.release()
	}
	return err
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

// replace replaces the record. If the store reports an error, replace reads the
// record: if it is another one or does not exist, the commit did not take place; if
// it is ours, the commit is visible, but may not survive the loss of power.
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
		err = fmt.Errorf("%s exists, but may not survive the loss of power: %w", name, err)
	case readErr == nil || errors.Is(readErr, fs.ErrNotExist) || errors.Is(readErr, blob.ErrTooLarge):
		if ifAbsent && errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: %w", storage.ErrExists, err)
		}
		return err
	}
	p.written.Keep(true)
	return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
}

// removeOld removes the files of the checkpoint that was replaced. Errors are only
// warnings, because the new checkpoint is complete.
func (p *Place) removeOld(ctx context.Context, named map[string]bool, old *Existing, oldErr error) {
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
}

// sweep removes the files of saves that are over. Errors are only warnings.
func (p *Place) sweep(ctx context.Context, olderThan time.Duration) {
	if p.sess.Journal != nil || p.opts.SweepAfter < 0 {
		return
	}
	_, err := Sweep(ctx, p.store, p.f.Files(), olderThan, nil)
	p.warn(err)
}

// SweepTemp removes the temporary files of writers from the root of store: of dead
// writers of this host at once, of unknown writers if the files are at least
// olderThan old. A negative age removes nothing.
func SweepTemp(ctx context.Context, store blob.Store, olderThan time.Duration) error {
	s, ok := blob.As[blob.Sweeper](store)
	if !ok || olderThan < 0 {
		return nil
	}
	_, err := s.SweepTemp(ctx, "", olderThan)
	return err
}
