package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// detailOf returns the location detail of an entry stored under another key.
func detailOf(key string) *meta.Detail { return &meta.Detail{Key: key} }

// Finish writes the index and then the record, which is the commit. What the
// record before named is removed afterwards.
func (w *Writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	entries, err := publish.Locate(md, results)
	if err != nil {
		return err
	}
	if err := checkLengths(entries); err != nil {
		return err
	}
	index, err := encodeIndex(entries)
	if err != nil {
		return err
	}
	located := &meta.Metadata{Entries: entries, PlannerData: md.PlannerData, Storage: w.sess.Storage}
	rec := recordOf(located, filesIn(results), index)
	b, err := encodeRecord(rec)
	if err != nil {
		return err
	}
	if err := w.checkFiles(ctx, results); err != nil {
		return err
	}
	name := rec.Files[0].Name
	w.written.Note(name)
	if _, err := blob.WriteAll(ctx, w.store, name, index, &blob.CreateOptions{IfAbsent: true}); err != nil {
		return err
	}
	err = publish.Locked(ctx, w.store, func() error {
		old, oldErr := readRecord(ctx, w.store)
		if oldErr == nil {
			if err := w.mark.Replaces(old.names()); err != nil {
				return err
			}
		}
		if err := w.commit(ctx, rec.SaveID, b); err != nil {
			return err
		}
		w.removeOld(ctx, rec, old, oldErr)
		return nil
	})
	if err == nil {
		w.sweep(ctx, w.opts.SweepAfter)
	}
	if err == nil || errors.Is(err, storage.ErrUncertain) {
		w.release()
	}
	return err
}

// commit replaces the record by the bytes b. If the store reports an error, commit
// reads the record: if it is another one or does not exist, the commit did not take
// place; if it is ours, the commit is visible, but may not survive the loss of power.
func (w *Writer) commit(ctx context.Context, saveID string, b []byte) error {
	_, err := blob.WriteAll(ctx, w.store, recordName, b, &blob.CreateOptions{IfAbsent: w.opts.FailIfExists})
	if err == nil {
		w.written.Keep(true)
		return nil
	}
	now, readErr := readRecord(context.WithoutCancel(ctx), w.store)
	exists := w.opts.FailIfExists && errors.Is(err, fs.ErrExist)
	switch {
	case readErr == nil && now.SaveID == saveID:
		err = fmt.Errorf("the record exists, but may not survive the loss of power: %w", err)
	case readErr == nil || isAnother(readErr) || exists && errors.Is(readErr, storage.ErrCorrupt):
		if exists {
			err = fmt.Errorf("%w: %w", storage.ErrExists, err)
		}
		return err
	}
	w.written.Keep(true)
	return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
}

// isAnother reports whether an error of readRecord says that no record of ours
// is there.
func isAnother(err error) bool {
	return errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrIncomplete) || errors.Is(err, storage.ErrVersion)
}

func (w *Writer) warn(err error) {
	if err != nil && w.sess.Warn != nil {
		w.sess.Warn(err)
	}
}

func filesIn(results []*storage.WriteResults) []storage.File {
	var out []storage.File
	for _, r := range results {
		out = append(out, r.Files...)
	}
	return out
}

func totalsOf(entries []meta.Entry) recordTotals {
	var t recordTotals
	for i := range entries {
		t.Bytes += entries[i].NumBytes()
		if e := &entries[i]; e.Tensor != nil {
			t.Tensors++
			t.Chunks += int64(len(e.Tensor.Chunks))
		} else {
			t.Values++
		}
	}
	return t
}

// checkLengths refuses chunks of another length than their boxes have, or without
// a checksum of each tile: readers would refuse them.
func checkLengths(entries []meta.Entry) error {
	for i := range entries {
		e := &entries[i]
		if e.Tensor == nil {
			continue
		}
		for j, b := range e.Tensor.Chunks {
			g, loc := gridOf(b.Sizes, int64(e.Tensor.DType.Size())), &e.Tensor.Locs[j]
			if loc.Length != g.total || int64(len(loc.Sums)) != g.tiles() {
				return fmt.Errorf("%w: %q at %v: %d bytes were written, the plan has %d", meta.ErrInvalid, e.FQN, b.Offsets, loc.Length, g.total)
			}
		}
	}
	return nil
}

// checkFiles looks whether every data file that the ranks wrote is there, whole,
// so that a record never names what another program has removed.
func (w *Writer) checkFiles(ctx context.Context, results []*storage.WriteResults) error {
	have, err := filesOf(ctx, w.store, w.sess.Storage.SaveID)
	if err != nil {
		return err
	}
	return publish.CheckFiles(have, results)
}
