package cache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

const (
	// format is the folder of this version of the cache below Options.Dir.
	format    = "v1"
	blocksDir = "blocks"
	locksDir  = "locks"
	// usageLock is the lock of the file usageName, and of removals.
	usageLock = locksDir + "/usage"
	usageName = "usage"
	// usageWait bounds the wait for usageLock, which another process may hold while it is
	// stopped. A block that gets no room is not kept.
	usageWait = 10 * time.Second
	// tempAge is the age at which temporary files of unknown owners are removed.
	tempAge = time.Hour
)

// errNoRoom reports a block that does not fit below the bound.
var errNoRoom = errors.New("the bound of the cache leaves no room")

// folder is the blocks of a cache on the disk. Other processes use it too. Each block is
// a file, which is written under another name and renamed.
//
// The bound holds at every moment, also if several processes write: the file usage has
// the total of all blocks and temporary files or more, and a process that makes a file
// counts it there before, under a lock.
type folder struct {
	dir   string
	bytes int64
	files *file.Store
	// turn has a place for the goroutine that takes usageLock. Goroutines that tried for
	// the lock of the file at the same time would not get it in order.
	turn chan struct{}
}

// openFolder makes the folder if it does not exist. The error wraps errOwner if another user
// could change the files in it.
func openFolder(dir string, bytes int64) (*folder, error) {
	f := &folder{dir: filepath.Join(dir, format), bytes: bytes, turn: make(chan struct{}, 1)}
	if err := f.make(); err != nil {
		return nil, err
	}
	var err error
	// Blocks need not survive a loss of power: their checksums show whether they did.
	f.files, err = file.Open(f.dir, &file.Options{NoSync: true})
	return f, err
}

