package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// small are options with which small objects are cached too.
func small(dir string) Options { return Options{Dir: dir, block: 4096, small: -1} }

func newCache(t *testing.T, s blob.Store, o Options) *Store {
	t.Helper()
	c := must.Get(New(s, o))(t)
	return c
}

func TestStore(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		return newCache(t, new(mem.Store), Options{Dir: t.TempDir(), block: 64 << 10, small: -1})
	})
}

// random returns bytes that are the same for each seed.
func random(seed uint64, n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(p)
	return p
}

func put(t *testing.T, s blob.Store, name string, data []byte) {
	t.Helper()
	if _, err := blob.WriteAll(t.Context(), s, name, data, nil); err != nil {
		t.Fatal(err)
	}
}

// counting is a store in memory that counts reads.
type counting struct {
	mem.Store
	mu     sync.Mutex
	bytes  int64
	stats  int
	refuse bool // reads fail
}

func (s *counting) Stat(ctx context.Context, name string) (blob.Info, error) {
	s.mu.Lock()
	s.stats++
	s.mu.Unlock()
	return s.Store.Stat(ctx, name)
}

func (s *counting) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.Store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return &countingReader{r, s}, nil
}

type countingReader struct {
	blob.Reader
	s *counting
}

func (r *countingReader) Version() string { return r.Reader.(blob.VersionReader).Version() }

var errRefused = errors.New("refused")

func (r *countingReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	r.s.mu.Lock()
	r.s.bytes += int64(len(p))
	refuse := r.s.refuse
	r.s.mu.Unlock()
	if refuse {
		return errRefused
	}
	return r.Reader.ReadAt(ctx, p, off)
}

// read returns how many bytes were read since the last call.
func (s *counting) read() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.bytes
	s.bytes = 0
	return n
}

func readAll(t *testing.T, s blob.Store, name string, want []byte) {
	t.Helper()
	got, err := blob.ReadAll(t.Context(), s, name, 1<<30)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("ReadAll(%s) = %d bytes, %v; want the %d bytes of the object", name, len(got), err, len(want))
	}
}

func TestEveryRangeOnceFromTheStore(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, size := range []int{1, 4095, 4096, 4097, 100_000, 300_001} {
		for _, block := range []int64{4096, 64 << 10, 128 << 10} {
			inner, dir := new(counting), t.TempDir()
			data := random(seed, size)
			put(t, inner, "a", data)
			o := small(dir)
			o.block = block
			for range 3 { // as three processes would
				s := newCache(t, inner, o)
				r := must.Get(s.Open(t.Context(), "a"))(t)
				var wanted int64
				for range 50 {
					off := rng.IntN(size)
					p := make([]byte, rng.IntN(size-off)+1)
					if err := r.ReadAt(t.Context(), p, int64(off)); err != nil || !bytes.Equal(p, data[off:off+len(p)]) {
						t.Fatalf("ReadAt(%d bytes, %d) of %d in blocks of %d: %v; want the bytes of the object", len(p), off, size, block, err)
					}
					wanted += int64(len(p))
				}
				r.Close()
				if c := s.Traffic().Cached; c > wanted || c == 0 && size > 1 {
					t.Errorf("%d of %d bytes came from the cache", c, wanted)
				}
			}
			if n := inner.read(); n > int64(size) {
				t.Errorf("%d bytes were read from the store for an object of %d", n, size)
			}
		}
	}
}

// With a warm cache, a read of an object of a known size makes one request, which asks for
// the version; Open makes one anyway.
func TestRequestsOfWarmReads(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	inner := must.Get(openService(t.TempDir(), log))(t)
	data := random(1, 200_000)
	put(t, inner, "a", data)
	dir := t.TempDir()
	for i, want := range []string{"read 65536\nread 65536\nread 65536\nread 3392\n", "stat 0\n"} {
		s := newCache(t, inner, Options{Dir: dir, block: 64 << 10})
		r := must.Get(s.OpenKnown(t.Context(), blob.Info{Name: "a", Size: int64(len(data))}))(t)
		got := make([]byte, len(data))
		for off := 0; off < len(data); off += 64 << 10 {
			must.Do(t, r.ReadAt(t.Context(), got[off:min(off+64<<10, len(data))], int64(off)))
		}
		r.Close()
		b, err := os.ReadFile(log)
		if !bytes.Equal(got, data) || err != nil || string(b) != want {
			t.Errorf("read %d: %q, %v; want %q and the bytes of the object", i, b, err, want)
		}
		os.Remove(log)
	}
}

