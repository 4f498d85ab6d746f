package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
)

var writing = []claim{
	{"ObjectInvisibleUntilCommit", func(t *testing.T, s blob.Store) {
		w := create(t, s, "a/b", nil)
		wantNone(t, s, "a/b")
		write(t, w, "hello", 0)
		wantNone(t, s, "a/b")
		info, err := w.Commit(t.Context())
		if err != nil || info.Name != "a/b" || info.Size != 5 || info.ModTime.IsZero() {
			t.Fatalf("Commit = %+v, %v; want a/b of 5 bytes and a time", info, err)
		}
		wantObject(t, s, "a/b", "hello")
	}},
	{"AbortLeavesNothing", func(t *testing.T, s blob.Store) {
		w := create(t, s, "a/b", nil)
		write(t, w, "hello", 0)
		abort(t, w)
		wantNone(t, s, "a/b")
		wantNames(t, s, "", nil)
		put(t, s, "a", "in place of the directory") // so a/ does not exist any more
	}},
	{"AbortKeepsOlderObject", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "old")
		w := create(t, s, "x", nil)
		write(t, w, "newer", 0)
		abort(t, w)
		wantObject(t, s, "x", "old")
	}},
	{"WriterFailsAfterCommit", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		write(t, w, "hello", 0)
		commit(t, w)
		wantEnded(t, w)
		wantObject(t, s, "x", "hello")
	}},
	{"WriterFailsAfterAbort", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		abort(t, w)
		wantEnded(t, w)
		wantNone(t, s, "x")
	}},
	{"WriterFailsAfterFailedCommit", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", &blob.CreateOptions{Size: 9})
		write(t, w, "hello", 0)
		_, err := w.Commit(t.Context())
		wantErr(t, err, blob.ErrRange, "commit", "x")
		wantEnded(t, w)
		wantNone(t, s, "x")
	}},
	{"WriteKeepsNoMemory", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		p := []byte("hello")
		if err := w.WriteAt(t.Context(), p, 0); err != nil {
			t.Fatal(err)
		}
		copy(p, "XXXXX")
		commit(t, w)
		wantObject(t, s, "x", "hello")
	}},
	{"CommitReplaces", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "a long old object")
		put(t, s, "x", "new")
		wantObject(t, s, "x", "new")
		put(t, s, "x", "")
		wantObject(t, s, "x", "")
	}},
	{"IfAbsent", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", &blob.CreateOptions{IfAbsent: true})
		late := create(t, s, "x", &blob.CreateOptions{IfAbsent: true})
		write(t, w, "first", 0)
		write(t, late, "second", 0)
		commit(t, w)
		_, err := late.Commit(t.Context())
		wantErr(t, err, fs.ErrExist, "commit", "x")
		wantEnded(t, late)
		wantObject(t, s, "x", "first")
		put(t, s, "x", "without the option it is replaced")
		remove(t, s, "x")
		if _, err := blob.WriteAll(t.Context(), s, "x", []byte("again"), &blob.CreateOptions{IfAbsent: true}); err != nil {
			t.Errorf("WriteAll with IfAbsent after Remove = %v; want nil", err)
		}
	}},
	{"IfVersion", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "first")
		first, err := s.Stat(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if first.Version == "" { // the store has no versions
			_, err := s.Create(t.Context(), "x", &blob.CreateOptions{IfVersion: "1"})
			wantErr(t, err, errors.ErrUnsupported, "create", "x")
			return
		}
		opts := &blob.CreateOptions{IfVersion: first.Version}
		w, late := create(t, s, "x", opts), create(t, s, "x", opts)
		write(t, w, "second", 0)
		write(t, late, "third", 0)
		commit(t, w)
		_, err = late.Commit(t.Context())
		wantErr(t, err, blob.ErrChanged, "commit", "x")
		wantEnded(t, late)
		wantObject(t, s, "x", "second")
		gone := create(t, s, "x", opts)
		write(t, gone, "fourth", 0)
		remove(t, s, "x")
		_, err = gone.Commit(t.Context())
		wantErr(t, err, blob.ErrChanged, "commit", "x")
		wantNone(t, s, "x")
	}},
	{"RemoveVersion", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "first")
		first := version(t, s, "x")
		if first == "" { // the store has no versions
			wantErr(t, blob.RemoveVersion(t.Context(), s, "x", ""), errors.ErrUnsupported, "remove", "x")
			return
		}
		put(t, s, "x", "second")
		wantErr(t, blob.RemoveVersion(t.Context(), s, "x", first), blob.ErrChanged, "remove", "x")
		wantObject(t, s, "x", "second")
		second := version(t, s, "x")
		w := create(t, s, "x", &blob.CreateOptions{IfVersion: second})
		write(t, w, "third", 0)
		if err := blob.RemoveVersion(t.Context(), s, "x", second); err != nil {
			t.Errorf("RemoveVersion = %v; want nil", err)
		}
		wantNone(t, s, "x")
		_, err := w.Commit(t.Context())
		wantErr(t, err, blob.ErrChanged, "commit", "x")
		wantNone(t, s, "x")
		err = blob.RemoveVersion(t.Context(), s, "x", second)
		wantErr(t, err, blob.ErrChanged, "remove", "x")
		wantErr(t, err, fs.ErrNotExist, "remove", "x")
	}},
	{"OneOfRemovalAndReplacementWins", func(t *testing.T, s blob.Store) {
		for i := range 10 {
			put(t, s, "x", fmt.Sprint("old ", i))
			old := version(t, s, "x")
			if old == "" {
				return // the store has no versions
			}
			w := create(t, s, "x", &blob.CreateOptions{IfVersion: old})
			write(t, w, fmt.Sprint("new ", i), 0)
			var wg sync.WaitGroup
			var removed, replaced error
			wg.Go(func() { removed = blob.RemoveVersion(t.Context(), s, "x", old) })
			wg.Go(func() { _, replaced = w.Commit(t.Context()) })
			wg.Wait()
			switch {
			case removed == nil && errors.Is(replaced, blob.ErrChanged):
				wantNone(t, s, "x")
			case replaced == nil && errors.Is(removed, blob.ErrChanged):
				wantObject(t, s, "x", fmt.Sprint("new ", i))
			default:
				t.Errorf("RemoveVersion = %v, Commit with the same version = %v; want nil once and ErrChanged once", removed, replaced)
			}
		}
	}},
	{"VersionsChange", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "one")
		before, err := s.Stat(t.Context(), "x")
		if err != nil || before.Version == "" {
			return // the store has no versions
		}
		info, err := blob.WriteAll(t.Context(), s, "x", []byte("another"), nil)
		if err != nil {
			t.Fatal(err)
		}
		now, err := s.Stat(t.Context(), "x")
		if err != nil || now.Version != info.Version || now.Version == before.Version {
			t.Errorf("the versions are %q, %q by Commit and %q by Stat, %v; want a new one twice", before.Version, info.Version, now.Version, err)
		}
		for info, err := range s.List(t.Context(), "") {
			if err != nil || info.Version != now.Version {
				t.Errorf("List yields the version %q, %v; Stat %q", info.Version, err, now.Version)
			}
		}
		// Readers need not have versions.
		p, version, err := blob.ReadVersion(t.Context(), s, "x", 100)
		if err != nil || string(p) != "another" || version != "" && version != now.Version {
			t.Errorf("ReadVersion = %q, %q, %v; want the version %q", p, version, err, now.Version)
		}
	}},
	{"EmptyObject", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "")
		wantObject(t, s, "x", "")
		w := create(t, s, "y", &blob.CreateOptions{Piece: 4096, IfAbsent: true})
		write(t, w, "", 0)
		if info, err := w.Commit(t.Context()); err != nil || info.Size != 0 {
			t.Errorf("Commit of nothing = %+v, %v; want size 0", info, err)
		}
		wantObject(t, s, "y", "")
	}},
	{"RemoveIsIdempotent", func(t *testing.T, s blob.Store) {
		put(t, s, "a/b/c", "hello")
		put(t, s, "a/d", "stays")
		for range 2 {
			remove(t, s, "a/b/c")
			wantNone(t, s, "a/b/c")
		}
		remove(t, s, "never/was")
		wantObject(t, s, "a/d", "stays")
	}},
	{"RemoveOfPrefixRemovesNothing", func(t *testing.T, s blob.Store) {
		put(t, s, "a/b", "hello")
		remove(t, s, "a")
		wantObject(t, s, "a/b", "hello")
		wantNone(t, s, "a")
		remove(t, s, "a/b/c")
		wantObject(t, s, "a/b", "hello")
	}},
}

