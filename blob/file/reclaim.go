package file

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// largeFile is the size from which on blocks of a file are freed in the background: some
// gigabytes take the system seconds. The name is removed at once; the blocks are freed when
// the file, which is open, is truncated or closed. If the process ends, the system frees
// them.
const largeFile = 64 << 20

const (
	// freeStep is how many bytes are freed at a time. A save that begins meanwhile waits
	// for one step at most.
	freeStep = 32 << 20
	// freeDelay is how long after the end of a save, or after a removal, the first blocks are
	// freed. A save that begins meanwhile is written first.
	freeDelay = time.Second
)

// freeing frees the blocks of removed files of all stores of this process: stores in
// different folders use the same disk.
var freeing = &reclaimer{delay: freeDelay}

// reclaimer frees the blocks of removed files while no save is being written, because a
// disk that frees blocks writes at half its speed. It frees them in spite of a save
//
//   - before the save, if they have waited for another save already: so the files of one
//     replaced checkpoint wait at most;
//   - before the save, if the disk has no room for it otherwise;
//   - at once, if they would take more than half of the disk's free space;
//   - when a writer finds the disk full.
type reclaimer struct {
	delay time.Duration

	mu      sync.Mutex
	files   []*removed  // guarded by mu; the oldest first
	urgent  int         // guarded by mu; how many of files, from the first, are freed in spite of a save
	saves   int         // guarded by mu; saves that are being written
	begun   int         // guarded by mu; how often saves has become positive
	running bool        // guarded by mu; a goroutine frees files
	timer   *time.Timer // guarded by mu; starts that goroutine
}

// removed is a file without a name.
type removed struct {
	size  int64
	begun int // reclaimer.begun at its removal
	// free frees some blocks. It returns how many bytes are left.
	free func() (left int64)
	done chan struct{} // closed when all blocks are free
}

// add takes over a file that was removed. room is how many bytes of the disk are free. Zero:
// the file does not wait.
func (r *reclaimer) add(size, room int64, free func() int64) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.files = append(r.files, &removed{size, r.begun, free, make(chan struct{})})
	var waiting int64
	for _, f := range r.files {
		waiting += f.size
	}

	if waiting > room/2 {
		r.urgent = len(r.files)
	}
	r.wake()
}

// begin begins a save of n bytes on a disk with room free bytes; a negative room is unknown.
// It returns when the blocks are free that must be freed before the save, or when ctx ends.
// The caller calls end after the save.
func (r *reclaimer) begin(ctx context.Context, n, room int64) (end func()) {
	r.mu.Lock()
	r.saves++
	must := 0
	if r.saves == 1 { // otherwise it is part of another save, which has done this
		r.begun++
		must = slices.IndexFunc(r.files, func(f *removed) bool { return f.begun >= r.begun-1 })
		if must < 0 || room >= 0 && room < n+n/64+largeFile {
			must = len(r.files)
		}
	}

	done := r.hurry(must)
	r.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}

	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.saves--
		r.wake()
	})
}

// flush frees all blocks. It reports whether there were any.
func (r *reclaimer) flush(ctx context.Context) bool {
	r.mu.Lock()
	some := len(r.files) > 0
	done := r.hurry(len(r.files))
	r.mu.Unlock()

	select {
	case <-done:
	case <-ctx.Done():
		return false
	}

	return some
}

// hurry makes the first n files urgent. The channel is closed when their blocks are free.
// The caller holds mu.
func (r *reclaimer) hurry(n int) <-chan struct{} {
	r.urgent = max(r.urgent, n)
	r.wake()
	if n == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	return r.files[n-1].done
}

// wake makes the goroutine start that frees files: at once if files are urgent, after the
// delay if no save is being written, and otherwise not. The caller holds mu.
func (r *reclaimer) wake() {
	if r.timer != nil && (r.urgent > 0 || r.saves > 0) {
		r.timer.Stop()
		r.timer = nil
	}
	switch {
	case r.running || !r.may():
	case r.urgent > 0:
		r.running = true
		go r.run()
	case r.timer == nil:
		r.timer = time.AfterFunc(r.delay, r.fire)
	}
}

// fire starts the goroutine after the delay, unless a save has begun meanwhile.
func (r *reclaimer) fire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = nil
	if !r.running && r.may() {
		r.running = true
		go r.run()
	}
}

// may reports whether there is a file that may be freed now. The caller holds mu.
func (r *reclaimer) may() bool { return len(r.files) > 0 && (r.urgent > 0 || r.saves == 0) }

// run frees files until a save begins.
func (r *reclaimer) run() {
	r.mu.Lock()
	defer r.mu.Unlock()

	for r.may() {
		f := r.files[0]
		r.mu.Unlock()
		left := f.free()
		r.mu.Lock()
		if f.size = left; left == 0 {
			r.files, r.urgent = r.files[1:], max(0, r.urgent-1)
			close(f.done)
		}
	}

	r.running = false
	r.wake()
}

// large is a large file that is about to lose its name.
type large struct {
	*os.File
	size, room int64
}

// keepLarge opens the file name if it is large, so that its removal does not free its blocks.
// It returns nil if the file is not large or cannot be kept.
func keepLarge(dir *os.Root, name string) *large {
	fi, err := dir.Lstat(name)
	if err != nil || !fi.Mode().IsRegular() || fi.Size() < largeFile {
		return nil
	}
	f, room := keepBlocks(dir, name)
	if f == nil {
		return nil
	}
	return &large{f, fi.Size(), room}
}

// release gives the file to the reclaimer if it has lost its name, and closes it otherwise.
func (l *large) release() {
	switch {
	case l == nil:
	case !nameless(l.File): // it has another name
		l.Close()
	default:
		freeing.add(l.size, l.room, l.free)
	}
}

// free frees some blocks of the file. Readers can still read the whole file: as long as
// one has it open, it is only closed here, and the last reader frees its blocks.
func (l *large) free() int64 {
	if l.size > freeStep && onlyOpen(l.File) && l.Truncate(l.size-freeStep) == nil {
		l.size -= freeStep
		return l.size
	}
	l.Close()
	return 0
}

var _ blob.Reclaimer = (*Store)(nil)

// DeferReclaim implements [blob.Reclaimer].
func (s *Store) DeferReclaim(ctx context.Context, n int64) (end func()) {
	dir := s.dir
	room := roomAt(dir)
	for room < 0 && dir != filepath.Dir(dir) { // the folder is made later
		dir = filepath.Dir(dir)
		room = roomAt(dir)
	}
	return freeing.begin(ctx, n, room)
}