func TestObjectsThatAreReplaced(t *testing.T) {
	inner := new(counting)
	s := newCache(t, inner, small(t.TempDir()))
	old, fresh := random(1, 20_000), random(2, 20_000)
	put(t, s, "a", old)
	readAll(t, s, "a", old)
	open := must.Get(s.Open(t.Context(), "a"))(t)
	defer open.Close()
	put(t, s, "a", fresh)
	readAll(t, s, "a", fresh)
	p := make([]byte, len(old))
	if err := open.ReadAt(t.Context(), p, 0); err == nil && !bytes.Equal(p, old) {
		t.Error("a reader of the old object has read something else")
	}
	known := must.Get(s.OpenKnown(t.Context(), blob.Info{Name: "a", Size: 20_000}))(t)
	defer known.Close()
	if err := known.ReadAt(t.Context(), p, 0); err != nil || !bytes.Equal(p, fresh) {
		t.Errorf("OpenKnown and ReadAt of a replaced object = %v; want the new bytes", err)
	}
	put(t, s, "a", old) // with another version
	inner.read()
	readAll(t, s, "a", old)
	if n := inner.read(); n != 20_000 {
		t.Errorf("%d bytes were read of an object with a new version; want all of them", n)
	}
}

// An object that is replaced between two reads of a reader is never mixed with the old one.
func TestNoMixtureOfVersions(t *testing.T) {
	inner := must.Get(openService(t.TempDir(), ""))(t)
	old, fresh := random(1, 8192), random(2, 8192)
	put(t, inner, "a", old)
	dir := t.TempDir()
	s := newCache(t, inner, small(dir))
	first := must.Get(s.OpenKnown(t.Context(), blob.Info{Name: "a", Size: 8192}))(t)
	defer first.Close()
	p := make([]byte, 4096)
	must.Do(t, first.ReadAt(t.Context(), p, 0))
	// second asks for the version and takes a block from the cache. The other block comes
	// from a newer object.
	second := &reader{s: s, name: "a", asking: make(chan struct{}, 1)}
	time.Sleep(50 * time.Millisecond) // so that the times of the files differ
	stat := must.Get(inner.stat(t.Context(), "a"))(t)
	put(t, inner, "a", fresh)
	r := must.Get(inner.open(t.Context(), "a"))(t)
	defer r.Close()
	second.inner, second.versioned, second.version = r, r, stat.Version
	if err := second.ReadAt(t.Context(), p, 0); err != nil || !bytes.Equal(p, old[:4096]) {
		t.Errorf("the block that is there: %v; want the old bytes", err)
	}
	if err := second.ReadAt(t.Context(), p, 4096); !errors.Is(err, blob.ErrChanged) {
		t.Errorf("the block that is not there: %v; want ErrChanged", err)
	}
	if s.folder.has(t.Context(), second.blockID(1)) {
		t.Error("the block of another version was kept")
	}
}

// blockFiles returns the paths of the blocks.
func blockFiles(t *testing.T, dir string) []string {
	t.Helper()
	paths := must.Get(filepath.Glob(filepath.Join(dir, format, blocksDir, "*", "*")))(t)
	return paths
}

