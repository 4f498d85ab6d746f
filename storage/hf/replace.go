package hf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// The records that make files a checkpoint, in the order in which a reader looks
// for them: the single file, the index, and the commit of the distributed form.
var records = []string{bases[0] + suffix, bases[0] + indexSuffix, commitName}

// has reports whether a file of that name is in the folder.
func (f *folder) has(name string) bool {
	for _, m := range []map[string]int64{f.data, f.index, f.other} {
		if _, ok := m[name]; ok {
			return true
		}
	}
	return false
}

// records returns the records that are in the folder, the one that a reader
// chooses first.
func (f *folder) records() []string {
	return slices.DeleteFunc(slices.Clone(records), func(name string) bool { return !f.has(name) })
}

// checkPlace returns an error that wraps storage.ErrExists if the folder holds a
// checkpoint that must stay: any if FailIfExists is set, and always one under
// names that this writer does not use, because it could not be replaced.
func (w *Writer) checkPlace(ctx context.Context) error {
	dir, err := list(ctx, w.store)
	if err != nil {
		return err
	}
	have := dir.records()
	if name := dir.stranger(len(have) > 0); name != "" {
		return fmt.Errorf("%w: %s holds %s, which a new checkpoint would not replace", storage.ErrExists, w.store, name)
	}
	if !w.opts.FailIfExists {
		return nil
	}
	if len(have) > 0 {
		return fmt.Errorf("%w: %s holds %s", storage.ErrExists, w.store, have[0])
	}
	files, err := current(ctx, w.store)
	switch {
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrIncomplete), err == nil && len(files) == 0:
		return nil
	case err == nil, errors.Is(err, storage.ErrCorrupt):
		return fmt.Errorf("%w: %s holds safetensors", storage.ErrExists, w.store)
	}
	return err
}

// stranger returns the name of a file that a reader could choose instead of the new
// checkpoint, or that is a checkpoint under a name that cairn does not use. If the
// folder has a record of ours, other files of tensors are not a checkpoint.
func (f *folder) stranger(recorded bool) string {
	for name := range f.index {
		if name != records[1] {
			return name
		}
	}
	for name := range f.data {
		for _, base := range bases[1:] {
			if name == base+suffix {
				return name
			}
		}
		if !recorded && !numbered.MatchString(name) {
			return name
		}
	}
	return ""
}

// infix returns the part of the names of this rank's files that tells saves apart:
// the save's id and a dash. The single file needs none. A save with a journal,
// which no other save disturbs, uses the plain names of the format unless there is a
// checkpoint. infix removes the files of an earlier attempt in this save, unless a
// journal lists them.
func (w *Writer) infix(ctx context.Context) (string, error) {
	if w.single() {
		return "", nil
	}
	if w.sess.Journal == nil {
		if err := w.written.Remove(ctx, w.store); err != nil {
			return "", err
		}
	} else if dir, err := list(ctx, w.store); err != nil || len(dir.records()) == 0 {
		return "", err
	}
	return w.sess.Storage.SaveID + "-", publish.CheckSaveID(w.sess.Storage.SaveID)
}

// uncover removes the records that a reader would choose before ours, which is
// already written. The removal is the commit. uncover removes the record that the
// reader chooses first last, so that at any time the reader finds the old checkpoint
// or the new one. again writes our record once more, which makes the removal durable.
func (w *Writer) uncover(ctx context.Context, before []string, again func(context.Context) error) error {
	for i, name := range slices.Backward(before) {
		err := w.store.Remove(ctx, name)
		if err == nil {
			continue
		}
		if _, statErr := w.store.Stat(context.WithoutCancel(ctx), name); statErr == nil {
			return err // Abort removes our record
		}
		if i == 0 {
			w.written.Keep(true)
			return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
		}
		return err
	}
	w.written.Keep(true)
	if len(before) == 0 {
		return nil
	}
	if err := again(ctx); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
	}
	return nil
}

// ofPyTorch are the names that PyTorch gives to the files of the distributed form,
// which has no record.
var ofPyTorch = regexp.MustCompile(`^shard-\d{5,}-model-\d{5,}-of-\d{5,}\.safetensors$`)

// replaced returns the files of the checkpoints that are in the folder, records
// first.
func (w *Writer) replaced(ctx context.Context, dir *folder) []string {
	out := dir.records()
	var data []string
	for _, name := range out {
		switch name {
		case commitName:
			if c, err := readCommitFile(ctx, w.store); err == nil {
				data = slices.AppendSeq(data, maps.Keys(c.Files))
			}
		case records[1]:
			if m, err := readIndex(ctx, w.store, name); err == nil {
				data = slices.AppendSeq(data, maps.Values(m))
			}
		}
	}
	if !dir.has(records[0]) && !dir.has(records[1]) {
		for name := range dir.data {
			if ofPyTorch.MatchString(name) {
				data = append(data, name)
			}
		}
	}
	slices.Sort(data)
	for _, name := range slices.Compact(data) {
		if numbered.MatchString(name) && isData(name) { // the others are not for us to remove
			out = append(out, name)
		}
	}
	return out
}

