// Package blobtest tests whether a store keeps the contract of blob.Store. It does not
// depend on the medium: it uses only the methods of the store. Every store and every
// wrapper has a test that calls Run.
package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
)

// Run tests the whole contract, with a subtest for each claim. It calls open once for each
// subtest. open must return an empty store for this subtest alone. gaps are claims that the
// server of the store is known not to keep, with the reason; they are skipped.
func Run(t *testing.T, open func(t *testing.T) blob.Store, gaps ...Gap) {
	claims := slices.Concat(writing, ranging, reading, listing, naming, ending, sharing)
	for _, g := range gaps {
		if !slices.ContainsFunc(claims, func(c claim) bool { return c.name == g.Claim }) {
			t.Errorf("there is no claim %s", g.Claim)
		}
	}
	for _, c := range claims {
		t.Run(c.name, func(t *testing.T) {
			for _, g := range gaps {
				if g.Claim == c.name {
					t.Skip(g.Why)
				}
			}
			c.run(t, open(t))
		})
	}
}

// Gap is a claim that a server does not keep.
type Gap struct {
	Claim string // name of the subtest
	Why   string
}

// claim is a part of the contract and its test.
type claim struct {
	name string
	run  func(t *testing.T, s blob.Store)
}

// huge is a limit for ReadAll that no object here reaches.
const huge = 1 << 30

// put writes an object, or ends the test.
func put(t *testing.T, s blob.Store, name, data string) {
	t.Helper()
	if !tryPut(t, s, name, data) {
		t.FailNow()
	}
}

// tryPut writes an object. Any goroutine may call it.
func tryPut(t *testing.T, s blob.Store, name, data string) bool {
	t.Helper()
	_, err := blob.WriteAll(t.Context(), s, name, []byte(data), nil)
	if err != nil {
		t.Errorf("WriteAll(%q) = %v; want nil", name, err)
	}
	return err == nil
}

// version returns the version of an object, or ends the test.
func version(t *testing.T, s blob.Store, name string) string {
	t.Helper()
	info, err := s.Stat(t.Context(), name)
	if err != nil {
		t.Fatalf("Stat(%q) = %v; want nil", name, err)
	}
	return info.Version
}

// create returns a writer that is aborted at the end of the test.
func create(t *testing.T, s blob.Store, name string, opts *blob.CreateOptions) blob.Writer {
	t.Helper()
	w, err := s.Create(t.Context(), name, opts)
	if err != nil {
		t.Fatalf("Create(%q, %+v) = %v; want nil", name, opts, err)
	}
	t.Cleanup(func() { w.Abort() })
	return w
}

// write writes into w, or ends the test.
func write(t *testing.T, w blob.Writer, data string, off int64) {
	t.Helper()
	if err := w.WriteAt(t.Context(), []byte(data), off); err != nil {
		t.Fatalf("WriteAt(%d bytes, %d) = %v; want nil", len(data), off, err)
	}
}

// commit commits w.
func commit(t *testing.T, w blob.Writer) {
	t.Helper()
	if _, err := w.Commit(t.Context()); err != nil {
		t.Errorf("Commit = %v; want nil", err)
	}
}

// abort aborts w.
func abort(t *testing.T, w blob.Writer) {
	t.Helper()
	if err := w.Abort(); err != nil {
		t.Errorf("Abort = %v; want nil", err)
	}
}

// remove removes an object, which need not exist.
func remove(t *testing.T, s blob.Store, name string) {
	t.Helper()
	if err := s.Remove(t.Context(), name); err != nil {
		t.Errorf("Remove(%q) = %v; want nil", name, err)
	}
}