// TestDamage changes a block file in many ways. Reads return the bytes of the object, which
// they read again, and repair the file.
func TestDamage(t *testing.T) {
	const size = pageBytes + 5000
	inner, dir := new(counting), t.TempDir()
	data := random(1, size)
	put(t, inner, "a", data)
	put(t, inner, "b", random(2, size))
	var log bytes.Buffer
	s := newCache(t, inner, Options{Dir: dir, block: 128 << 10, small: -1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	readAll(t, s, "a", data)
	path := blockFiles(t, dir)[0]
	good, err := os.ReadFile(path)
	if err != nil || len(good) != size+int(trailerBytes(size)) {
		t.Fatalf("the block has %d bytes, %v", len(good), err)
	}
	readAll(t, s, "b", random(2, size))
	var other []byte
	for _, p := range blockFiles(t, dir) {
		if p != path {
			other, err = os.ReadFile(p)
		}
	}
	if err != nil || len(other) != len(good) {
		t.Fatal("there is no second block")
	}
	cases := map[string][]byte{"empty": {}, "of another object": other, "longer": append(bytes.Clone(good), 0), "zeros": make([]byte, len(good))}
	for at := 0; at < len(good); at++ {
		// Every byte near the ends of pages and in the trailer, and some of the others.
		if near := at%pageBytes < 64 || at%pageBytes > pageBytes-64 || at > size-64; !near && at%997 != 0 {
			continue
		}
		b := bytes.Clone(good)
		b[at] ^= 0x10
		cases[fmt.Sprint("a bit at ", at)] = b
	}
	for n := 1; n < len(good); n += 9973 {
		cases[fmt.Sprint("cut to ", n)] = good[:n]
	}
	for name, b := range cases {
		must.Do(t, os.WriteFile(path, b, 0o600))
		inner.read()
		readAll(t, s, "a", data)
		now, err := os.ReadFile(path)
		if n := inner.read(); n != size || err != nil || !bytes.Equal(now, good) {
			t.Errorf("%s: %d bytes were read, and the block is whole: %v, %v; want %d, true", name, n, bytes.Equal(now, good), err, size)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "damaged") {
		t.Errorf("the log is %q; want one warning", log.String())
	}
	// A read that does not touch the damage need not find it, but returns the right bytes.
	b := bytes.Clone(good)
	b[0] ^= 1
	must.Do(t, os.WriteFile(path, b, 0o600))
	r := must.Get(s.Open(t.Context(), "a"))(t)
	defer r.Close()
	p := make([]byte, 100)
	if err := r.ReadAt(t.Context(), p, pageBytes+10); err != nil || !bytes.Equal(p, data[pageBytes+10:pageBytes+110]) {
		t.Errorf("a read beside the damage = %v; want the bytes of the object", err)
	}
}

// usedBytes returns the size of all blocks and temporary files. A file that is renamed
// meanwhile counts once.
func usedBytes(dir string) int64 {
	var n int64
	var seen []fs.FileInfo
	filepath.WalkDir(filepath.Join(dir, format, blocksDir), func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile
		}
		fi, err := d.Info()
		if err != nil || !fi.Mode().IsRegular() || slices.ContainsFunc(seen, func(s fs.FileInfo) bool { return os.SameFile(s, fi) }) {
			return nil
		}
		seen = append(seen, fi)
		n += fi.Size()
		return nil
	})
	return n
}

// watch returns a function that returns the most bytes that a cache had since. It looks
// under the lock of the bound, because files come and go while it walks.
func watch(t *testing.T, dir string) func() int64 {
	t.Helper()
	f := must.Get(openFolder(dir, 1))(t)
	used := func() int64 {
		unlock, err := f.lockUsage(t.Context())
		if err != nil {
			return 0 // another look finds the lock free
		}
		defer unlock()
		return usedBytes(dir)
	}
	stop, most := make(chan struct{}), make(chan int64)
	go func() {
		var n int64
		for {
			n = max(n, used())
			select {
			case <-stop:
				most <- max(n, used())
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-most
	}
}

func TestBoundOfSeveralCaches(t *testing.T) {
	inner, dir := new(counting), t.TempDir()
	const bound, objects, size = 40 * 4200, 20, 30_000
	for i := range objects {
		put(t, inner, fmt.Sprint(i), random(uint64(i), size))
	}
	most := watch(t, dir)
	var wg sync.WaitGroup
	for i := range 3 {
		o := small(dir)
		o.Bytes = bound
		s := newCache(t, inner, o)
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 2))
			for range 12 {
				n := rng.IntN(objects)
				readAll(t, s, fmt.Sprint(n), random(uint64(n), size))
			}
		})
	}
	wg.Wait()
	if n := most(); n > bound || n < bound/2 {
		t.Errorf("the cache had up to %d bytes; want at most %d, and more than half of that", n, bound)
	}
}