// wantEnded checks that a writer has ended.
func wantEnded(t *testing.T, w blob.Writer) {
	t.Helper()
	wantErr(t, w.WriteAt(t.Context(), []byte("more"), 100), blob.ErrClosed, "write", "")
	_, err := w.Commit(t.Context())
	wantErr(t, err, blob.ErrClosed, "commit", "")
	abort(t, w)
}

var ranging = []claim{
	{"SizeIsKept", func(t *testing.T, s blob.Store) {
		for _, data := range []string{"", "hell", "hello!"} {
			w := create(t, s, "x", &blob.CreateOptions{Size: 5})
			err := w.WriteAt(t.Context(), []byte(data), 0)
			if len(data) > 5 {
				wantErr(t, err, blob.ErrRange, "write", "x")
			} else if err != nil {
				t.Errorf("WriteAt(%q) = %v; want nil", data, err)
			}
			_, err = w.Commit(t.Context())
			wantErr(t, err, blob.ErrRange, "commit", "x")
			wantNone(t, s, "x")
		}
	}},
	{"HolesRefused", func(t *testing.T, s blob.Store) {
		for _, size := range []int64{0, 12} {
			for _, offs := range [][]int64{{4, 8}, {0, 8}} {
				w := create(t, s, "x", &blob.CreateOptions{Size: size})
				for _, off := range offs {
					write(t, w, "four", off)
				}
				_, err := w.Commit(t.Context())
				wantErr(t, err, blob.ErrRange, "commit", "x")
				wantNone(t, s, "x")
			}
		}
	}},
	{"OverlapsRefused", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		write(t, w, "0123", 0)
		write(t, w, "89AB", 8)
		for _, off := range []int64{0, 1, 3, 5, 7, 8, 11, -1, 1<<63 - 2} {
			wantErr(t, w.WriteAt(t.Context(), []byte("zzzz"), off), blob.ErrRange, "write", "x")
		}
		write(t, w, "4567", 4)
		commit(t, w)
		wantObject(t, s, "x", "0123456789AB")
	}},
	{"OutOfOrder", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		for _, off := range []int64{6, 0, 9, 3} {
			write(t, w, "0123456789AB"[off:off+3], off)
		}
		commit(t, w)
		wantObject(t, s, "x", "0123456789AB")
	}},
	{"PiecesAreChecked", func(t *testing.T, s blob.Store) {
		page := strings.Repeat("p", 4096)
		w := create(t, s, "x", &blob.CreateOptions{Piece: 4096})
		write(t, w, page, 4096)
		wantErr(t, w.WriteAt(t.Context(), []byte(page+page), 0), blob.ErrRange, "write", "x")
		wantErr(t, w.WriteAt(t.Context(), []byte(page), 9000), blob.ErrRange, "write", "x")
		wantErr(t, w.WriteAt(t.Context(), []byte("short"), 0), blob.ErrRange, "write", "x")
		write(t, w, "end", 8192)
		wantErr(t, w.WriteAt(t.Context(), []byte(page), 12288), blob.ErrRange, "write", "x")
		write(t, w, page, 0)
		commit(t, w)
		wantObject(t, s, "x", page+page+"end")
	}},
	{"InvalidOptionsRefused", func(t *testing.T, s blob.Store) {
		for _, opts := range []blob.CreateOptions{{Size: -1}, {Piece: -4096}, {Piece: 1000}} {
			_, err := s.Create(t.Context(), "x", &opts)
			wantErr(t, err, blob.ErrRange, "create", "x")
		}
		wantNone(t, s, "x")
	}},
	{"OptionsNotKept", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "old")
		opts := &blob.CreateOptions{Size: 5}
		w := create(t, s, "x", opts)
		*opts = blob.CreateOptions{Size: 1, Piece: 1 << 20, IfAbsent: true}
		write(t, w, "hello", 0)
		commit(t, w)
	}},
	{"LargeObjectInConcurrentPieces", func(t *testing.T, s blob.Store) {
		const piece = 256 << 10
		data := pattern(12*piece+4096+123, 1)
		for _, size := range []int64{0, int64(len(data))} {
			writePieces(t, s, "aligned", data, &blob.CreateOptions{Size: size, Piece: piece})
			odd := append([]byte{0}, data...)[1:]
			writePieces(t, s, "odd", odd, &blob.CreateOptions{Size: size, Piece: piece})
			writePieces(t, s, "whole", data[:2*piece], &blob.CreateOptions{Size: min(size, 2*piece), Piece: piece})
		}
	}},
}