// open returns a reader that is closed at the end of the test.
func open(t *testing.T, s blob.Store, name string) blob.Reader {
	t.Helper()
	r, err := s.Open(t.Context(), name)
	if err != nil {
		t.Fatalf("Open(%q) = %v; want nil", name, err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// wantObject checks that Open, Stat and List find the object with these bytes.
func wantObject(t *testing.T, s blob.Store, name, data string) {
	t.Helper()
	got, err := blob.ReadAll(t.Context(), s, name, huge)
	if err != nil || string(got) != data {
		t.Errorf("ReadAll(%q) = %.40q of %d bytes, %v; want %.40q of %d bytes", name, got, len(got), err, data, len(data))
	}
	info, err := s.Stat(t.Context(), name)
	if err != nil || info.Name != name || info.Size != int64(len(data)) || info.ModTime.IsZero() {
		t.Errorf("Stat(%q) = %+v, %v; want size %d and a time", name, info, err, len(data))
	}
	if infos := list(t, s, name); len(infos) == 0 || infos[0].Name != name || infos[0].Size != info.Size {
		t.Errorf("List(%q) = %+v; want %+v first", name, infos, info)
	}
}

// wantNone checks that Open, Stat and List find no such object.
func wantNone(t *testing.T, s blob.Store, name string) {
	t.Helper()
	_, err := s.Open(t.Context(), name)
	wantErr(t, err, fs.ErrNotExist, "open", name)
	_, err = s.Stat(t.Context(), name)
	wantErr(t, err, fs.ErrNotExist, "stat", name)
	for _, info := range list(t, s, name) {
		if info.Name == name {
			t.Errorf("List(%q) has %+v; want it absent", name, info)
		}
	}
}

// wantErr checks that err wraps want and is a *blob.Error for op and name.
// A wrapper may use a longer name.
func wantErr(t *testing.T, err, want error, op, name string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s %q = %v; want an error that wraps %q", op, name, err, want)
		return
	}
	e, ok := errors.AsType[*blob.Error](err)
	if !ok || e.Op != op || !strings.HasSuffix(e.Name, name) {
		t.Errorf("%s %q = %v (%T); want a *blob.Error that names both", op, name, err, err)
	}
}

// list returns the objects with names that begin with prefix.
func list(t *testing.T, s blob.Store, prefix string) []blob.Info {
	t.Helper()
	var infos []blob.Info
	for info, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("List(%q) = %v; want no error", prefix, err)
		}
		infos = append(infos, info)
	}
	return infos
}

// wantNames checks the names of the objects that begin with prefix.
func wantNames(t *testing.T, s blob.Store, prefix string, want []string) {
	t.Helper()
	var got []string
	for _, info := range list(t, s, prefix) {
		got = append(got, info.Name)
	}
	if !slices.Equal(want, got) {
		t.Errorf("List(%q), -want +got:\n%s", prefix, cmp.Diff(want, got))
	}
}

// inParallel calls fn with 0 to n-1 from several goroutines.
func inParallel(goroutines, n int, fn func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				fn(int(i - 1))
			}
		})
	}
	wg.Wait()
}