func TestLeastRecentlyUsedGoFirst(t *testing.T) {
	inner, dir := new(counting), t.TempDir()
	o := small(dir)
	o.Bytes = 10 * 4200
	s := newCache(t, inner, o)
	data := random(1, 4096)
	for i := range 20 {
		put(t, inner, fmt.Sprint(i), data)
		readAll(t, s, fmt.Sprint(i), data)
		readAll(t, s, "0", data) // always in use
		time.Sleep(2 * time.Millisecond)
	}
	inner.read()
	readAll(t, s, "0", data)
	readAll(t, s, "19", data)
	if n := inner.read(); n != 0 {
		t.Errorf("%d bytes of blocks that are in use were read again", n)
	}
	readAll(t, s, "1", data)
	if n := inner.read(); n != 4096 {
		t.Error("a block that was not used for long is still there")
	}
}

// A user may remove the folder at any time.
func TestFolderThatIsRemoved(t *testing.T) {
	inner, dir := new(counting), filepath.Join(t.TempDir(), "cache")
	s := newCache(t, inner, small(dir))
	data := random(1, 10_000)
	put(t, inner, "a", data)
	for range 2 {
		readAll(t, s, "a", data)
		if n := inner.read(); n != 10_000 {
			t.Errorf("%d bytes were read from the store; want 10000", n)
		}
		if fi, err := os.Stat(dir); err != nil || runtime.GOOS != "windows" && fi.Mode().Perm() != 0o700 {
			t.Errorf("the folder is %v, %v; want it for its owner alone", fi, err)
		}
		readAll(t, s, "a", data)
		if n := inner.read(); n != 0 {
			t.Errorf("%d bytes were read again", n)
		}
		must.Do(t, os.RemoveAll(dir))
	}
}

// A bound below the size of a block turns the cache off, but not the reads.
func TestTooSmallBound(t *testing.T) {
	inner := new(counting)
	o := small(t.TempDir())
	o.Bytes = 100
	s := newCache(t, inner, o)
	put(t, s, "a", random(1, 10_000))
	readAll(t, s, "a", random(1, 10_000))
	if n := usedBytes(o.Dir); n != 0 {
		t.Errorf("the cache has %d bytes", n)
	}
}

func TestFoldersThatCannotBeUsed(t *testing.T) {
	data := random(1, 100_000)
	readable := func(t *testing.T, dir string, spoil func(*Store)) {
		t.Helper()
		inner := new(mem.Store)
		put(t, inner, "a", data)
		var log bytes.Buffer
		o := small(dir)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s := newCache(t, inner, o)
		spoil(s)
		for range 3 {
			readAll(t, s, "a", data)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || s.Traffic().Cached != 0 {
			t.Errorf("%d warnings, %d bytes from the cache; want 1, 0: %s", n, s.Traffic().Cached, &log)
		}
	}
	path := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(path, nil, 0o600))
	readable(t, path, func(*Store) {})
	readable(t, filepath.Join(path, "below"), func(*Store) {})
	replace := func(sub string) func(s *Store) {
		return func(s *Store) {
			must.Do(t, errors.Join(os.RemoveAll(filepath.Join(s.folder.dir, sub)), os.WriteFile(filepath.Join(s.folder.dir, sub), nil, 0o600)))
		}
	}
	readable(t, t.TempDir(), replace(blocksDir))
	readable(t, t.TempDir(), replace(locksDir))
	readable(t, t.TempDir(), func(s *Store) {
		must.Do(t, os.Mkdir(filepath.Join(s.folder.dir, usageName), 0o700))
	})
}

func TestOptionsThatAreRefused(t *testing.T) {
	files := must.Get(file.Open(t.TempDir(), nil))(t)
	if s, err := New(struct{ blob.Store }{files}, small(t.TempDir())); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("New of a store without versions = %v, %v", s, err)
	}
	for _, o := range []Options{{}, {Dir: t.TempDir(), Bytes: -1}} {
		if s, err := New(new(mem.Store), o); err == nil {
			t.Errorf("New with %+v = %v; want an error", o, s)
		}
	}
}