// writePieces writes data in pieces from several goroutines, in any order, and checks
// the object.
func writePieces(t *testing.T, s blob.Store, name string, data []byte, opts *blob.CreateOptions) {
	t.Helper()
	w := create(t, s, name, opts)
	order := rand.New(rand.NewPCG(1, 2)).Perm((len(data) + int(opts.Piece) - 1) / int(opts.Piece))
	inParallel(4, len(order), func(i int) {
		off := order[i] * int(opts.Piece)
		p := data[off:min(off+int(opts.Piece), len(data))]
		if err := w.WriteAt(t.Context(), p, int64(off)); err != nil {
			t.Errorf("WriteAt(%d bytes, %d) = %v; want nil", len(p), off, err)
		}
	})
	if info, err := w.Commit(t.Context()); err != nil || info.Size != int64(len(data)) {
		t.Fatalf("Commit = %+v, %v; want %d bytes", info, err, len(data))
	}
	if got, err := blob.ReadAll(t.Context(), s, name, huge); err != nil || !bytes.Equal(got, data) {
		t.Errorf("ReadAll(%q) = %d bytes, %v; want the %d bytes that were written", name, len(got), err, len(data))
	}
}

// errWhy is the cause of contexts that tests cancel.
var errWhy = errors.New("cancelled on purpose")

