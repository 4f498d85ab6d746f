package hosts

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// A store with peers keeps the contract, wherever the objects are.
func TestStore(t *testing.T) {
	t.Run("local", func(t *testing.T) {
		blobtest.Run(t, func(t *testing.T) blob.Store {
			b, c := newHost(t), newHost(t)
			return join(t, folder(t), Config{}, b.addr, c.addr)
		})
	})
	t.Run("of a peer", func(t *testing.T) {
		blobtest.Run(t, func(t *testing.T) blob.Store {
			b, c := newHost(t), newHost(t)
			return &elsewhere{join(t, folder(t), Config{Piece: 64 << 10}, b.addr, c.addr), c}
		})
	})
}

// A server of a store without files sends the same bytes, and the errors of the store.
func TestServeStoreWithoutFiles(t *testing.T) {
	ctx := t.Context()
	far := &failing{Store: new(mem.Store)}
	addr, _ := startServer(t, &server{store: far, secret: secret, stall: defaultStall, handshake: defaultStall})
	s := join(t, folder(t), Config{Piece: 1000}, addr)
	data := noise(4321)
	put(t, far, "x", data)
	put(t, far, "bad", data)
	if got, err := readAll(ctx, s, "x"); err != nil || !bytes.Equal(got, data) {
		t.Errorf("ReadAll = %d bytes, %v; want the bytes", len(got), err)
	}
	must.Do(t, s.Fetch(ctx, "x", 4321, sumOf(data)))

	_, err := readAll(ctx, s, "bad")
	wantUnreachable(t, "ReadAll of an object that cannot be read", err, "b")
	if got := must.Get(names(ctx, s, ""))(t); !slices.Equal(got, []string{"bad", "x"}) {
		t.Errorf("List = %v; want bad and x", got)
	}
	far.lists.Store(true)
	_, err = names(ctx, s, "")
	wantUnreachable(t, "List that fails on the peer", err, "b")
}

var errOnPurpose = errors.New("failed on purpose")

// failing is a store in which the object "bad" cannot be read, and lists fail if that is set.
type failing struct {
	*mem.Store
	lists atomic.Bool
}

func (s *failing) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		for info, err := range s.Store.List(ctx, prefix) {
			if !yield(info, err) {
				return
			}
		}
		if s.lists.Load() {
			yield(blob.Info{}, errOnPurpose)
		}
	}
}

func (s *failing) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.Store.Open(ctx, name)
	if err != nil || name != "bad" {
		return r, err
	}
	return badReader{r, r.(blob.VersionReader)}, nil
}

type badReader struct {
	blob.Reader
	blob.VersionReader
}

func (badReader) ReadAt(context.Context, []byte, int64) error { return errOnPurpose }

// elsewhere is a store whose writers write on host c, so that all reads cross the network.
type elsewhere struct {
	*Store
	far *host
}

func (e *elsewhere) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	if opts != nil {
		o := *opts
		o.IfVersion = strings.TrimSuffix(o.IfVersion, "@c")
		opts = &o
	}
	w, err := e.far.Create(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return farWriter{w}, nil
}

type farWriter struct{ blob.Writer }

func (w farWriter) Commit(ctx context.Context) (blob.Info, error) {
	info, err := w.Writer.Commit(ctx)
	if err == nil {
		info.Version += "@c"
	}
	return info, err
}

// names returns the names of a list, and its error.
func names(ctx context.Context, s blob.Store, prefix string) (out []string, err error) {
	for info, err := range s.List(ctx, prefix) {
		if err != nil {
			return out, err
		}
		out = append(out, info.Name)
	}
	return out, nil
}

func TestObjectsOfAllHosts(t *testing.T) {
	ctx := t.Context()
	b, c := newHost(t), newHost(t)
	local := folder(t)
	s := join(t, local, Config{}, b.addr, c.addr)

	put(t, local, "run/x", []byte("of a"))
	put(t, b, "run/x", []byte("of b, longer"))
	put(t, b, "run/y", []byte("of b"))
	put(t, c, "run/y", []byte("of b"))
	put(t, c, "z", []byte("of c"))

	if got := must.Get(names(ctx, s, ""))(t); !slices.Equal(got, []string{"run/x", "run/y", "z"}) {
		t.Errorf("List = %v; want each object once", got)
	}
	if got := must.Get(names(ctx, s, "run/"))(t); !slices.Equal(got, []string{"run/x", "run/y"}) {
		t.Errorf("List(run/) = %v; want the objects with the prefix", got)
	}
	if got := must.Get(s.Folders(ctx, ""))(t); !slices.Equal(got, []string{"run"}) {
		t.Errorf("Folders = %v; want run", got)
	}
	for name, want := range map[string]string{"run/x": "of a", "run/y": "of b", "z": "of c"} {
		if got, err := readAll(ctx, s, name); err != nil || string(got) != want {
			t.Errorf("ReadAll(%s) = %q, %v; want %q", name, got, err, want)
		}
	}

	x, z := must.Get(s.Stat(ctx, "run/x"))(t), must.Get(s.Stat(ctx, "z"))(t)
	if x.Version != must.Get(local.Stat(ctx, "run/x"))(t).Version || z.Version != must.Get(c.Stat(ctx, "z"))(t).Version+"@c" {
		t.Errorf("versions %q and %q; want the local one, and the one of c", x.Version, z.Version)
	}

	must.Do(t, s.Remove(ctx, "run/y"))
	for _, of := range []blob.Store{s, b, c} {
		if _, err := of.Stat(ctx, "run/y"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Stat in %s after Remove = %v; want fs.ErrNotExist", of, err)
		}
	}
	if m := s.Traffic(); m.Requests == 0 || m.Received == 0 {
		t.Errorf("Traffic = %+v; want requests and bytes", m)
	}
}