func TestCapabilities(t *testing.T) {
	s := newCache(t, new(counting), small(t.TempDir()))
	if _, ok := blob.As[*counting](s); !ok {
		t.Error("the store does not unwrap")
	}
	if k, ok := blob.As[blob.Knower](s); !ok || k != blob.Knower(s) {
		t.Error("OpenKnown goes past the cache")
	}
	if c, ok := blob.As[blob.Cooler](s); !ok || !errors.Is(c.Cool(t.Context(), "a"), errors.ErrUnsupported) {
		t.Error("Cool goes past the cache")
	}
	if !blob.HasVersions(s) {
		t.Error("the store has no versions")
	}
}

// block takes the lock of a block, as another process does that downloads it.
func block(t *testing.T, s *Store, name string, size, n int64) blob.HeldLock {
	t.Helper()
	lock := must.Get(s.folder.tryLock(t.Context(), newBlockID(s.host, blob.JoinAddress(s.String(), name), size, s.opts.block, n)))(t)
	return lock
}

func TestWaits(t *testing.T) {
	inner, dir := new(counting), t.TempDir()
	data := random(1, 10_000)
	put(t, inner, "a", data)
	s := newCache(t, inner, small(dir))
	lock := block(t, s, "a", 10_000, 1)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errRefused)
	defer cancel()
	r := must.Get(s.Open(t.Context(), "a"))(t)
	defer r.Close()
	if err := r.ReadAt(ctx, make([]byte, 10_000), 0); !errors.Is(err, errRefused) {
		t.Errorf("a read that waits for another process = %v; want the cause of its context", err)
	}
	// A process that does not go on is not waited for any longer than patience.
	o := small(dir)
	o.patience = 10 * time.Millisecond
	readAll(t, newCache(t, inner, o), "a", data)
	// A read goes on when the other process has ended.
	done := make(chan error)
	go func() { done <- r.ReadAt(t.Context(), make([]byte, 10_000), 0) }()
	time.Sleep(10 * time.Millisecond)
	must.Do(t, lock.Release())
	if err := <-done; err != nil {
		t.Error(err)
	}
	// A failed download fails that read alone and leaves no block.
	inner.refuse = true
	put(t, inner, "b", data)
	if _, err := blob.ReadAll(t.Context(), s, "b", 1<<20); !errors.Is(err, errRefused) {
		t.Errorf("a read that fails = %v; want that error", err)
	}
	inner.refuse = false
	readAll(t, s, "b", data)
}

func TestFromEnv(t *testing.T) {
	t.Setenv(DirEnv, "")
	t.Setenv(BytesEnv, "")
	inner := new(mem.Store)
	if s, err := FromEnv(t.Context(), inner); s != blob.Store(inner) || err != nil {
		t.Errorf("FromEnv without variables = %v, %v; want the store itself", s, err)
	}
	dir := filepath.Join(t.TempDir(), "new", "cache")
	t.Setenv(DirEnv, dir)
	t.Setenv(BytesEnv, "1.5GiB")
	s, err := FromEnv(t.Context(), inner)
	if c, ok := s.(*Store); err != nil || !ok || c.opts.Bytes != 3<<29 || c.opts.Dir != dir {
		t.Errorf("FromEnv = %+v, %v; want a cache of 1.5 GiB", s, err)
	}
	if fi, err := os.Stat(dir); err != nil || runtime.GOOS != "windows" && fi.Mode().Perm() != 0o700 {
		t.Errorf("the folder is %v, %v; want it for its owner alone", fi.Mode(), err)
	}
	if s, err := FromEnv(Without(t.Context()), inner); s != blob.Store(inner) || err != nil {
		t.Errorf("FromEnv in a context without a cache = %v, %v; want the store itself", s, err)
	}
	for _, bad := range []string{"lots", "-1"} {
		t.Setenv(BytesEnv, bad)
		if s, err := FromEnv(t.Context(), inner); err == nil || !strings.Contains(err.Error(), BytesEnv) || s != nil {
			t.Errorf("FromEnv with %s = %v, %v; want an error that names the variable", bad, s, err)
		}
	}
}
