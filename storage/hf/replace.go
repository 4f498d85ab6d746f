package hf

import (
	"context"
	"errors"
	"fmt"
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
	_, err = openSource(ctx, w.store, (*Options)(nil).withDefaults())
	switch {
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrIncomplete):
		return nil
	case err == nil, errors.Is(err, storage.ErrCorrupt):
		return fmt.Errorf("%w: %s holds safetensors", storage.ErrExists, w.store)
	}
	return err
}

// stranger returns the name of a file that a reader could choose in place of a
// new checkpoint, or that is a checkpoint under a name of its own. Beside a
// record of ours other files of tensors are not the checkpoint.
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

// plain are the names of files without a save's id, of an index and of the
// distributed form, with the number of the rank from 1.
var plain = regexp.MustCompile(`^(?:model|shard-(\d{5,})-model)-\d{5,}-of-\d{5,}\.safetensors$`)

// infix returns what must be in the names of this rank's files: the save's id, or
// nothing if the plain names are free. Every rank finds out on its own. A save
// that can be continued must find its own files again, so only those of a
// checkpoint count then. It removes what an earlier attempt to write in this save
// left.
func (w *Writer) infix(ctx context.Context) (string, error) {
	if w.single() {
		return "", nil
	}
	if w.sess.Journal == nil {
		if err := w.written.Remove(ctx, w.store); err != nil {
			return "", err
		}
	}
	dir, err := list(ctx, w.store)
	if err != nil {
		return "", err
	}
	taken := len(dir.records()) > 0
	for name := range dir.data {
		m := plain.FindStringSubmatch(name)
		ours := m != nil && (m[1] == "" || m[1] == fmt.Sprintf("%05d", w.sess.Rank+1))
		taken = taken || ours && w.sess.Journal == nil
	}
	if !taken {
		return "", nil
	}
	return w.sess.Storage.SaveID + "-", publish.CheckSaveID(w.sess.Storage.SaveID)
}

// uncover removes the records that a reader would choose before ours, which is
// there already: that is the commit then. The one that the reader chooses goes
// last, so that the old checkpoint or the new one is there at any time. again
// writes our record once more, which makes the removal durable.
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
	if !dir.has(records[0]) && !dir.has(records[1]) { // the distributed form, also of PyTorch
		for name := range dir.data {
			if sharded.MatchString(name) && plain.MatchString(name) {
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

// removeOld removes the files of the checkpoints that were replaced. It only
// warns, since the new checkpoint is complete.
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

// begin marks the save as under way. With a journal, the place is this save's
// alone.
func (w *Writer) begin(ctx context.Context) error {
	if w.sess.Journal != nil || w.mark != nil {
		return nil
	}
	var err error
	w.mark, err = publish.NewMark(ctx, w.store, Format{}.Name(), w.sess.Storage.SaveID, nil)
	return err
}

// release ends the mark that says that a save is under way.
func (w *Writer) release() {
	w.warn(w.mark.Release())
	w.mark = nil
}

// Files tells which files at a place are of this format, and written by cairn.
func Files() publish.Files {
	return publish.Files{
		Format: Format{}.Name(),
		Data: func(ctx context.Context, s blob.Store) ([]publish.Leftover, error) {
			all, err := publish.List(ctx, s, "", func(name string) (string, bool) {
				return "", isData(name) && numbered.MatchString(name)
			})
			var out []publish.Leftover
			for _, l := range all {
				if f, err := readFile(ctx, s, l.Name); err == nil {
					if of, _, err := savesOf([]*dataFile{f}); err == nil && len(of) == 1 {
						l.SaveID = of[0].SaveID
						out = append(out, l)
					}
				}
			}
			return out, err
		},
		Current: func(ctx context.Context, s blob.Store) ([]string, error) {
			src, err := openSource(ctx, s, (*Options)(nil).withDefaults())
			if err != nil {
				return nil, err
			}
			var out []string
			for _, f := range src.Files {
				out = append(out, f.Name)
			}
			for _, p := range src.Problems { // damaged files are of the checkpoint too
				out = append(out, p.File)
			}
			return out, nil
		},
	}
}

func (w *Writer) warn(err error) {
	if err != nil && w.sess.Warn != nil {
		w.sess.Warn(err)
	}
}
