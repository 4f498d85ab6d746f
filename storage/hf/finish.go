package hf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// Finish makes the checkpoint appear: it commits the single file, or writes the
// index or the commit of the distributed form.
func (w *Writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	entries, err := publish.Locate(md, results)
	if err != nil {
		return err
	}
	if err := w.CheckMetadata(md); err != nil {
		return err
	}
	if w.single() {
		return w.commitHeld(ctx, results)
	}
	if err := w.checkFiles(ctx, results); err != nil {
		return err
	}
	name, text := bases[0]+indexSuffix, []byte(nil)
	if w.form.Distributed {
		name = commitName
		text, err = encodeJSON(commitOf(w.sess.Storage, entries, results))
	} else {
		text, err = encodeIndex(indexOf(entries))
	}
	if err == nil && len(text) > maxIndex {
		err = fmt.Errorf("%s would have %d bytes; readers take at most %d", name, len(text), maxIndex)
	}
	if err != nil {
		return err
	}
	return w.replace(ctx, name, text, results, func(ctx context.Context) error {
		_, err := blob.WriteAll(ctx, w.store, name, text, &blob.CreateOptions{IfAbsent: w.opts.FailIfExists})
		return err
	})
}

// replace replaces any checkpoint at the place by that of the results, whose record
// has that name, and then removes the files that no checkpoint needs. do writes the
// record.
func (w *Writer) replace(ctx context.Context, name string, text []byte, results []*storage.WriteResults, do func(context.Context) error) error {
	err := publish.Locked(ctx, w.store, func() error {
		dir, err := list(ctx, w.store)
		if err != nil {
			return err
		}
		have := dir.records()
		if w.opts.FailIfExists && len(have) > 0 {
			return fmt.Errorf("%w: %s holds %s", storage.ErrExists, w.store, have[0])
		}
		old := w.replaced(ctx, dir)
		if err := w.mark.Replaces(old); err != nil {
			return err
		}
		hidden := have[:slices.IndexFunc(append(have, name), func(r string) bool { return slices.Index(records, r) >= slices.Index(records, name) })]
		if err := w.commit(ctx, name, text, len(hidden) > 0, do); err != nil {
			return err
		}
		if err := w.uncover(ctx, hidden, do); err != nil {
			return err
		}
		w.removeOld(ctx, old, name, results)
		return nil
	})
	if err == nil && w.opts.SweepAfter >= 0 && w.sess.Journal == nil {
		_, sweepErr := publish.Sweep(ctx, w.store, Files(), w.opts.SweepAfter, nil)
		w.warn(sweepErr)
	}
	if err == nil || errors.Is(err, storage.ErrUncertain) {
		w.release()
	}
	return err
}

// indexOf returns the index of entries that have their places.
func indexOf(entries []meta.Entry) *index {
	x := &index{WeightMap: weightMap{}}
	for i := range entries {
		e := &entries[i]
		x.Metadata.TotalSize += e.NumBytes()
		x.WeightMap[e.FQN] = e.Tensor.Locs[0].File
	}
	return x
}

// commitHeld commits the single file.
func (w *Writer) commitHeld(ctx context.Context, results []*storage.WriteResults) error {
	bw := w.takeHeld()
	if bw == nil {
		return fmt.Errorf("%w: Finish before WriteData", plan.ErrProtocol)
	}
	head, err := w.header(&safetensors.Header{}, nil)
	if err != nil {
		return err
	}
	name := w.fileName(1)
	return w.replace(ctx, name, head, results, func(ctx context.Context) error {
		_, err := bw.Commit(ctx)
		return err
	})
}

// commit calls do, which writes the record of that name. hidden means that readers
// do not choose it before other records are removed: until then Abort may remove
// it. If the store reports an error, commit reads the record: if it is not ours,
// the commit did not take place; if it is ours, the commit is visible, but it may
// not survive the loss of power.
func (w *Writer) commit(ctx context.Context, name string, text []byte, hidden bool, do func(context.Context) error) error {
	if hidden {
		w.written.Note(name)
	}
	err := do(ctx)
	if hidden {
		return err
	}
	if err == nil {
		w.written.Keep(true)
		return nil
	}
	if w.opts.FailIfExists && errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %w", storage.ErrExists, err)
	}
	ours, lookErr := w.isOurs(context.WithoutCancel(ctx), name, text)
	if lookErr == nil && !ours {
		return err
	}
	w.written.Keep(true)
	return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
}

// isOurs reports whether the file of that name is there and of this save: an
// index or a commit of that text, or a file of tensors that says so.
func (w *Writer) isOurs(ctx context.Context, name string, text []byte) (bool, error) {
	if !isData(name) {
		b, err := blob.ReadAll(ctx, w.store, name, maxIndex)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil && bytes.Equal(b, text), err
	}
	f, err := readFile(ctx, w.store, name)
	if errors.Is(err, storage.ErrCorrupt) { // gone, or not one of ours
		return false, nil
	}
	if err != nil {
		return false, err
	}
	of, _, err := savesOf([]*dataFile{f})
	return err == nil && len(of) == 1 && of[0].SaveID == w.sess.Storage.SaveID, nil
}

// checkFiles looks whether all files that the ranks wrote are there, whole.
func (w *Writer) checkFiles(ctx context.Context, results []*storage.WriteResults) error {
	dir, err := list(ctx, w.store)
	if err != nil {
		return err
	}
	return publish.CheckFiles(dir.data, results)
}

// Abort removes the files of this save: a rank its own, the coordinator those of
// all ranks that are there, for it may be the only one left.
func (w *Writer) Abort(ctx context.Context) error {
	defer w.release()
	w.dropHeld()
	names, kept := w.written.Take()
	if kept {
		return nil
	}
	var err error
	if w.sess.Coordinator {
		var others []string
		others, err = w.found(ctx)
		names = append(names, others...)
	}
	return errors.Join(err, publish.RemoveAll(ctx, w.store, names))
}

// found returns the files that are there and say that they are of this save.
func (w *Writer) found(ctx context.Context) ([]string, error) {
	dir, err := list(ctx, w.store)
	if err != nil {
		return nil, err
	}
	var out []string
	for name := range dir.data {
		if !numbered.MatchString(name) {
			continue
		}
		ours, err := w.isOurs(ctx, name, nil)
		if err != nil {
			return out, err
		}
		if ours {
			out = append(out, name)
		}
	}
	return out, nil
}