// pattern returns n pseudorandom bytes.
func pattern(n int, seed uint64) []byte {
	p := blob.AlignedBytes(n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	r.Read(p)
	return p
}

// cancelled returns a context that was cancelled because of cause.
func cancelled(ctx context.Context, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	return ctx
}

// badNames are refused by every method.
var badNames = []string{
	"", ".", "..", "/", "/a", "a/", "a//b", "a/./b", "a/../b", "../a", "a/..", "./a", "a\\b", "a\x00b", "a\nb", "a\x7f", "a\u0085b",
	"a\xffb", blob.Reserved + "x", "a/" + blob.Reserved + "x/b", strings.Repeat("e", blob.MaxElement+1),
	strings.Repeat("a/", blob.MaxName/2) + "b",
}

// badPrefixes are not the beginning of any name.
var badPrefixes = []string{"/", "//", "../", "a//", "a/./", "a/../b", "./", "a\x00", "\\", "a\xff", blob.Reserved, "a/" + blob.Reserved + "x"}

var naming = []claim{
	{"BadNamesRefused", func(t *testing.T, s blob.Store) {
		for _, name := range badNames {
			_, err := s.Create(t.Context(), name, nil)
			wantErr(t, err, blob.ErrName, "create", name)
			_, err = s.Open(t.Context(), name)
			wantErr(t, err, blob.ErrName, "open", name)
			_, err = s.Stat(t.Context(), name)
			wantErr(t, err, blob.ErrName, "stat", name)
			wantErr(t, s.Remove(t.Context(), name), blob.ErrName, "remove", name)
		}
	}},
	{"OddNamesAccepted", func(t *testing.T, s blob.Store) {
		odd := []string{
			" ", "a b", " a/ b ", "…", "世界/ñandú", "a+b&c=d?e#f%20", "a'b\"c", "*", "-rf", "~", "$HOME", ".metadata", "...", "a..b", "..a/b..",
			".cairn", strings.Repeat("e", blob.MaxElement), strings.Repeat("deep/", 100) + "x",
		}
		for _, name := range odd {
			put(t, s, name, "I am "+name)
		}
		for _, name := range odd {
			wantObject(t, s, name, "I am "+name)
		}
		for _, name := range odd {
			remove(t, s, name)
		}
		wantNames(t, s, "", nil)
	}},
	{"NoDirectories", func(t *testing.T, s blob.Store) {
		put(t, s, "a/b/c", "hello")
		wantNone(t, s, "a")
		wantNone(t, s, "a/b")
		remove(t, s, "a/b/c")
		for _, name := range []string{"a/b", "a"} { // names of former directories
			put(t, s, name, "I am "+name)
			wantObject(t, s, name, "I am "+name)
			remove(t, s, name)
		}
	}},
	{"NestedNamesHeldOrRefused", func(t *testing.T, s blob.Store) {
		put(t, s, "a", "leaf")
		put(t, s, "b/c", "leaf")
		for _, name := range []string{"a/b", "a/b/c", "b"} {
			for _, ifAbsent := range []bool{true, false} {
				_, err := blob.WriteAll(t.Context(), s, name, []byte("I am "+name), &blob.CreateOptions{IfAbsent: ifAbsent})
				if err == nil {
					wantObject(t, s, name, "I am "+name)
				} else {
					wantNone(t, s, name)
				}
				if err != nil && !errors.Is(err, blob.ErrNested) || errors.Is(err, fs.ErrExist) {
					t.Errorf("WriteAll(%q) = %v; want nil or ErrNested alone", name, err)
				}
				remove(t, s, name)
			}
		}
		wantObject(t, s, "a", "leaf")
		wantObject(t, s, "b/c", "leaf")
	}},
	{"StringAndErrorsNameTheStoreAndTheObject", func(t *testing.T, s blob.Store) {
		if s.String() == "" {
			t.Error("String is empty; want a path or a URL")
		}
		_, err := s.Stat(t.Context(), "no such thing")
		if err == nil || !strings.Contains(err.Error(), "no such thing") {
			t.Errorf("Stat = %v; want an error that names the object", err)
		}
	}},
}

// many is more than a page of the listings of object stores.
const many = 2100

var listing = []claim{
	{"EmptyStoreListsNothing", func(t *testing.T, s blob.Store) {
		for _, prefix := range []string{"", "a", "a/", "a/b"} {
			wantNames(t, s, prefix, nil)
		}
	}},
	{"ListInOrderOfNames", func(t *testing.T, s blob.Store) {
		want := []string{
			"A", "a!/x", "a-b", "a.b", "a/b", "a/b!", "a/b-c/d", "a/b0/c/d", "a/c", "a0", "a01", "aa/b", "b", "ä", "世/界",
		}
		for _, n := range slices.Backward(want) {
			put(t, s, n, n)
		}
		wantNames(t, s, "", want)
	}},
	{"ListByPrefix", func(t *testing.T, s blob.Store) {
		all := []string{".hidden", "..a", "run/1/a", "run/1/b", "run/10/a", "run/2/a", "runner", "x"}
		slices.Sort(all)
		for _, n := range all {
			put(t, s, n, n)
		}
		for _, prefix := range []string{"", "r", "run", "run/", "run/1", "run/1/", "run/1/a", "run/1/a/", "run/3", "s", ".", "..", "x/", "runners"} {
			want := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return !strings.HasPrefix(n, prefix) })
			wantNames(t, s, prefix, want)
		}
	}},
	{"ListAgreesWithStat", func(t *testing.T, s blob.Store) {
		put(t, s, "a/b", "hello")
		info, err := s.Stat(t.Context(), "a/b")
		if err != nil {
			t.Fatal(err)
		}
		got := list(t, s, "a/b")
		if len(got) != 1 || got[0].Name != info.Name || got[0].Size != info.Size || !got[0].ModTime.Equal(info.ModTime) {
			t.Errorf("List = %+v; want %+v, as from Stat", got, info)
		}
	}},
	{"ListManyAndBreakEarly", func(t *testing.T, s blob.Store) {
		want := putMany(t, s, many)
		wantNames(t, s, "", want)
		var got []string
		for info, err := range s.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, info.Name); len(got) == 1234 {
				break
			}
		}
		if diff := cmp.Diff(want[:1234], got); diff != "" {
			t.Errorf("List left after 1234, -want +got:\n%s", diff)
		}
	}},
	{"ListTwice", func(t *testing.T, s blob.Store) {
		put(t, s, "a", "1")
		seq := s.List(t.Context(), "")
		for range 2 {
			n := 0
			for _, err := range seq {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			if n != 1 {
				t.Errorf("the sequence gave %d objects; want 1 each time", n)
			}
		}
	}},
	{"LoopMayUseTheStore", func(t *testing.T, s blob.Store) {
		want := []string{"a/1", "a/2", "a/3", "b"}
		for _, n := range want {
			put(t, s, n, n)
		}
		var got []string
		for info, err := range s.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, info.Name)
			wantObject(t, s, info.Name, info.Name)
			remove(t, s, info.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("List while removing, -want +got:\n%s", diff)
		}
		wantNames(t, s, "", nil)
	}},
	{"BadPrefixRefused", func(t *testing.T, s blob.Store) {
		put(t, s, "a", "1")
		for _, prefix := range badPrefixes {
			n := 0
			for _, err := range s.List(t.Context(), prefix) {
				wantErr(t, err, blob.ErrName, "list", prefix)
				n++
			}
			if n != 1 {
				t.Errorf("List(%q) yielded %d times; want one error", prefix, n)
			}
		}
	}},
}

