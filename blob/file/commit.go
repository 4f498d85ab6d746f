package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"

	"github.com/cairn-ckpt/cairn/blob"
)

// Commit syncs the file and the way to its directory, gives it its name and
// syncs the directory. Only where that last sync fails is the object visible
// though Commit failed.
func (w *writer) Commit(ctx context.Context) (blob.Info, error) {
	if !w.end() {
		return blob.Info{}, w.s.fail("commit", w.name, blob.ErrClosed)
	}
	fi, err := w.commit(ctx)
	if err != nil {
		w.discard()
		return blob.Info{}, w.s.fail("commit", w.name, err)
	}
	_ = w.closeFiles() // whatever was written is synced
	w.dir.Close()
	return info(w.name, fi), nil
}

// Abort removes the temporary file, and directories that are empty without it.
func (w *writer) Abort() error {
	if !w.end() {
		return nil
	}
	if err := w.discard(); err != nil {
		return w.s.fail("abort", w.name, err)
	}
	return nil
}

// end reports whether the writer was still open, and ends it.
func (w *writer) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.ended
	w.ended = true
	return !was
}

func (w *writer) commit(ctx context.Context) (fs.FileInfo, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if _, err := w.acct.Size(); err != nil {
		return nil, err
	}
	fi, err := w.finish()
	if err != nil {
		return nil, err
	}
	if err := w.s.settle(path.Dir(w.name)); err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // the sync may have taken long
		return nil, context.Cause(ctx)
	}
	return fi, w.publish()
}

// finish makes the temporary file durable. One sync covers both descriptors, as
// they are of one file. The file stays open, and so locked, until it has its name:
// otherwise a sweep could take it for the file of a dead writer. Windows has no
// such locks and does not rename open files.
func (w *writer) finish() (fs.FileInfo, error) {
	if err := w.s.step("sync"); err != nil {
		return nil, err
	}
	if !w.s.opts.NoSync {
		if err := w.f.Sync(); err != nil {
			return nil, err
		}
	}
	fi, err := w.f.Stat()
	if err != nil {
		return nil, err
	}
	if runtime.GOOS == "windows" {
		err = w.closeFiles()
	}
	return fi, err
}

// publish gives the temporary file its name, durably.
func (w *writer) publish() error {
	d, err := w.dir.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := w.s.step("publish"); err != nil {
		return err
	}
	if err := w.rename(d); err != nil {
		return err
	}
	w.tmp = ""
	if w.s.opts.NoSync {
		return nil
	}
	if err := w.s.step("syncdir " + w.s.path(path.Dir(w.name))); err != nil {
		return err
	}
	return syncDir(d)
}

// rename moves the temporary file to its place. An empty directory there is
// the rest of objects that are gone and makes room.
func (w *writer) rename(d *os.File) error {
	base := path.Base(w.name)
	err := w.renameOnce(d, base)
	if err == nil {
		return nil
	}
	if fi, serr := w.dir.Lstat(base); serr != nil || !fi.IsDir() {
		return err
	}
	if rerr := w.dir.Remove(base); rerr != nil {
		return fmt.Errorf("%w: it is a directory", blob.ErrNested)
	}
	return w.renameOnce(d, base)
}

func (w *writer) renameOnce(d *os.File, base string) error {
	if !w.opts.IfAbsent {
		return w.dir.Rename(w.tmp, base)
	}
	err := renameNoReplace(d, w.tmp, base)
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return w.linkOnce(base)
}

// linkOnce is renameOnce with IfAbsent for systems that can only link: the
// object is there with the link, and what then fails no longer matters.
func (w *writer) linkOnce(base string) error {
	if err := w.dir.Link(w.tmp, base); err != nil {
		return err
	}
	w.dir.Remove(w.tmp)
	return nil
}

// discard frees what an unsuccessful writer took.
func (w *writer) discard() error {
	err := w.closeFiles()
	if w.tmp != "" {
		err = errors.Join(err, w.dir.Remove(w.tmp))
	}
	w.dir.Close()
	w.tidy()
	return err
}

// tidy removes the directories that were made for the object.
func (w *writer) tidy() {
	if top, err := os.OpenRoot(w.s.dir); err == nil {
		w.s.prune(top, path.Dir(w.name))
		top.Close()
	}
}

// closeFiles closes the descriptors that are still open.
func (w *writer) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{w.direct, w.f} {
		if f == nil {
			continue
		}
		if err := f.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