// A removal on a condition is decided by the host that the version names, and reaches all hosts.
func TestRemoveVersion(t *testing.T) {
	ctx := t.Context()
	b, c := newHost(t), newHost(t)
	s := join(t, folder(t), Config{}, b.addr, c.addr)
	put(t, b, "x", []byte("old"))
	info := must.Get(s.Stat(ctx, "x"))(t)
	put(t, b, "x", []byte("newer"))
	put(t, c, "x", []byte("newer"))

	if err := s.RemoveVersion(ctx, "x", info.Version); !errors.Is(err, blob.ErrChanged) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("RemoveVersion of the old version = %v; want ErrChanged", err)
	}
	must.Do(t, s.RemoveVersion(ctx, "x", must.Get(b.Stat(ctx, "x"))(t).Version+"@b"))
	if got := must.Get(names(ctx, s, ""))(t); len(got) != 0 {
		t.Errorf("List = %v; want no object on any host", got)
	}
	if err := s.RemoveVersion(ctx, "x", info.Version); !errors.Is(err, blob.ErrRemoved) {
		t.Errorf("RemoveVersion of a removed object = %v; want ErrRemoved", err)
	}
}

// A reader of a peer's object notices that the object was replaced.
func TestReplacedObject(t *testing.T) {
	ctx := t.Context()
	b := newHost(t)
	s := join(t, folder(t), Config{}, b.addr)
	old := put(t, b, "x", []byte("old bytes"))
	r := must.Get(s.Open(ctx, "x"))(t)
	defer r.Close()
	put(t, b, "x", []byte("new bytes"))
	if err := r.ReadAt(ctx, make([]byte, 3), 0); !errors.Is(err, blob.ErrChanged) {
		t.Errorf("ReadAt after a replacement = %v; want ErrChanged", err)
	}

	old.Version += "@b"
	known := must.Get(s.OpenKnown(ctx, old))(t)
	defer known.Close()
	if err := known.ReadAt(ctx, make([]byte, 3), 0); !errors.Is(err, blob.ErrChanged) {
		t.Errorf("ReadAt of the old version = %v; want ErrChanged", err)
	}
	must.Do(t, b.Remove(ctx, "x"))
	if err := known.ReadAt(ctx, make([]byte, 3), 0); !errors.Is(err, blob.ErrChanged) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadAt after a removal = %v; want ErrChanged alone: another host may have a copy", err)
	}
}

// An object that only another host has is replaced by an object of this host, if it is unchanged.
func TestReplacedObjectOfAnotherHost(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, b *host, local *file.Store) // before the commit
		err    error
	}{
		"unchanged": {func(*testing.T, *host, *file.Store) {}, nil},
		"replaced":  {func(t *testing.T, b *host, _ *file.Store) { put(t, b.Store, "x", []byte("other")) }, blob.ErrChanged},
		"removed":   {func(t *testing.T, b *host, _ *file.Store) { must.Do(t, b.Store.Remove(t.Context(), "x")) }, blob.ErrRemoved},
		"silent":    {func(_ *testing.T, b *host, _ *file.Store) { b.stop() }, ErrUnreachable},
		"here":      {func(t *testing.T, _ *host, local *file.Store) { put(t, local, "x", []byte("mine")) }, blob.ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, b, local := t.Context(), newHost(t), folder(t)
			s := join(t, local, Config{}, b.addr)
			put(t, b.Store, "x", []byte("old"))
			info := must.Get(s.Stat(ctx, "x"))(t)
			w := must.Get(s.Create(ctx, "x", &blob.CreateOptions{IfVersion: info.Version}))(t)
			defer w.Abort()
			must.Do(t, w.WriteAt(ctx, []byte("new"), 0))
			c.change(t, b, local)
			if _, err := w.Commit(ctx); !errors.Is(err, c.err) {
				t.Fatalf("Commit = %v; want %v", err, c.err)
			}
			if got, err := readAll(ctx, local, "x"); c.err == nil && string(got) != "new" {
				t.Errorf("this host has %q, %v; want the new object", got, err)
			}
		})
	}
}