// putMany writes n small objects in parallel and returns their names in order.
func putMany(t *testing.T, s blob.Store, n int) []string {
	t.Helper()
	all := make([]string, n)
	inParallel(64, n, func(i int) { // so that the syncs of a slow disk share their wait
		all[i] = fmt.Sprintf("run/%02d/%04d", i%7, i)
		tryPut(t, s, all[i], all[i])
	})
	slices.Sort(all)
	return all
}

var reading = []claim{
	{"MissingObject", func(t *testing.T, s blob.Store) {
		wantNone(t, s, "x")
		put(t, s, "x", "hello")
		for _, name := range []string{"y", "x/y", "x/y/z", "X", "xx", "x "} {
			wantNone(t, s, name)
		}
	}},
	{"EveryRange", func(t *testing.T, s blob.Store) {
		const data = "0123456789"
		put(t, s, "x", data)
		r := open(t, s, "x")
		if r.Size() != 10 {
			t.Errorf("Size = %d; want 10", r.Size())
		}
		for off := range 11 {
			for end := off; end <= 10; end++ {
				p := make([]byte, end-off)
				if err := r.ReadAt(t.Context(), p, int64(off)); err != nil || string(p) != data[off:end] {
					t.Errorf("ReadAt(%d bytes, %d) = %q, %v; want %q", len(p), off, p, err, data[off:end])
				}
			}
		}
	}},
	{"BeyondTheEnd", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "0123456789")
		put(t, s, "empty", "")
		for _, c := range []struct {
			name string
			n    int
			off  int64
		}{
			{"x", 11, 0}, {"x", 1, 10}, {"x", 2, 9}, {"x", 1, 11}, {"x", 0, 11}, {"x", 1, -1}, {"x", 0, -1},
			{"x", 1, math.MaxInt64}, {"x", 5, math.MinInt64}, {"empty", 1, 0}, {"empty", 0, 1},
		} {
			wantErr(t, open(t, s, c.name).ReadAt(t.Context(), make([]byte, c.n), c.off), blob.ErrRange, "read", c.name)
		}
	}},
	{"EmptyRead", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "")
		if err := open(t, s, "x").ReadAt(t.Context(), nil, 0); err != nil {
			t.Errorf("ReadAt(nothing, 0) = %v; want nil", err)
		}
	}},
	{"ReadFillsOnlyItsPart", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "0123456789")
		p := []byte("........")
		if err := open(t, s, "x").ReadAt(t.Context(), p[2:5], 4); err != nil || string(p) != "..456..." {
			t.Errorf("ReadAt(p[2:5], 4): p = %q, %v; want %q", p, err, "..456...")
		}
	}},
	{"LargeReads", func(t *testing.T, s blob.Store) {
		data := pattern(5*blob.Align+77, 3)
		put(t, s, "x", string(data))
		cool(t, s, "x")
		r := open(t, s, "x")
		for _, c := range [][2]int64{{0, 1}, {0, r.Size()}, {1, r.Size() - 1}, {blob.Align, blob.Align}, {blob.Align - 1, 2}, {r.Size() - 1, 1}, {r.Size(), 0}, {3*blob.Align - 5, blob.Align + 99}} {
			off, n := c[0], c[1]
			got, err := blob.ReadLarge(t.Context(), r, blob.AlignedBytes(int(n)+2*blob.Align), off, n)
			if err != nil || !bytes.Equal(got, data[off:off+n]) {
				t.Errorf("ReadLarge(%d bytes at %d) = %d bytes, %v; want the bytes of the object", n, off, len(got), err)
			}
		}
		d, ok := r.(blob.DirectReader)
		if !ok {
			return
		}
		buf := blob.AlignedBytes(10 * blob.Align)
		for _, c := range [][2]int64{{0, r.Size() + 1}, {r.Size(), 1}, {-1, 1}, {math.MaxInt64, 1}} {
			_, err := d.ReadDirect(t.Context(), buf, c[0], c[1])
			wantErr(t, err, blob.ErrRange, "read", "x")
		}
		_, err := d.ReadDirect(cancelled(t.Context(), errWhy), buf, 0, 10)
		wantErr(t, err, errWhy, "read", "x")
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = d.ReadDirect(t.Context(), buf, 0, 10)
		wantErr(t, err, blob.ErrClosed, "read", "x")
	}},
	{"CopiesAreRead", func(t *testing.T, s blob.Store) {
		const data = "0123456789"
		put(t, s, "x", data)
		r := open(t, s, "x")
		c, ok := r.(blob.CopyReader)
		if !ok {
			return
		}
		places, err := c.Copies(t.Context())
		if err != nil || len(places) == 0 {
			t.Fatalf("Copies = %v, %v; want one at least", places, err)
		}
		for n, place := range places {
			p := make([]byte, 4)
			if err := c.ReadCopy(t.Context(), n, p, 3); err != nil || string(p) != data[3:7] {
				t.Errorf("ReadCopy(%d), at %s = %q, %v; want %q", n, place, p, err, data[3:7])
			}
			wantErr(t, c.ReadCopy(t.Context(), n, p, 7), blob.ErrRange, "read", "x")
			wantErr(t, c.ReadCopy(cancelled(t.Context(), errWhy), n, p, 3), errWhy, "read", "x")
		}
		for _, n := range []int{-1, len(places)} {
			if c.ReadCopy(t.Context(), n, make([]byte, 1), 0) == nil {
				t.Errorf("ReadCopy(%d) of %d copies = nil; want an error", n, len(places))
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, c.ReadCopy(t.Context(), 0, make([]byte, 1), 0), blob.ErrClosed, "read", "x")
	}},
	{"ReaderFailsAfterClose", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "hello")
		r := open(t, s, "x")
		for range 2 {
			if err := r.Close(); err != nil {
				t.Errorf("Close = %v; want nil", err)
			}
		}
		wantErr(t, r.ReadAt(t.Context(), make([]byte, 1), 0), blob.ErrClosed, "read", "x")
	}},
	{"ReaderAcrossReplacement", func(t *testing.T, s blob.Store) {
		old, young := pattern(300<<10, 1), pattern(200<<10, 2)
		put(t, s, "x", string(old))
		r := open(t, s, "x")
		half := make([]byte, 100<<10)
		if err := r.ReadAt(t.Context(), half, 0); err != nil {
			t.Fatal(err)
		}
		put(t, s, "x", string(young))
		wantOldOrError(t, r, old)
		wantObject(t, s, "x", string(young))
	}},
	{"ReaderAcrossRemoval", func(t *testing.T, s blob.Store) {
		old := pattern(300<<10, 1)
		put(t, s, "x", string(old))
		r := open(t, s, "x")
		remove(t, s, "x")
		wantOldOrError(t, r, old)
		_, err := s.Open(t.Context(), "x")
		wantErr(t, err, fs.ErrNotExist, "open", "x")
	}},
	{"ReadAllRefusesLargeObjects", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "hello")
		_, err := blob.ReadAll(t.Context(), s, "x", 4)
		wantErr(t, err, blob.ErrTooLarge, "read", "x")
		if got, err := blob.ReadAll(t.Context(), s, "x", 5); err != nil || string(got) != "hello" {
			t.Errorf("ReadAll(max 5) = %q, %v; want hello", got, err)
		}
	}},
}

// wantOldOrError checks that a reader of a removed or replaced object returns the bytes of
// the old object, in each range, or an error.
func wantOldOrError(t *testing.T, r blob.Reader, old []byte) {
	t.Helper()
	if r.Size() != int64(len(old)) {
		t.Errorf("Size = %d; want %d, the size of the old object", r.Size(), len(old))
	}
	const n = 50 << 10
	for off := 0; off < len(old); off += n {
		p := make([]byte, n)
		err := r.ReadAt(t.Context(), p, int64(off))
		if err == nil && !bytes.Equal(p, old[off:off+n]) {
			t.Errorf("ReadAt(%d) differs from the old object", off)
		}
	}
}

// cool drops an object from the system's cache, if the store can.
func cool(t *testing.T, s blob.Store, name string) {
	t.Helper()
	if c, ok := blob.As[blob.Cooler](s); ok {
		if err := c.Cool(t.Context(), name); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Fatal(err)
		}
	}
}
