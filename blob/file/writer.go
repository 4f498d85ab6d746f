package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// directSize is the least size of an object in pieces that is written past the page
// cache, and of other writes that are sent to the disk at once. For less, the extra
// system calls cost more than they save.
const directSize = 1 << 20

// page is the unit of the page cache. Direct writes have whole pages, so that no page
// has bytes that were written in both ways.
var page = int64(max(os.Getpagesize(), blob.Align))

type writer struct {
	s    *Store
	name string
	opts blob.CreateOptions
	acct *blob.Extents

	dir    *os.Root // the directory of the object
	tmp    string   // the temporary file in dir
	f      *os.File // tmp, through the page cache
	direct *os.File // tmp, past it; nil: not wanted or not possible
	// allocated is how many bytes of the file are there before the first write, see takeSpare.
	allocated int64

	noDirect atomic.Bool // the system refused a direct write

	mu    sync.Mutex
	ended bool // guarded by mu
}

// openTries bounds how often Create tries again because another process has removed
// the directory, with the last object in it, at that moment.
const openTries = 1000

// open makes the directory and the temporary file. It tries again if another
// process removes the directory because it is empty, or sweeps the file before it
// is locked.
func (w *writer) open(ctx context.Context) error {
	var err error
	for range openTries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err = w.openOnce(); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

func (w *writer) openOnce() error {
	dir, err := w.s.makeDir(path.Dir(w.name))
	if err != nil {
		return err
	}
	if err := w.s.step("temp"); err != nil {
		dir.Close()
		return err
	}
	w.tmp = tempName(dir)
	f := w.takeSpare(dir)
	if f == nil {
		w.allocated = 0
		f, err = dir.OpenFile(w.tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	}
	if err != nil {
		dir.Close()
		return err
	}
	ours, err := lockTemp(dir, f, w.tmp)
	if !ours || err != nil {
		f.Close()
		_ = dir.Remove(w.tmp) // a sweep has removed it, or another process has only looked at it
		dir.Close()
		return cmp.Or(err, fs.ErrNotExist)
	}
	w.dir, w.f = dir, f
	return nil
}

// prepare reserves the blocks of the temporary file and opens it for direct
// writes.
func (w *writer) prepare(ctx context.Context) error {
	if w.opts.Size > w.allocated {
		err := w.reserve()
		if blob.IsFull(err) && w.makeRoom(ctx) {
			err = w.reserve()
		}
		if err != nil {
			return err
		}
	}
	if w.opts.Piece > 0 && w.opts.Size >= directSize && !w.s.opts.NoDirect {
		w.direct = openDirect(w.dir, w.tmp)
	}
	return nil
}

func (w *writer) reserve() error {
	if err := w.s.step("reserve"); err != nil {
		return err
	}
	return reserve(w.f, w.allocated, w.opts.Size-w.allocated)
}

func (w *writer) WriteAt(ctx context.Context, p []byte, off int64) error {
	err := w.begin(off, len(p))
	if err == nil {
		err = w.write(ctx, p, off)
		w.acct.End(off, len(p), err == nil)
	}
	if errors.Is(err, fs.ErrClosed) {
		err = blob.ErrClosed // Abort was called meanwhile
	}
	if err != nil {
		return w.s.fail("write", w.name, err)
	}
	return nil
}

// begin records the beginning of a write, unless the writer has ended. The lock makes
// that one step, so Commit finds every write that is under way.
func (w *writer) begin(off int64, n int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return blob.ErrClosed
	}
	return w.acct.Begin(off, n)
}

func (w *writer) write(ctx context.Context, p []byte, off int64) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(len(p), slice)
		err := w.writeSlice(p[:n], off)
		if blob.IsFull(err) && w.makeRoom(ctx) {
			err = w.writeSlice(p[:n], off)
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
		if len(p) == 0 {
			return nil
		}
	}
}