// make makes the folder, for this user alone, if it does not exist.
func (f *folder) make() error {
	if err := os.MkdirAll(filepath.Dir(f.dir), 0o700); err != nil {
		return err
	}
	if err := checkOwner(filepath.Dir(f.dir)); err != nil {
		return err
	}

	for _, d := range []string{"", locksDir, blocksDir} {
		if err := os.Mkdir(filepath.Join(f.dir, d), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}

	return checkOwner(f.dir) // another user may have made it while the folder above was open to all
}

// has reports whether there may be that block, of any version.
func (f *folder) has(ctx context.Context, id blockID) bool {
	for range f.files.List(ctx, id.prefix()) {
		return true
	}
	return false
}

// get fills p with the bytes from off on of a block of size bytes, and reports whether the
// block is there. It removes a block that is damaged, and returns why.
func (f *folder) get(ctx context.Context, k key, size int64, p []byte, off int64) (bool, error) {
	r, err := f.files.Open(ctx, k.name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}

	err = readBlock(ctx, r, k, size, p, off)
	r.Close()
	if err != nil {
		if ctx.Err() == nil {
			err = errors.Join(err, f.files.Remove(ctx, k.name()))
		}
		return false, err
	}

	now := time.Now()
	// The time says how recently it was used. It may have been removed meanwhile.
	_ = os.Chtimes(filepath.Join(f.dir, filepath.FromSlash(k.name())), now, now)
	return true, nil
}

// tryLock takes the lock under which the block is downloaded and written. The error
// wraps blob.ErrLocked if another process or goroutine has it.
func (f *folder) tryLock(ctx context.Context, id blockID) (blob.HeldLock, error) {
	if err := f.make(); err != nil { // a user may have removed it
		return nil, err
	}
	return f.files.TryLock(ctx, id.lock(), nil)
}

// put keeps the bytes p of a block. The caller has its lock.
func (f *folder) put(ctx context.Context, k key, p []byte) error {
	// With the lock, no other process writes in that folder: temporary files there are
	// left by processes that were killed.
	if _, err := f.files.SweepTemp(ctx, k.dir(), 0); err != nil {
		return err
	}

	w, err := f.create(ctx, k.name(), int64(len(p))+trailerBytes(int64(len(p))))
	if err != nil {
		return err
	}
	defer w.Abort() // does nothing once committed

	if err := w.WriteAt(ctx, p, 0); err != nil {
		return err
	}
	if err := w.WriteAt(ctx, trailer(k, p), int64(len(p))); err != nil {
		return err
	}

	_, err = w.Commit(ctx)
	return err
}

// create begins a file of n bytes. It removes the blocks that were not used for the
// longest time if the bound leaves no room otherwise.
func (f *folder) create(ctx context.Context, name string, n int64) (blob.Writer, error) {
	unlock, err := f.lockUsage(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()

	total, ok := f.usage()
	if !ok || total+n > f.bytes {
		if total, err = f.makeRoom(ctx, n); err != nil {
			return nil, err
		}
	}
	if total+n > f.bytes {
		return nil, fmt.Errorf("%w for %d bytes", errNoRoom, n)
	}

	if err := f.setUsage(total + n); err != nil {
		return nil, err
	}
	return f.files.Create(ctx, name, &blob.CreateOptions{Size: n})
}

// lockUsage takes usageLock. It waits for at most usageWait.
func (f *folder) lockUsage(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, usageWait, fmt.Errorf("%s: %w for %v", usageLock, blob.ErrLocked, usageWait))
	defer cancel()

	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	for {
		lock, err := f.files.TryLock(ctx, usageLock, nil)
		if err == nil {
			return func() {
				_ = lock.Release() // if it stays, it is free when this process ends
				<-f.turn
			}, nil
		}
		if errors.Is(err, blob.ErrLocked) {
			err = sleep(ctx, 2*time.Millisecond)
		}
		if err != nil {
			<-f.turn
			return nil, err
		}
	}
}

// usage returns the noted total, unless the note is missing or torn. The caller has
// usageLock.
func (f *folder) usage() (int64, bool) {
	b, err := os.ReadFile(filepath.Join(f.dir, usageName))
	if err != nil || len(b) != 12 || crc32c.Checksum(b[:8]) != binary.LittleEndian.Uint32(b[8:]) {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(b)), true
}

// setUsage notes the total. The caller has usageLock.
func (f *folder) setUsage(total int64) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(total))
	return os.WriteFile(filepath.Join(f.dir, usageName), binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b)), 0o600)
}

// makeRoom finds out the total, and removes files if n bytes do not fit beside it: files of
// dead processes, and then blocks, down to nine tenths of the bound, so that the next call
// is not soon. It returns the new total. The caller has usageLock.
func (f *folder) makeRoom(ctx context.Context, n int64) (total int64, err error) {
	dirs, err := f.files.Folders(ctx, blocksDir)
	if err != nil {
		return 0, err
	}

	if _, err := f.files.SweepTemp(ctx, locksDir, tempAge); err != nil {
		return 0, err
	}

	for _, d := range dirs {
		d = blocksDir + "/" + d
		if _, err := f.files.SweepTemp(ctx, d, tempAge); err != nil {
			return 0, err
		}

		temps, err := f.files.Temps(ctx, d)
		if err != nil {
			return 0, err
		}

		for _, t := range temps {
			total += t.Size
		}
	}

	var blocks []blob.Info
	for info, err := range f.files.List(ctx, blocksDir+"/") {
		if err != nil {
			return 0, err
		}
		total += info.Size
		blocks = append(blocks, info)
	}

	if total+n <= f.bytes {
		return total, nil
	}

	slices.SortFunc(blocks, func(a, b blob.Info) int { return a.ModTime.Compare(b.ModTime) })
	for _, b := range blocks {
		if total+n <= f.bytes/10*9 {
			break
		}
		// Windows does not remove a file that is open. Another one is removed instead.
		if f.files.Remove(ctx, b.Name) == nil {
			total -= b.Size
		}
	}

	return total, context.Cause(ctx)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
