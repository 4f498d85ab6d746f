package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/hosts"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// copied is a checkpoint in the folders of two hosts, and a host without it.
type copied struct {
	dirs    [2]string
	stop    [2]func()               // ends the server of a host
	stores  map[string]*hosts.Store // by the hosts from which they read
	x       *tensor.Tensor
	mu      sync.Mutex
	reports []string // host and error; guarded by mu
}

// newCopied saves a checkpoint in a folder, copies the files to another one, and serves both.
func newCopied(t *testing.T) *copied {
	t.Helper()
	c := &copied{
		dirs:   [2]string{t.TempDir(), t.TempDir()},
		x:      storagetest.Filled(t, tensor.Float32, []int64{128, 8192}, 3), // 4 stripes of 8 bands
		stores: map[string]*hosts.Store{},
	}
	open := func(dir string) *file.Store { return must.Get(file.Open(dir, &file.Options{NoSync: true}))(t) }
	first := must.Get(blob.NewSub(open(c.dirs[0]), "step-1"))(t)
	must.Do(t, save(t, first, "s", plan.State{"x": c.x, "a": storagetest.Filled(t, tensor.Int16, []int64{40}, 1), "b": storagetest.Filled(t, tensor.Int16, []int64{40}, 2)}, nil))
	must.Do(t, os.CopyFS(c.dirs[1], os.DirFS(c.dirs[0])))

	var peers []hosts.Peer
	for i, name := range []string{"host-0", "host-1"} {
		l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
		peers = append(peers, hosts.Peer{Host: name, Addr: l.Addr().String()})
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		var serving sync.WaitGroup
		c.stop[i] = func() { cancel(); serving.Wait() }
		t.Cleanup(c.stop[i])
		serving.Go(func() {
			if err := hosts.Serve(ctx, l, open(c.dirs[i]), []byte("secret")); err != nil {
				t.Errorf("Serve = %v; want nil", err)
			}
		})
	}

	join := func(name, host, dir string, peers ...hosts.Peer) {
		s := must.Get(hosts.New(open(dir), hosts.Config{
			Host: host, Peers: peers, Secret: []byte("secret"), Piece: 100_000, Report: func(host, object string, err error) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.reports = append(c.reports, fmt.Sprintf("%s %s: %v", host, object, err))
			},
		}))(t)
		t.Cleanup(s.Close)
		c.stores[name] = s
	}
	join("this host and a peer", "host-0", c.dirs[0], peers[1])
	join("two peers", "host-2", t.TempDir(), peers...)
	return c
}

// flip changes a byte of a file on a host. Twice is as never.
func (c *copied) flip(t *testing.T, host int, name string, at int64) {
	t.Helper()
	path := filepath.Join(c.dirs[host], "step-1", name)
	b := must.Get(os.ReadFile(path))(t)
	b[at] ^= 1
	fi := must.Get(os.Stat(path))(t)
	must.Do(t, os.WriteFile(path, b, 0o666))
	must.Do(t, os.Chtimes(path, fi.ModTime(), fi.ModTime()))
}

// load loads a box of x and compares it with what was saved.
func (c *copied) load(t *testing.T, s blob.Store, box tensor.Box) error {
	t.Helper()
	step := must.Get(blob.NewSub(s, "step-1"))(t)
	l := shard.Boxes(map[int]tensor.Box{0: box})
	part := must.Get(shard.Empty(l, c.x.DType(), c.x.Shape(), 0))(t)
	small := [2]*tensor.Tensor{storagetest.Filled(t, tensor.Int16, []int64{40}, 0), storagetest.Filled(t, tensor.Int16, []int64{40}, 0)}
	err := storagetest.Load(t.Context(), at(step, nil, storage.ReadOptions{}), plan.State{"x": part, "a": small[0], "b": small[1]})
	if err == nil {
		same := tensor.Equal(part.Local(), storagetest.Cut(t, l, c.x, 0).Local())
		for i, x := range small {
			same = same && tensor.Equal(x, storagetest.Filled(t, tensor.Int16, []int64{40}, byte(i+1)))
		}
		if !same {
			t.Errorf("load of %v: other elements than were saved", box)
		}
	}
	return err
}

