package blobtest

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
)

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
		if _, err := w.Commit(t.Context()); err != nil {
			t.Errorf("Commit = %v; want nil: what was refused changes nothing", err)
		}
		wantObject(t, s, "x", "0123456789AB")
	}},
	{"OutOfOrder", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		for _, off := range []int64{6, 0, 9, 3} {
			write(t, w, "0123456789AB"[off:off+3], off)
		}
		if _, err := w.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantObject(t, s, "x", "0123456789AB")
	}},
	{"PromiseOfPiecesHeld", func(t *testing.T, s blob.Store) {
		page := strings.Repeat("p", 4096)
		w := create(t, s, "x", &blob.CreateOptions{Piece: 4096})
		write(t, w, page, 4096)
		wantErr(t, w.WriteAt(t.Context(), []byte(page+page), 0), blob.ErrRange, "write", "x")
		wantErr(t, w.WriteAt(t.Context(), []byte(page), 9000), blob.ErrRange, "write", "x")
		wantErr(t, w.WriteAt(t.Context(), []byte("short"), 0), blob.ErrRange, "write", "x")
		write(t, w, "end", 8192)
		wantErr(t, w.WriteAt(t.Context(), []byte(page), 12288), blob.ErrRange, "write", "x")
		write(t, w, page, 0)
		if _, err := w.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantObject(t, s, "x", page+page+"end")
	}},
	{"SenselessOptionsRefused", func(t *testing.T, s blob.Store) {
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
		if _, err := w.Commit(t.Context()); err != nil {
			t.Errorf("Commit = %v; want nil", err)
		}
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

// writePieces writes data in pieces from several goroutines, the last piece
// not last, and checks what is then there.
func writePieces(t *testing.T, s blob.Store, name string, data []byte, opts *blob.CreateOptions) {
	t.Helper()
	w := create(t, s, name, opts)
	n := (len(data) + int(opts.Piece) - 1) / int(opts.Piece)
	todo := make(chan int, n)
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		todo <- i
	}
	close(todo)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range todo {
				off := i * int(opts.Piece)
				p := data[off:min(off+int(opts.Piece), len(data))]
				if err := w.WriteAt(t.Context(), p, int64(off)); err != nil {
					t.Errorf("WriteAt(%d bytes, %d) = %v; want nil", len(p), off, err)
				}
			}
		})
	}
	wg.Wait()
	if info, err := w.Commit(t.Context()); err != nil || info.Size != int64(len(data)) {
		t.Fatalf("Commit = %+v, %v; want %d bytes", info, err, len(data))
	}
	got, err := blob.ReadAll(t.Context(), s, name, huge)
	if d := firstDiff(got, data); err != nil || d >= 0 {
		t.Errorf("ReadAll(%q) = %d bytes, %v; want %d, which differ from %d on", name, len(got), err, len(data), d)
	}
}
