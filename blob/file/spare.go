package file

import (
	"cmp"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
)

// With Options.InMemory, new objects use the memory of removed ones. To write to pages that are
// there takes a third of the time of new pages.
//
// A spare file is the file of a removed object. It is in the folder spareFolder of the store and has
// a random name. Remove renames the object's file to it, and Create renames it to a temporary
// file. So a spare file is never a part of an object, wherever a process ends. The folder is the
// switch: without it, removed objects are freed at once.
//
// A reader may still have the removed object open, in any process of this host. Create uses a
// spare file only if it has no other descriptor and no mapping, see onlyOpen and openObject, and
// frees it otherwise. Bytes that the kernel is still sending over a connection have no
// descriptor: the receiver may get bytes of the new object. It compares them with a checksum.

// spareFolder has the spare files of a store. It is the name of no object.
const spareFolder = blob.Reserved + "spare"

// leastSpare is the size of the smallest file that is kept.
const leastSpare = 64 << 10

// spareTries bounds how many spare files a writer looks at.
const spareTries = 64

// reuses reports whether the store uses the memory of removed objects. Only Linux tells whether
// a file is open elsewhere.
func (s *Store) reuses() bool { return s.opts.InMemory && runtime.GOOS == "linux" }

// Resident implements [blob.Resident].
func (s *Store) Resident() bool { return s.opts.InMemory }

