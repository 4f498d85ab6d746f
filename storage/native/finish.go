package native

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// detailOf returns the location detail of an entry stored under another key.
func detailOf(key string) *meta.Detail { return &meta.Detail{Key: key} }

// Finish writes the index and then the record, which is the commit. What the
// record before named is removed afterwards.
func (w *Writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	entries, err := locate(md, results)
	if err != nil {
		return err
	}
	index, err := encodeIndex(entries)
	if err != nil {
		return err
	}
	rec := w.newRecord(md, entries, results, index)
	if err := checkFiles(ctx, w.store, rec); err != nil {
		return err
	}
	name := indexFileName(rec.SaveID)
	w.noteWritten(name)
	if _, err := blob.WriteAll(ctx, w.store, name, index, &blob.CreateOptions{IfAbsent: true}); err != nil {
		return err
	}
	old, oldErr := readRecord(ctx, w.store)
	if err := w.commit(ctx, rec); err != nil {
		return err
	}
	if oldErr == nil {
		w.warn(removeFiles(ctx, w.store, old, rec))
	}
	w.warn(sweepAbandoned(ctx, w.store, rec, w.opts.SweepAfter))
	return nil
}

// commit replaces the record. Where the store cannot tell whether it did, the
// record that is there now tells.
func (w *Writer) commit(ctx context.Context, rec *record) error {
	b, err := encodeRecord(rec)
	if err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, w.store, recordName, b, nil)
	if err == nil {
		return nil
	}
	now, readErr := readRecord(context.WithoutCancel(ctx), w.store)
	switch {
	case readErr == nil && now.SaveID == rec.SaveID:
		return nil
	case readErr == nil || errors.Is(readErr, storage.ErrNotFound) || errors.Is(readErr, storage.ErrIncomplete):
		return err // surely not committed
	}
	return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
}

func (w *Writer) warn(err error) {
	if err != nil && w.sess.Warn != nil {
		w.sess.Warn(err)
	}
}

func (w *Writer) newRecord(md *meta.Metadata, entries []meta.Entry, results []*storage.WriteResults, index []byte) *record {
	s := w.sess.Storage
	rec := &record{
		SaveID: s.SaveID, Step: s.Step, Time: s.Time, WorldSize: s.WorldSize, Writer: s.Writer, Tags: s.Tags,
		PlannerData: md.PlannerData,
	}
	rec.Totals = totalsOf(entries)
	rec.Files = append(rec.Files, recordFile{
		Name: indexFileName(s.SaveID), Size: int64(len(index)), CRC32C: crc32.Checksum(index, castagnoli),
	})
	for _, r := range results {
		for _, f := range r.Files {
			rec.Files = append(rec.Files, recordFile{Name: f.Name, Size: f.Size, CRC32C: f.CRC32C})
		}
	}
	return rec
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

// locate returns md's entries with the places that the results name. Every
// chunk and value must have one.
func locate(md *meta.Metadata, results []*storage.WriteResults) ([]meta.Entry, error) {
	entries := make([]meta.Entry, len(md.Entries))
	placed := 0
	for i, e := range md.Entries {
		entries[i] = e
		if e.Tensor != nil {
			t := *e.Tensor
			t.Locs = make([]meta.Location, len(t.Chunks))
			entries[i].Tensor = &t
			placed += len(t.Chunks)
		} else {
			b := *e.Bytes
			entries[i].Bytes = &b
			placed++
		}
	}
	out := meta.Metadata{Entries: entries}
	for rank, r := range results {
		for i := range r.Items {
			if err := locateOne(&out, &r.Items[i]); err != nil {
				return nil, fmt.Errorf("result of rank %d: %w", rank, err)
			}
			placed--
		}
	}
	if placed != 0 {
		return nil, fmt.Errorf("%w: %d chunks or values were not written by any rank", meta.ErrInvalid, placed)
	}
	return entries, nil
}

func locateOne(md *meta.Metadata, r *storage.WriteResult) error {
	e, ok := md.Find(r.Index.FQN)
	if !ok {
		return fmt.Errorf("%w: %v is not in the plan", meta.ErrInvalid, r.Index)
	}
	if e.Bytes != nil {
		if e.Bytes.Inline != nil || e.Bytes.Loc.File != "" {
			return fmt.Errorf("%w: %v was written twice", meta.ErrInvalid, r.Index)
		}
		e.Bytes.Inline, e.Bytes.Loc = r.Inline, r.Loc
		return nil
	}
	i, ok := e.Tensor.FindChunk(r.Index.Offset, r.Index.Hint)
	if !ok {
		return fmt.Errorf("%w: %v is not in the plan", meta.ErrInvalid, r.Index)
	}
	if e.Tensor.Locs[i].File != "" {
		return fmt.Errorf("%w: %v was written twice", meta.ErrInvalid, r.Index)
	}
	e.Tensor.Locs[i] = r.Loc
	return nil
}

// checkFiles looks whether every data file that rec names is there, whole, so
// that a record never names what another program has removed.
func checkFiles(ctx context.Context, s blob.Store, rec *record) error {
	have := map[string]int64{}
	for info, err := range s.List(ctx, rec.SaveID) {
		if err != nil {
			return err
		}
		have[info.Name] = info.Size
	}
	for _, f := range rec.Files[1:] { // the first is the index, not written yet
		size, ok := have[f.Name]
		if !ok {
			return fmt.Errorf("%s, which a rank has just written: %w", f.Name, fs.ErrNotExist)
		}
		if size != f.Size {
			return fmt.Errorf("%w: %s has %d bytes, its writer wrote %d", storage.ErrCorrupt, f.Name, size, f.Size)
		}
	}
	return nil
}

// removeFiles removes what old names and rec does not.
func removeFiles(ctx context.Context, s blob.Store, old, rec *record) error {
	keep := map[string]bool{recordName: true}
	for _, f := range rec.Files {
		keep[f.Name] = true
	}
	var errs []error
	for _, f := range old.Files {
		if !keep[f.Name] {
			errs = append(errs, s.Remove(ctx, f.Name))
		}
	}
	return errors.Join(errs...)
}

// sweepAbandoned removes files of our making that rec does not name and nobody
// has touched for so long that no save can be writing them.
func sweepAbandoned(ctx context.Context, s blob.Store, rec *record, age time.Duration) error {
	if age < 0 {
		return nil
	}
	named := map[string]bool{}
	for _, f := range rec.Files {
		named[f.Name] = true
	}
	var errs []error
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if isOurs(info.Name) && !named[info.Name] && time.Since(info.ModTime) > age {
			errs = append(errs, s.Remove(ctx, info.Name))
		}
	}
	return errors.Join(errs...)
}