// A damaged tile is read from the other copy. If that is damaged too, the error names both
// hosts.
func TestDamagedCopies(t *testing.T) {
	c := newCopied(t)
	ck := must.Get(Format{}.Open(t.Context(), must.Get(blob.NewSub(c.stores["two peers"], "step-1"))(t)))(t)
	md := must.Get(ck.Metadata(t.Context()))(t)
	must.Do(t, ck.Close())
	x, _ := md.Find("x")
	a, _ := md.Find("a")
	loc, small := x.Tensor.Locs[0], a.Tensor.Locs[0]
	whole := tensor.Whole(c.x.Shape())

	for claim, d := range map[string]struct {
		at  int64
		box tensor.Box
	}{
		"the first byte of a whole tensor":     {loc.Offset, whole},
		"the last byte of a whole tensor":      {loc.Offset + loc.Length - 1, whole},
		"a byte of the second stripe, by rows": {loc.Offset + 1<<20 + 77, tensor.Box{Offsets: []int64{32, 0}, Sizes: []int64{32, 8192}}},
		"a byte of a row that is a part":       {loc.Offset + 5, tensor.Box{Offsets: []int64{0, 0}, Sizes: []int64{3, 8192}}},
		"a byte of the first band, by columns": {loc.Offset + 9*32<<10, tensor.Box{Offsets: []int64{0, 0}, Sizes: []int64{128, 100}}},
		"a byte of a small tensor":             {small.Offset + 3, tensor.Box{Offsets: []int64{0, 0}, Sizes: []int64{1, 1}}},
	} {
		for from, s := range c.stores {
			c.reports = nil
			c.flip(t, 0, loc.File, d.at)
			if err := c.load(t, s, d.box); err != nil {
				t.Errorf("%s, %s, one copy damaged: load = %v; want nil", claim, from, err)
			}
			fromFirst := func(r string) bool { return strings.HasPrefix(r, "host-0 ") && strings.Contains(r, "checksum") }
			if from == "this host and a peer" && !slices.ContainsFunc(c.reports, fromFirst) {
				t.Errorf("%s, %s: reports %q; want one of host-0", claim, from, c.reports)
			}

			c.flip(t, 1, loc.File, d.at)
			err := c.load(t, s, d.box)
			if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "host-0") || !strings.Contains(err.Error(), "host-1") {
				t.Errorf("%s, %s, both copies damaged: load = %v; want ErrCorrupt with both hosts", claim, from, err)
			}
			c.flip(t, 0, loc.File, d.at)
			c.flip(t, 1, loc.File, d.at)
		}
	}

	for from, s := range c.stores {
		c.reports = nil
		if err := c.load(t, s, whole); err != nil || len(c.reports) != 0 {
			t.Errorf("%s, no damage: load = %v, reports %q; want none", from, err, c.reports)
		}
	}
}

// A damaged index or record is read from the other copy too.
func TestDamagedDescriptions(t *testing.T) {
	c := newCopied(t)
	whole := tensor.Whole(c.x.Shape())
	size := func(name string) int64 {
		return must.Get(os.Stat(filepath.Join(c.dirs[0], "step-1", name)))(t).Size()
	}
	index, record := size("s-index.cairn"), size(recordName)
	for name, places := range map[string][]int64{
		"s-index.cairn": {0, 60, index / 2, index - indexTailSize - 1, index - indexTailSize, index - 1},
		recordName:      {0, record / 2, record - 20},
	} {
		for _, at := range places {
			for from, s := range c.stores {
				c.flip(t, 0, name, at)
				if err := c.load(t, s, whole); err != nil {
					t.Errorf("byte %d of %s, %s, one copy damaged: load = %v; want nil", at, name, from, err)
				}
				c.flip(t, 1, name, at)
				err := c.load(t, s, whole)
				if !isNamed(err) || !strings.Contains(err.Error(), "host-0") || !strings.Contains(err.Error(), "host-1") {
					t.Errorf("byte %d of %s, %s, both copies damaged: load = %v; want a named error with both hosts", at, name, from, err)
				}
				c.flip(t, 0, name, at)
				c.flip(t, 1, name, at)
			}
		}
	}
}

// endingStore calls end before the first read of a data file.
type endingStore struct {
	blob.Store
	end func(version string)
}

type endingReader struct {
	blob.Reader
	blob.CopyReader
	end func()
}

func (s *endingStore) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.Store.Open(ctx, name)
	if err != nil || !strings.HasSuffix(name, ".safetensors") {
		return r, err
	}
	version := r.(blob.VersionReader).Version()
	return &endingReader{r, r.(blob.CopyReader), func() { s.end(version) }}, nil
}

func (r *endingReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	r.end()
	return r.Reader.ReadAt(ctx, p, off)
}

// A load that has begun goes on with the copies if a host ends.
func TestHostEndsDuringALoad(t *testing.T) {
	c := newCopied(t)
	var once sync.Once
	var ended string
	s := &endingStore{Store: c.stores["two peers"], end: func(version string) {
		once.Do(func() {
			ended = version[strings.LastIndexByte(version, '@')+1:]
			c.stop[map[string]int{"host-0": 0, "host-1": 1}[ended]]()
		})
	}}
	if err := c.load(t, s, tensor.Whole(c.x.Shape())); err != nil {
		t.Errorf("load while %s ends = %v; want nil", ended, err)
	}
	silent := func(r string) bool {
		return strings.HasPrefix(r, ended+" ") && strings.Contains(r, hosts.ErrUnreachable.Error())
	}
	if ended == "" || !slices.ContainsFunc(c.reports, silent) || len(c.reports) != 1 {
		t.Errorf("host %q ended, reports %q; want one of it", ended, c.reports)
	}
}