// A version that was seen on a peer can be opened after a copy has come to this host.
func TestOpenKnownAfterFetch(t *testing.T) {
	ctx := t.Context()
	b := newHost(t)
	s := join(t, folder(t), Config{}, b.addr)
	put(t, b, "x", []byte("bytes"))
	seen := must.Get(s.Stat(ctx, "x"))(t)
	must.Do(t, s.Fetch(ctx, "x", 5, sumOf([]byte("bytes"))))

	for _, o := range []blob.Info{seen, {Name: "x", Size: 5}, must.Get(s.Stat(ctx, "x"))(t)} {
		r := must.Get(s.OpenKnown(ctx, o))(t)
		p := make([]byte, 5)
		if err := r.ReadAt(ctx, p, 0); err != nil || string(p) != "bytes" {
			t.Errorf("read of version %q = %q, %v; want bytes", o.Version, p, err)
		}
		r.Close()
	}
	if _, err := s.OpenKnown(ctx, blob.Info{Name: "x", Size: 5, Version: "another"}); !errors.Is(err, blob.ErrChanged) {
		t.Errorf("OpenKnown of another version = %v; want ErrChanged", err)
	}
}

// Large ranges are read in pieces, whatever their bounds are.
func TestReadsInPieces(t *testing.T) {
	ctx := t.Context()
	b := newHost(t)
	s := join(t, folder(t), Config{Piece: 1000, Parallel: 3}, b.addr)
	data := noise(10_001)
	put(t, b, "x", data)
	r := must.Get(s.Open(ctx, "x"))(t)
	defer r.Close()
	for _, c := range [][2]int{{0, 10_001}, {1, 10_000}, {999, 2}, {1000, 1000}, {5555, 4446}, {10_001, 0}} {
		p := make([]byte, c[1])
		if err := r.ReadAt(ctx, p, int64(c[0])); err != nil || !bytes.Equal(p, data[c[0]:c[0]+c[1]]) {
			t.Errorf("ReadAt(%d bytes, %d) = %v; want the bytes of the object", c[1], c[0], err)
		}
	}
}

// A copy on another host has the same name and size; its bytes may differ.
func TestCopies(t *testing.T) {
	ctx := t.Context()
	b, c, d := newHost(t), newHost(t), newHost(t)
	local := folder(t)
	s := join(t, local, Config{}, b.addr, c.addr, d.addr)
	put(t, b, "x", []byte("of b"))
	put(t, c, "x", []byte("longer"))

	r := must.Get(s.Open(ctx, "x"))(t).(blob.CopyReader)
	defer r.(blob.Reader).Close()
	first := must.Get(r.Copies(ctx))(t)
	if len(first) != 1 {
		t.Fatalf("Copies = %v; want one, because the sizes differ", first)
	}

	put(t, local, "y", []byte("of a"))
	put(t, d, "y", []byte("of d"))
	for _, want := range [][]string{{"a", "d"}, {"a", "d"}} { // asked once, then remembered
		y := must.Get(s.Open(ctx, "y"))(t)
		defer y.Close()
		got := must.Get(y.(blob.CopyReader).Copies(ctx))(t)
		if !slices.Equal(got, want) {
			t.Errorf("Copies = %v; want %v", got, want)
		}
		for i, host := range got {
			p := make([]byte, 4)
			if err := y.(blob.CopyReader).ReadCopy(ctx, i, p, 0); err != nil || string(p) != "of "+host {
				t.Errorf("ReadCopy(%d) = %q, %v; want of %s", i, p, err, host)
			}
		}
		if err := y.(blob.CopyReader).ReadCopy(ctx, 2, nil, 0); !errors.Is(err, blob.ErrRange) {
			t.Errorf("ReadCopy(2) = %v; want ErrRange", err)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	local := folder(t)
	for claim, c := range map[string]Config{
		"no secret":            {},
		"a negative rate":      {Secret: secret, Rate: -1},
		"a host without name":  {Secret: secret, Peers: []Peer{{Addr: "x:1"}}},
		"a name with @":        {Secret: secret, Peers: []Peer{{Host: "b@c"}}},
		"the same name twice":  {Secret: secret, Peers: []Peer{{Host: "b"}, {Host: "b"}}},
		"the name of this one": {Secret: secret, Host: "a", Peers: []Peer{{Host: "a"}}},
	} {
		if s, err := New(local, c); err == nil {
			s.Close()
			t.Errorf("%s: New = nil; want an error", claim)
		}
	}
	if _, err := New(unversioned{local}, Config{Secret: secret}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("New of a store without versions = %v; want errors.ErrUnsupported", err)
	}
}

type unversioned struct{ Local }

// The kernel sends files: a reader of the local store has one.
func TestReadersHaveFiles(t *testing.T) {
	local := folder(t)
	put(t, local, "x", []byte("bytes"))
	r := must.Get(local.Open(t.Context(), "x"))(t)
	defer r.Close()
	f, ok := r.(blob.FileReader)
	if !ok {
		t.Fatalf("%T is not a blob.FileReader", r)
	}
	if got := must.Get(os.ReadFile(f.File().Name()))(t); string(got) != "bytes" {
		t.Errorf("the file has %q; want bytes", got)
	}
}