// removeOld removes the files of the checkpoints that were replaced. Errors are only
// warnings, because the new checkpoint is complete.
func (w *Writer) removeOld(ctx context.Context, old []string, record string, results []*storage.WriteResults) {
	named := map[string]bool{record: true}
	for _, r := range results {
		for _, f := range r.Files {
			named[f.Name] = true
		}
	}
	for _, name := range old {
		if !named[name] {
			w.warn(w.store.Remove(ctx, name))
		}
	}
}

// begin removes the files of saves that are over, and marks this save as under
// way. With a journal, no other save uses the place.
func (w *Writer) begin(ctx context.Context) error {
	if w.sess.Journal != nil || w.mark != nil {
		return nil
	}
	if w.opts.SweepAfter >= 0 {
		_, err := publish.Sweep(ctx, w.store, Files(), -1, nil)
		w.warn(err)
	}
	var err error
	w.mark, err = publish.NewMark(ctx, w.store, Format{}.Name(), w.sess.Storage.SaveID)
	return err
}

// release ends the mark that says that a save is under way.
func (w *Writer) release() {
	w.warn(w.mark.Release())
	w.mark = nil
}

// Files tells which files at a place are of this format, and written by cairn.
func Files() publish.Files {
	return publish.Files{Format: Format{}.Name(), Data: ourFiles, Current: current}
}

// ourFiles returns the records and the numbered data files that cairn wrote. The
// records come first, because they must be removed before the files that they
// name. The header of a data file tells its save. A record is of the save of the
// files that it names.
func ourFiles(ctx context.Context, s blob.Store) ([]publish.Leftover, error) {
	names := map[string][]string{} // by record
	c, err := readCommitFile(ctx, s)
	if err != nil && !isGoneOrBad(err) {
		return nil, err
	}
	if err == nil {
		names[commitName] = slices.Collect(maps.Keys(c.Files))
	}
	m, err := readIndex(ctx, s, records[1])
	if err != nil && !isGoneOrBad(err) {
		return nil, err
	}
	names[records[1]] = slices.Collect(maps.Values(m))
	all, err := publish.List(ctx, s, "", func(name string) (string, bool) {
		return "", name == commitName || name == records[1] || isData(name) && numbered.MatchString(name)
	})
	var recs, data []publish.Leftover
	saves := map[string]string{} // of the data files
	for _, l := range all {
		if !isData(l.Name) {
			recs = append(recs, l)
		} else if of := saveOf(ctx, s, l.Name); of != nil {
			l.SaveID = of.SaveID
			saves[l.Name] = of.SaveID
			data = append(data, l)
		}
	}
	recs = slices.DeleteFunc(recs, func(l publish.Leftover) bool {
		return l.Name == records[1] && !slices.ContainsFunc(names[l.Name], func(f string) bool { return saves[f] != "" })
	})
	for i := range recs {
		for _, f := range names[recs[i].Name] {
			recs[i].SaveID = cmp.Or(saves[f], recs[i].SaveID)
		}
	}
	return append(recs, data...), err
}

// isGoneOrBad reports whether err says that a file is not there or damaged.
func isGoneOrBad(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, storage.ErrCorrupt)
}

// saveOf returns what a file says about its save, or nil if it does not tell.
func saveOf(ctx context.Context, s blob.Store, name string) *saved {
	f, err := readFile(ctx, s, name)
	if err != nil {
		return nil
	}
	of, _, err := savesOf([]*dataFile{f})
	if err != nil || len(of) == 0 {
		return nil
	}
	return &of[0]
}

// current returns the files that a reader takes for the checkpoint, and those of
// indexes with other names. Files that wait for a commit are not among them.
func current(ctx context.Context, s blob.Store) ([]string, error) {
	dir, err := list(ctx, s)
	if err != nil {
		return nil, err
	}
	index, names, err := dir.choose("")
	if err != nil {
		return nil, err
	}
	var out []string
	for name := range dir.index {
		if name != index && name == records[1] { // hidden by another record
			continue
		}
		m, err := readIndex(ctx, s, name)
		if err != nil {
			return nil, err
		}
		out = slices.AppendSeq(append(out, name), maps.Values(m))
	}
	if index != "" {
		return out, nil
	}
	if _, ok := dir.other[commitName]; !ok || len(names) > 0 && !sharded.MatchString(names[0]) {
		return append(out, slices.DeleteFunc(names, func(name string) bool {
			of := saveOf(ctx, s, name)
			return of != nil && of.Commit != ""
		})...), nil
	}
	c, err := readCommitFile(ctx, s)
	if err != nil {
		return nil, err
	}
	if c.lists() {
		names = slices.Collect(maps.Keys(c.Files))
	}
	return append(append(out, commitName), names...), nil
}

func (w *Writer) warn(err error) {
	if err != nil && w.sess.Warn != nil {
		w.sess.Warn(err)
	}
}