var ending = []claim{
	{"EndedContextOnStore", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "hello")
		ctx := cancelled(t.Context(), errWhy)
		_, err := s.Create(ctx, "y", nil)
		wantErr(t, err, errWhy, "create", "y")
		_, err = s.Open(ctx, "x")
		wantErr(t, err, errWhy, "open", "x")
		_, err = s.Stat(ctx, "x")
		wantErr(t, err, errWhy, "stat", "x")
		wantErr(t, s.Remove(ctx, "x"), errWhy, "remove", "x")
		n := 0
		for _, err := range s.List(ctx, "") {
			wantErr(t, err, errWhy, "list", "")
			n++
		}
		if n != 1 {
			t.Errorf("List yielded %d times; want one error", n)
		}
		wantObject(t, s, "x", "hello")
		wantNone(t, s, "y")
	}},
	{"EndedContextOnEmptyStore", func(t *testing.T, s blob.Store) {
		for _, err := range s.List(cancelled(t.Context(), errWhy), "a/") {
			wantErr(t, err, errWhy, "list", "a/")
			return
		}
		t.Error("List yielded nothing; want an error")
	}},
	{"EndedContextInTheMiddleOfAList", func(t *testing.T, s blob.Store) {
		for _, name := range []string{"a", "b", "c"} {
			put(t, s, name, name)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		n := 0
		for _, err := range s.List(ctx, "") {
			if n++; n == 1 {
				cancel(errWhy)
				continue
			}
			if err != nil {
				wantErr(t, err, errWhy, "list", "")
			}
		}
		if n < 2 {
			t.Errorf("List yielded %d times; want a second time, with an error or an object", n)
		}
	}},
	{"EndedContextOnReader", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "hello")
		r := open(t, s, "x")
		p := make([]byte, 5)
		wantErr(t, r.ReadAt(cancelled(t.Context(), errWhy), p, 0), errWhy, "read", "x")
		if err := r.ReadAt(t.Context(), p, 0); err != nil || string(p) != "hello" {
			t.Errorf("ReadAt afterwards = %q, %v; want hello", p, err)
		}
	}},
	{"EndedContextOnWriter", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		wantErr(t, w.WriteAt(cancelled(t.Context(), errWhy), []byte("hello"), 0), errWhy, "write", "x")
		write(t, w, "hello", 0) // the same range again, as after any failure
		commit(t, w)
		wantObject(t, s, "x", "hello")
	}},
	{"EndedContextOnCommit", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "old")
		w := create(t, s, "x", nil)
		write(t, w, "newer", 0)
		_, err := w.Commit(cancelled(t.Context(), errWhy))
		wantErr(t, err, errWhy, "commit", "x")
		wantEnded(t, w)
		wantObject(t, s, "x", "old")
	}},
	{"ContextOfCreateAndOpenMayEnd", func(t *testing.T, s blob.Store) {
		ctx, cancel := context.WithCancel(t.Context())
		put(t, s, "x", "hello")
		r, err := s.Open(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		w, err := s.Create(ctx, "y", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Abort()
		cancel()
		p := make([]byte, 5)
		if err := r.ReadAt(t.Context(), p, 0); err != nil || string(p) != "hello" {
			t.Errorf("ReadAt = %q, %v; want hello: each method uses its own context", p, err)
		}
		write(t, w, "hello", 0)
		commit(t, w)
		wantObject(t, s, "y", "hello")
	}},
}

var sharing = []claim{
	{"OneOfManyIfAbsentWins", func(t *testing.T, s blob.Store) {
		for round := range 5 {
			name := fmt.Sprintf("lock/%d", round)
			winner := raceIfAbsent(t, s, name, 16)
			wantObject(t, s, name, winner)
		}
	}},
	{"ReplacementIsAtomicForReaders", func(t *testing.T, s blob.Store) {
		put(t, s, "a/x", generation(0))
		var done atomic.Bool
		var readers sync.WaitGroup
		for range 3 {
			readers.Go(func() {
				for !done.Load() {
					readGeneration(t, s)
				}
			})
		}
		readers.Go(func() {
			for !done.Load() {
				listGeneration(t, s)
			}
		})
		for g := range 26 {
			put(t, s, "a/x", generation(g))
		}
		done.Store(true)
		readers.Wait()
	}},
	{"WritersOfOneNameDoNotMix", func(t *testing.T, s blob.Store) {
		inParallel(8, 8, func(g int) { tryPut(t, s, "a/x", generation(g)) })
		readGeneration(t, s)
	}},
	{"ReadersShareAReader", func(t *testing.T, s blob.Store) {
		data := pattern(1<<20, 1)
		put(t, s, "x", string(data))
		r := open(t, s, "x")
		rnd := rand.New(rand.NewPCG(1, 0))
		var offs, sizes []int
		for range 200 {
			offs = append(offs, rnd.IntN(len(data)))
			sizes = append(sizes, rnd.IntN(min(len(data)-offs[len(offs)-1], 64<<10)+1))
		}
		inParallel(4, len(offs), func(i int) {
			p := make([]byte, sizes[i])
			if err := r.ReadAt(t.Context(), p, int64(offs[i])); err != nil || !bytes.Equal(p, data[offs[i]:][:len(p)]) {
				t.Errorf("ReadAt(%d bytes, %d) is wrong or %v", len(p), offs[i], err)
			}
		})
	}},
	{"CreateAndRemoveSideBySide", func(t *testing.T, s blob.Store) {
		inParallel(4, 4, func(g int) {
			for range 30 { // the last object of a/b/ is removed and created all the time
				name := fmt.Sprintf("a/b/%d", g)
				tryPut(t, s, name, name)
				remove(t, s, name)
			}
		})
		wantNames(t, s, "", nil)
	}},
	{"AbortDuringWrites", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				err := w.WriteAt(t.Context(), make([]byte, 64<<10), int64(g)<<16)
				if err != nil && !errors.Is(err, blob.ErrClosed) {
					t.Errorf("WriteAt = %v; want nil or ErrClosed", err)
				}
			})
		}
		abort(t, w)
		wg.Wait()
		wantNone(t, s, "x")
	}},
	{"RandomOperationsAgreeWithAMap", func(t *testing.T, s blob.Store) {
		const seed = 20
		t.Logf("seed %d", seed)
		walk(t, s, rand.New(rand.NewPCG(seed, 0)), 300)
	}},
}

