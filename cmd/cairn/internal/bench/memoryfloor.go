package bench

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob/hosts"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
)

// socketChunk is how many bytes the floor receives at once if it writes them to a file.
const socketChunk = 256 << 10

// sink is where the floor puts the bytes of a rank.
type sink int

const (
	intoFiles  sink = iota // new files in memory
	intoMemory             // memory that is there
)

// stream is one connection of the floor: a part of a file, by sendfile, and where it arrives.
type stream struct {
	from   string
	at, n  int64
	memory []byte   // nil: to
	to     *os.File // at the same place as in from

	out, in net.Conn
}

// floor moves the data files of some ranks over plain connections, as many as a copy has.
func (b *memoryBench) floor(ctx context.Context, best *float64, ranks []int, into sink) (err error) {
	dir := filepath.Join(b.dir, "floor")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	b.usage.pause()
	defer func() { err = errors.Join(err, os.RemoveAll(dir)); b.usage.resume() }()

	var streams []*stream
	defer func() {
		for _, s := range streams {
			s.close()
		}
	}()
	total := int64(0)
	for _, rank := range ranks {
		for _, f := range b.files[rank] {
			more, err := b.streams(rank, f, dir, into)
			streams = append(streams, more...)
			if err != nil {
				return err
			}
			total += f.Size
		}
	}
	if err := connect(streams); err != nil {
		return err
	}

	start := time.Now()
	eg, running := errgroup.WithContext(ctx)
	defer context.AfterFunc(running, func() { // one end that fails would leave the other one waiting
		for _, s := range streams {
			s.out.Close()
			s.in.Close()
		}
	})()
	for _, s := range streams {
		eg.Go(s.send)
		eg.Go(s.receive)
	}
	err = eg.Wait()
	took := time.Since(start)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	}
	*best = max(*best, gbs(total, took))
	return nil
}

// streams returns the streams of a data file of a rank.
func (b *memoryBench) streams(rank int, f storage.File, dir string, into sink) (out []*stream, err error) {
	from := filepath.Join(b.folder(b.hostOf(rank)), memoryRun, run.FolderName(b.step), f.Name)
	var memory []byte
	if into == intoMemory {
		memory = make([]byte, f.Size)
		touch(memory, false)
	}
	for i := range int64(hosts.DefaultParallel) {
		lo, hi := f.Size*i/hosts.DefaultParallel, f.Size*(i+1)/hosts.DefaultParallel
		s := &stream{from: from, at: lo, n: hi - lo}
		if into == intoMemory {
			s.memory = memory[lo:hi]
		} else if s.to, err = os.OpenFile(filepath.Join(dir, f.Name), os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
			return out, err
		}
		out = append(out, s)
	}
	return out, nil
}

// connect connects the two ends of each stream.
func connect(streams []*stream) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	for _, s := range streams {
		if s.out, err = net.Dial("tcp", l.Addr().String()); err != nil {
			return err
		}
		if s.in, err = l.Accept(); err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) close() {
	for _, c := range []net.Conn{s.out, s.in} {
		if c != nil {
			c.Close()
		}
	}
	if s.to != nil {
		s.to.Close()
	}
}

// send sends the part of the file; the kernel moves the bytes.
func (s *stream) send() error {
	f, err := os.Open(s.from)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(s.at, io.SeekStart); err != nil {
		return err
	}
	_, err = io.CopyN(s.out, f, s.n)
	return err
}

func (s *stream) receive() error {
	if s.memory != nil {
		_, err := io.ReadFull(s.in, s.memory)
		return err
	}
	buf := make([]byte, socketChunk)
	for done := int64(0); done < s.n; {
		p := buf[:min(socketChunk, s.n-done)]
		if _, err := io.ReadFull(s.in, p); err != nil {
			return err
		}
		if _, err := s.to.WriteAt(p, s.at+done); err != nil {
			return err
		}
		done += int64(len(p))
	}
	return nil
}

// usagePause is the time between two looks at the memory in use.
const usagePause = 20 * time.Millisecond

// usage notes the most memory that the files of a folder use.
type usage struct {
	dir string

	mu   sync.Mutex
	off  bool  // guarded by mu; what is there does not belong to a checkpoint
	peak int64 // guarded by mu
}

// watch looks at the folder again and again until stop is called.
func (u *usage) watch() (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			u.measure()
			select {
			case <-time.After(usagePause):
			case <-over:
				return
			}
		}
	}()
	return func() { close(over); <-done }
}

// measure looks at the folder, and returns the most memory so far.
func (u *usage) measure() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.off {
		return u.peak
	}
	sum := int64(0)
	_ = filepath.WalkDir(u.dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() { // files come and go
			if fi, err := d.Info(); err == nil {
				sum += fi.Size()
			}
		}
		return nil
	})
	u.peak = max(u.peak, sum)
	return u.peak
}

func (u *usage) pause()  { u.set(true) }
func (u *usage) resume() { u.set(false) }

func (u *usage) set(off bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.off = off
}
