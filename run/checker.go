package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// checker verifies in the background the files to which the saves of one rank refer. It reads
// each file once, at a limited rate, and not while a save is written. The zero value is ready
// to use.
type checker struct {
	mu     sync.Mutex
	files  map[checkedKey]*checked // guarded by mu
	stop   context.CancelFunc      // ends the goroutine; guarded by mu; nil: there was none
	idle   chan struct{}           // closed when the goroutine has ended; guarded by mu; nil: there was none
	closed bool                    // guarded by mu
}

type checkedKey struct{ folder, name string }

// checked is a file that is verified.
type checked struct {
	storage.Reference
	store   blob.Store // its folder
	next    int64      // the bytes before it were read
	crc     uint32     // of these
	done    bool       // guarded by checker.mu
	damaged bool       // guarded by checker.mu
}

const (
	// checkRate bounds the bytes that a checker reads in a second, and checkPiece the bytes that
	// it reads at once.
	checkRate  = 128 << 20
	checkPiece = 1 << 20
)

// pause stops the verification until resume is called. It does not wait.
func (c *checker) pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		c.stop()
	}
}

// resume goes on with the files to which a save to store refers. warn receives an error that
// names the file for each damaged one.
func (c *checker) resume(store blob.Store, files []storage.Reference, warn func(error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	old := c.files
	c.files = map[checkedKey]*checked{}

	var todo []*checked
	for _, f := range files {
		key := checkedKey{f.Folder, f.Name}
		x := old[key]
		if x == nil {
			at, err := blob.Beside(store, f.Folder)
			if err != nil {
				continue
			}
			x = &checked{Reference: f, store: at}
		}
		c.files[key] = x
		if !x.done {
			todo = append(todo, x)
		}
	}

	for key, x := range old {
		if x.damaged {
			c.files[key] = x
		}
	}

	if c.stop != nil {
		c.stop()
	}

	ctx, cancel := context.WithCancel(context.Background())
	before, idle := c.idle, make(chan struct{})
	c.stop, c.idle = cancel, idle
	go func() {
		defer close(idle)
		defer cancel()
		if before != nil {
			<-before
		}
		c.check(ctx, todo, warn)
	}()
}

// check verifies files until ctx ends.
func (c *checker) check(ctx context.Context, todo []*checked, warn func(error)) {
	for _, x := range todo {
		err := x.verify(ctx)
		if ctx.Err() != nil {
			return
		}
		damaged := errors.Is(err, storage.ErrCorrupt)
		c.mu.Lock()
		x.done, x.damaged = err == nil || damaged, damaged
		c.mu.Unlock()
		if damaged {
			warn(fmt.Errorf("%s of %s, to which checkpoints refer, is damaged: %w; the next save does not refer to it; 'cairn verify' shows which checkpoints are damaged", x.Name, x.store, err))
		}
	}
}

// verify reads the rest of the file, and compares its checksum with the record of its folder.
// It returns nil if there is no record that names the file. The error wraps storage.ErrCorrupt if
// the file is not as the record says, if it is gone, if the disk cannot read it, or if the record
// is damaged.
func (x *checked) verify(ctx context.Context) error {
	err := x.read(ctx)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EIO) {
		return fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	return err
}

// read is verify, but a file that is gone, or that the disk cannot read, is an error of the store.
func (x *checked) read(ctx context.Context) error {
	want, ok, err := formats.StoredFile(ctx, x.store, x.Name)
	if err != nil || !ok {
		return err
	}
	if want.Size != x.Size {
		return fmt.Errorf("%w: the record says %d bytes, and not %d", storage.ErrCorrupt, want.Size, x.Size)
	}

	if _, slow := blob.As[blob.GapReader](x.store); slow {
		return x.compare(ctx, want.CRC32C)
	}

	r, err := blob.OpenKnown(ctx, x.store, blob.Info{Name: x.Name, Size: x.Size})
	if err != nil {
		return err
	}
	defer r.Close()

	buf := make([]byte, min(checkPiece, x.Size))
	for x.next < x.Size {
		p := buf[:min(int64(len(buf)), x.Size-x.next)]
		if err := r.ReadAt(ctx, p, x.next); err != nil {
			return err
		}
		x.crc = crc32c.Update(x.crc, p)
		x.next += int64(len(p))
		if err := sleep(ctx, time.Duration(len(p))*time.Second/checkRate); err != nil {
			return err
		}
	}

	if x.crc != want.CRC32C {
		return fmt.Errorf("%w: its checksum is %08x, the record says %08x", storage.ErrCorrupt, x.crc, want.CRC32C)
	}
	return nil
}

// compare compares the checksum that a service has of the file, if it has one. The service
// itself verifies the bytes that it stores, and reading them would take as long as a load.
func (x *checked) compare(ctx context.Context, want uint32) error {
	m, ok := blob.As[blob.Summer](x.store)
	if !ok {
		return nil
	}
	sum, ok, err := m.Sum(ctx, x.Name)
	if err == nil && ok && sum != want {
		err = fmt.Errorf("%w: the checksum in the service is %08x, the record says %08x", storage.ErrCorrupt, sum, want)
	}
	return err
}

// sleep waits, or until ctx ends.
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

// isDamaged reports whether a file is known to be damaged.
func (c *checker) isDamaged(f storage.Reference) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.files[checkedKey{f.Folder, f.Name}]
	return x != nil && x.damaged
}

// close ends the verification for good.
func (c *checker) close() {
	c.mu.Lock()
	c.closed = true
	if c.stop != nil {
		c.stop()
	}
	idle := c.idle
	c.mu.Unlock()
	if idle != nil {
		<-idle
	}
}