// raceIfAbsent lets n writers commit the same name at once and returns the bytes of the
// one that succeeded.
func raceIfAbsent(t *testing.T, s blob.Store, name string, n int) string {
	t.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	won := make(chan string, n)
	for g := range n {
		data := fmt.Sprintf("by %d", g)
		w := create(t, s, name, &blob.CreateOptions{IfAbsent: true})
		write(t, w, data, 0)
		wg.Go(func() {
			<-start
			_, err := w.Commit(t.Context())
			if err == nil {
				won <- data
			} else if !errors.Is(err, fs.ErrExist) {
				t.Errorf("Commit = %v; want nil or fs.ErrExist", err)
			}
		})
	}
	close(start)
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d of %d writers with IfAbsent won; want 1", len(won), n)
	}
	return <-won
}

// generation returns an object that repeats one letter. The letter determines its size.
func generation(g int) string {
	return strings.Repeat(string(rune('A'+g%26)), 1000*(1+g%26))
}

// readGeneration checks that a/x is complete and of one generation.
func readGeneration(t *testing.T, s blob.Store) {
	r, err := s.Open(t.Context(), "a/x")
	if err != nil {
		t.Errorf("Open during replacement = %v; want nil", err)
		return
	}
	defer r.Close()
	p := make([]byte, r.Size())
	if err := r.ReadAt(t.Context(), p, 0); err != nil {
		return // the contract allows an error, not a mixture
	}
	if len(p) == 0 || string(p) != generation(int(p[0]-'A')) {
		t.Errorf("a/x = %.10q… of %d bytes; want one generation", p, len(p))
	}
	if info, err := s.Stat(t.Context(), "a/x"); err != nil || info.Size == 0 {
		t.Errorf("Stat during replacement = %+v, %v; want an object", info, err)
	}
}