// KeepSpares makes the store keep the memory of removed objects for new ones, until DropSpares:
// at most as many bytes as the largest folder of the store has. It has an effect on all processes
// of this host, and only with Options.InMemory. It has none if the system does not tell whether a
// file is open elsewhere.
func (s *Store) KeepSpares() error {
	if !s.reuses() {
		return nil
	}
	top, err := s.makeTop()
	if err != nil {
		return err
	}
	defer top.Close()
	if _, err := top.Lstat(spareFolder); err == nil {
		return nil
	}
	if ok, err := tryOnlyOpen(top); !ok {
		return err
	}
	if err := top.Mkdir(spareFolder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// tryOnlyOpen reports whether onlyOpen works in root.
func tryOnlyOpen(root *os.Root) (bool, error) {
	name := tempName(root)
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	defer root.Remove(name)
	defer f.Close()
	return onlyOpen(f), nil
}

// DropSpares frees the memory that KeepSpares kept, and ends its effect.
func (s *Store) DropSpares() error {
	top, err := os.OpenRoot(s.dir)
	if err == nil {
		err = top.RemoveAll(spareFolder)
		top.Close()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// SpareBytes returns how many bytes the spare files have.
func (s *Store) SpareBytes() (n int64) {
	top, err := os.OpenRoot(s.dir)
	if err != nil {
		return 0
	}
	defer top.Close()
	for _, f := range spares(top) {
		n += f.Size()
	}
	return n
}

// spares returns the spare files, the smallest first.
func spares(top *os.Root) (out []fs.FileInfo) {
	entries, _ := fs.ReadDir(top.FS(), spareFolder) // without the folder there are none
	for _, e := range entries {
		if fi, err := e.Info(); err == nil && fi.Mode().IsRegular() {
			out = append(out, fi)
		}
	}
	slices.SortFunc(out, func(a, b fs.FileInfo) int { return cmp.Compare(a.Size(), b.Size()) })
	return out
}

// openObject opens the file of an object. If the object is removed meanwhile, the file may belong
// to a writer by the time it is open. Then openObject looks at the name again.
func (s *Store) openObject(name string) (f *os.File, fi fs.FileInfo, err error) {
	for range openTries {
		f, fi, err = openRegular(s.path(name))
		if err != nil || !s.reuses() {
			return f, fi, err
		}
		// If the file has its name now, writers will find it open.
		if there, err := os.Stat(s.path(name)); err == nil && os.SameFile(fi, there) {
			return f, fi, nil
		}
		f.Close()
	}
	return nil, nil, fs.ErrNotExist
}

// setAside removes an object and keeps its file, if that is wanted, and reports whether it did.
func (s *Store) setAside(top *os.Root, name string, fi fs.FileInfo) bool {
	if !s.reuses() || !fi.Mode().IsRegular() || fi.Size() < leastSpare || s.step("spare") != nil {
		return false
	}
	if top.Rename(name, path.Join(spareFolder, rand.Text())) != nil {
		return false // the folder is not there
	}
	trimSpares(top)
	return true
}

// trimSpares frees spare files, the smallest first, until they have no more bytes than the largest
// folder of the store.
func trimSpares(top *os.Root) {
	files, room := spares(top), largestFolder(top)
	for _, f := range files {
		room -= f.Size()
	}
	for ; room < 0 && len(files) > 0; files = files[1:] {
		_ = top.Remove(path.Join(spareFolder, files[0].Name())) // a writer may have taken it
		room += files[0].Size()
	}
}

// largestFolder returns the bytes in the largest folder at the top of the store, without the
// spare files.
func largestFolder(top *os.Root) (most int64) {
	folders := map[string]int64{}
	_ = fs.WalkDir(top.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile
		}
		if d.IsDir() && name == spareFolder {
			return fs.SkipDir
		}
		if fi, err := d.Info(); err == nil && fi.Mode().IsRegular() {
			folder, _, _ := strings.Cut(name, "/")
			folders[folder] += fi.Size()
			most = max(most, folders[folder])
		}
		return nil
	})
	return most
}

// dropSpares frees all spare files, and reports whether there were any.
func (s *Store) dropSpares() (some bool) {
	if !s.reuses() {
		return false
	}
	top, err := os.OpenRoot(s.dir)
	if err != nil {
		return false
	}
	defer top.Close()
	for _, f := range spares(top) {
		some = top.Remove(path.Join(spareFolder, f.Name())) == nil || some
	}
	return some
}

// takeSpare makes a spare file the temporary file w.tmp in dir, and opens it. It returns nil if
// there is none: then the caller makes a new file. The file has no more than the bytes that the
// object will have, and they are all allocated.
func (w *writer) takeSpare(dir *os.Root) *os.File {
	if !w.s.reuses() || w.opts.Size < leastSpare {
		return nil
	}
	top, err := os.OpenRoot(w.s.dir)
	if err != nil {
		return nil
	}
	defer top.Close()

	for range spareTries {
		files := spares(top)
		if len(files) == 0 {
			return nil
		}
		// The smallest one that is large enough, or the largest one.
		i := slices.IndexFunc(files, func(fi fs.FileInfo) bool { return fi.Size() >= w.opts.Size })
		if i < 0 {
			i = len(files) - 1
		}
		err = top.Rename(path.Join(spareFolder, files[i].Name()), path.Join(path.Dir(w.name), w.tmp))
		if errors.Is(err, fs.ErrNotExist) {
			continue // another writer has taken it, or the folder was removed
		}
		if err != nil {
			return nil
		}
		f, err := dir.OpenFile(w.tmp, os.O_RDWR, 0)
		if err == nil {
			if w.allocated, err = emptied(f, w.opts.Size); err == nil {
				pay(top, w.opts.Size-w.allocated)
				return f
			}
			f.Close()
		}
		_ = dir.Remove(w.tmp) // a sweep may have done so
	}
	return nil
}

// pay frees spare files that have at most n bytes together, before a writer allocates n bytes: so a
// state whose files have other sizes than before takes little more memory than they had.
func pay(top *os.Root, n int64) {
	for _, f := range slices.Backward(spares(top)) {
		if f.Size() <= n && top.Remove(path.Join(spareFolder, f.Name())) == nil {
			n -= f.Size()
		}
	}
}

// errInUse reports a spare file that cannot be used.
var errInUse = errors.New("the file is in use")

// emptied prepares a spare file for an object of a size, and returns how many bytes of it are
// allocated, from the first one on.
func emptied(f *os.File, size int64) (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !fi.Mode().IsRegular() || links(fi) != 1 || !onlyOpen(f) {
		return 0, errInUse
	}
	has := fi.Size()
	if has > size {
		if err := f.Truncate(size); err != nil {
			return 0, err
		}
		has = size
	}
	if fi, err = f.Stat(); err != nil {
		return 0, err
	}
	if allocatedBytes(fi) < has {
		return 0, nil // it has holes
	}
	return has, nil
}