// writeSlice writes as much as possible past the page cache and the rest through it.
func (w *writer) writeSlice(p []byte, off int64) error {
	n, err := w.writeDirect(p, off)
	if err != nil || n == int64(len(p)) {
		return err
	}
	if err := w.s.step("write"); err != nil {
		return err
	}
	if _, err = w.f.WriteAt(p[n:], off+n); err != nil {
		return err
	}
	if rest := int64(len(p)) - n; rest >= directSize && !w.s.opts.NoSync {
		writeBack(w.f, off+n, rest) // so that little is left for the sync
	}
	return nil
}

// writeDirect writes the whole pages of p past the page cache, if that is possible,
// and returns their number of bytes. If the system refuses, it returns 0 and is not
// called again: the caller writes these bytes once more through the cache.
func (w *writer) writeDirect(p []byte, off int64) (int64, error) {
	n := int64(len(p)) &^ (page - 1)
	if n == 0 || w.direct == nil || w.noDirect.Load() || off%page != 0 || !blob.Aligned(p) {
		return 0, nil
	}
	err := w.s.step("direct")
	if err == nil {
		_, err = w.direct.WriteAt(p[:n], off)
	}
	if refused(err) {
		w.noDirect.Store(true)
		return 0, nil
	}
	return n, err
}

// Commit syncs the file and the directories above it, renames the file and syncs its
// directory. If only this last sync fails, the object is visible although Commit
// returns an error.
func (w *writer) Commit(ctx context.Context) (blob.Info, error) {
	if !w.end() {
		return blob.Info{}, w.s.fail("commit", w.name, blob.ErrClosed)
	}
	fi, err := w.commit(ctx)
	if err != nil {
		w.discard()
		return blob.Info{}, w.s.fail("commit", w.name, err)
	}
	_ = w.closeFiles() // all bytes are synced
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

// end ends the writer and reports whether it was open.
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
	if w.opts.IfVersion == "" {
		return w.replace(fi)
	}
	err = w.s.exclusively(ctx, w.name, func() error {
		if err := w.s.checkVersion(w.name, w.opts.IfVersion); err != nil {
			return err
		}
		fi, err = w.replace(fi)
		return err
	})
	return fi, err
}

// replace gives the temporary file its name and returns its description.
func (w *writer) replace(fi fs.FileInfo) (fs.FileInfo, error) {
	fi, err := w.distinguish(fi)
	if err != nil {
		return nil, err
	}
	return fi, w.publish()
}

// finish makes the temporary file durable. One sync is enough for both descriptors of
// the file. The file stays open and locked until it is renamed: otherwise a sweep could
// remove it as the file of a dead writer. Windows has no such locks and does not rename
// open files.
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

// rename gives the temporary file the name of the object. It removes an empty directory
// of that name, which is left of objects that were removed.
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
		defer keepLarge(w.dir, base).release()
		return w.dir.Rename(w.tmp, base)
	}
	err := renameNoReplace(d, w.tmp, base)
	if errors.Is(err, errors.ErrUnsupported) {
		return w.linkOnce(base)
	}
	return err
}

// linkOnce is renameOnce with IfAbsent for systems that can only link. The link makes
// the object visible, so an error after that does not matter.
func (w *writer) linkOnce(base string) error {
	if err := w.dir.Link(w.tmp, base); err != nil {
		return err
	}
	w.dir.Remove(w.tmp)
	return nil
}

// discard frees the resources of a writer that did not succeed.
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

// distinguish gives the new file another version than the object that it replaces, if
// they have the same one: the clock of the file system may not have moved on. It returns
// the description of the new file.
func (w *writer) distinguish(fi fs.FileInfo) (fs.FileInfo, error) {
	old, err := os.Stat(w.s.path(w.name))
	if err != nil {
		return fi, nil // there is no old file, or rename returns the error
	}

	for later := time.Millisecond; version(old) == version(fi) && later < time.Minute; later *= 10 {
		at := old.ModTime().Add(later)
		if err := w.dir.Chtimes(w.tmp, at, at); err != nil {
			return nil, err
		}
		if fi, err = w.dir.Stat(w.tmp); err != nil {
			return nil, err
		}
	}

	return fi, nil
}

// makeRoom frees memory or disk space that is only kept for later, and reports whether there was any.
func (w *writer) makeRoom(ctx context.Context) bool {
	dropped := w.s.dropSpares()
	return freeing.flush(ctx) || dropped
}