// listGeneration checks that a/x is listed, once.
func listGeneration(t *testing.T, s blob.Store) {
	var ns []string
	for info, err := range s.List(t.Context(), "a/") {
		if err != nil {
			t.Errorf("List during replacement = %v; want no error", err)
			return
		}
		ns = append(ns, info.Name)
	}
	if len(ns) != 1 || ns[0] != "a/x" {
		t.Errorf("List during replacement = %q; want a/x alone", ns)
	}
}

// walk applies n random operations to s and to a map, and compares them.
func walk(t *testing.T, s blob.Store, rnd *rand.Rand, n int) {
	t.Helper()
	pool := []string{"a", "b/c", "b/d", "e/f/g", "e/f/h", "e/i", "世"}
	model := map[string]string{}
	for i := range n {
		name, data := pool[rnd.IntN(len(pool))], fmt.Sprintf("%d %s", i, strings.Repeat("z", rnd.IntN(50)))
		old, there := model[name]
		switch rnd.IntN(5) {
		case 0, 1:
			put(t, s, name, data)
			model[name] = data
		case 2:
			_, err := blob.WriteAll(t.Context(), s, name, []byte(data), &blob.CreateOptions{IfAbsent: true})
			if there != errors.Is(err, fs.ErrExist) || !there && err != nil {
				t.Fatalf("step %d: WriteAll(%q, IfAbsent) = %v; object is there: %v", i, name, err, there)
			}
			if !there {
				model[name] = data
			}
		case 3:
			remove(t, s, name)
			delete(model, name)
		case 4:
			if there {
				wantObject(t, s, name, old)
			} else {
				wantNone(t, s, name)
			}
		}
		if got := len(list(t, s, "")); got != len(model) {
			t.Fatalf("step %d: List has %d objects; want %d", i, got, len(model))
		}
	}
}
