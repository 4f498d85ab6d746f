package file

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn/blob"
)

// reserve allocates the blocks of n bytes of a file, so that a full disk is an error at once.
// File systems without this operation are ignored.
func reserve(f *os.File, off, n int64) error {
	err := control(f, func(fd int) error { return unix.Fallocate(fd, 0, off, n) })
	if refused(err) {
		return nil
	}
	return err
}

// keepBlocks opens a file, so that its removal does not free its blocks before the file is
// closed. room is how many bytes of its disk are free, or 0 if the file system is not one of
// a local disk: other hosts may need the space, and memory is freed quickly. It returns nil
// if it cannot open the file. NFS would keep a file of another name.
func keepBlocks(dir *os.Root, name string) (f *os.File, room int64) {
	f, err := dir.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		if f, err = dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
			return nil, 0
		}
	}

	var fs unix.Statfs_t
	if err := control(f, func(fd int) error { return unix.Fstatfs(fd, &fs) }); err != nil || fs.Type == unix.NFS_SUPER_MAGIC {
		f.Close()
		return nil, 0
	}

	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
		return f, available(&fs)
	}

	return f, 0
}

// available returns how many bytes of a file system a user can write.
func available(fs *unix.Statfs_t) int64 { return int64(fs.Bavail) * int64(fs.Bsize) }

// roomAt returns how many bytes of the file system at a path are free, or -1 if that is
// unknown.
func roomAt(path string) int64 {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) != nil {
		return -1
	}
	return available(&fs)
}

// nameless reports whether f, which was removed, has no other name.
func nameless(f *os.File) bool {
	fi, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 0
}

// links returns how many names a file has, or 0 if that is unknown.
func links(fi fs.FileInfo) int {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Nlink)
	}
	return 0
}

// allocatedBytes returns how many bytes of a file have blocks, or 0 if that is unknown.
func allocatedBytes(fi fs.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return 0
}

// onlyOpen reports whether no other descriptor or mapping of the file exists, in any process.
// It is false if that is unknown. The system grants a write lease only then. The file
// has no name of an object, so no reader can open it later.
func onlyOpen(f *os.File) bool {
	set := func(how int) error {
		return control(f, func(fd int) error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, how)
			return err
		})
	}
	return set(unix.F_WRLCK) == nil && set(unix.F_UNLCK) == nil
}

// openDirect opens a file for writes past the page cache, or returns nil.
func openDirect(dir *os.Root, name string) *os.File {
	f, err := dir.OpenFile(name, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil
	}
	return f
}

// writeBack makes the system begin to write a range to the disk, and does not wait. It
// is a hint: errors appear in the sync.
func writeBack(f *os.File, off, n int64) {
	_ = control(f, func(fd int) error { return unix.SyncFileRange(fd, off, n, unix.SYNC_FILE_RANGE_WRITE) })
}

// refused reports whether err means that the system does not support an operation.
func refused(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EINVAL)
}

// renameNoReplace moves from to to within the directory d unless to exists. It
// returns an error that wraps errors.ErrUnsupported if that is not possible.
func renameNoReplace(d *os.File, from, to string) error {
	err := control(d, func(fd int) error {
		return unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE)
	})
	if refused(err) {
		return errors.ErrUnsupported
	}
	return err
}

// Exchange swaps the files or folders at two paths in one atomic step. The error wraps
// errors.ErrUnsupported if the file system cannot do that.
func Exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return nil
	case refused(err):
		return errors.ErrUnsupported
	}
	return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
}

// hostTag returns a tag for this run of this host and the file system of root. If two
// processes have the same tag for root, they see the locks of each other. It is empty
// if locks do not work in root.
func hostTag(root *os.Root) string {
	fi, err := root.Stat(".")
	if err != nil {
		return ""
	}

	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || bootID() == "" {
		return ""
	}

	h := fnv.New64a()
	fmt.Fprintf(h, "%s %d", bootID(), st.Dev)
	tag := fmt.Sprintf("%016x", h.Sum64())
	works, ok := locksWork.Load(st.Dev)
	if !ok {
		var err error
		if works, err = tryLocks(root, tag); err != nil {
			return "" // the next call tries again
		}
		locksWork.Store(st.Dev, works)
	}

	if works == false {
		return ""
	}
	return tag
}

// locksWork has the results of tryLocks, by device.
var locksWork sync.Map

// bootID identifies this run of the kernel, also in containers.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// tryLocks reports whether a lock in root excludes a second holder. Some file systems
// grant every lock. It uses a temporary file with the tag, so that a sweep removes the file
// if this process is killed meanwhile. Other processes that list or sweep temporary files
// lock or remove it for a moment; then tryLocks uses another one. It returns an error if the
// answer is unknown.
func tryLocks(root *os.Root, tag string) (works bool, err error) {
	for range lockTries {
		works, err = tryLocksOnce(root, blob.Reserved+tag+"-"+rand.Text())
		if !errors.Is(err, blob.ErrLocked) && !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return works, err
}

// tryLocksOnce is tryLocks with a file of that name.
func tryLocksOnce(root *os.Root, name string) (bool, error) {
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return false, err
	}

	defer root.Remove(name)
	defer f.Close()

	g, err := root.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer g.Close()

	if err := lock(f); err != nil {
		if errors.Is(err, blob.ErrLocked) {
			return false, err
		}
		return false, nil // the file system has no locks
	}
	return errors.Is(lock(g), blob.ErrLocked), nil
}

// syncDir makes the entries of a directory durable, if the file system supports it.
func syncDir(d *os.File) error {
	if err := d.Sync(); err != nil && !refused(err) {
		return err
	}
	return nil
}

// dropCache drops the pages of f from the page cache.
func dropCache(f *os.File) error {
	if err := f.Sync(); err != nil { // pages that are not on the disk would stay
		return err
	}
	err := control(f, func(fd int) error { return unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) })
	if err != nil {
		return &fs.PathError{Op: "fadvise", Path: f.Name(), Err: err}
	}
	return nil
}

// reopenDirect opens the file of f for reads past the page cache, or returns nil. It
// uses the descriptor: the path may name another file now.
func reopenDirect(f *os.File) *os.File {
	var out *os.File
	_ = control(f, func(fd int) error {
		var err error
		out, err = os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY|unix.O_DIRECT, 0)
		return err
	})
	return out
}

// pread is one system call, which may read less than p.
func pread(f *os.File, p []byte, off int64) (n int, err error) {
	err = control(f, func(fd int) error {
		n, err = unix.Pread(fd, p, off)
		return err
	})
	return max(n, 0), err
}

// cachedBytes returns how many of n bytes from off are in the page cache, or false
// if that is unknown. On a system that cannot count pages, it tries to read one
// byte without waiting for the disk.
func cachedBytes(f *os.File, off, n int64) (int64, bool) {
	var st unix.Cachestat_t
	err := control(f, func(fd int) error {
		return unix.Cachestat(uint(fd), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &st, 0)
	})
	if err == nil {
		return min(int64(st.Cache)*int64(os.Getpagesize()), n), true
	}

	var b [1]byte
	err = control(f, func(fd int) error {
		_, err := unix.Preadv2(fd, [][]byte{b[:]}, off, unix.RWF_NOWAIT)
		return err
	})
	switch err {
	case nil:
		return n, true
	case unix.EAGAIN:
		return 0, true
	}

	return 0, false
}
