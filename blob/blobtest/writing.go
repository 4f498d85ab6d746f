package blobtest

import (
	"io/fs"
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
		if err := w.Abort(); err != nil {
			t.Errorf("Abort = %v; want nil", err)
		}
		wantNone(t, s, "a/b")
		if ns := names(t, s, ""); len(ns) > 0 {
			t.Errorf("List after Abort = %q; want nothing", ns)
		}
		put(t, s, "a", "in the place of what would have been above") // so no trace of a/ is left
	}},
	{"AbortKeepsOlderObject", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "old")
		w := create(t, s, "x", nil)
		write(t, w, "newer", 0)
		if err := w.Abort(); err != nil {
			t.Errorf("Abort = %v; want nil", err)
		}
		wantObject(t, s, "x", "old")
	}},
	{"WriterOverAfterCommit", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		write(t, w, "hello", 0)
		if _, err := w.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantOver(t, w)
		wantObject(t, s, "x", "hello")
	}},
	{"WriterOverAfterAbort", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		if err := w.Abort(); err != nil {
			t.Fatal(err)
		}
		wantOver(t, w)
		wantNone(t, s, "x")
	}},
	{"WriterOverAfterFailedCommit", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", &blob.CreateOptions{Size: 9})
		write(t, w, "hello", 0)
		_, err := w.Commit(t.Context())
		wantErr(t, err, blob.ErrRange, "commit", "x")
		wantOver(t, w)
		wantNone(t, s, "x")
	}},
	{"WriteKeepsNoMemory", func(t *testing.T, s blob.Store) {
		w := create(t, s, "x", nil)
		p := []byte("hello")
		if err := w.WriteAt(t.Context(), p, 0); err != nil {
			t.Fatal(err)
		}
		copy(p, "XXXXX")
		if _, err := w.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
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
		if _, err := w.Commit(t.Context()); err != nil {
			t.Fatalf("Commit of the first = %v; want nil", err)
		}
		_, err := late.Commit(t.Context())
		wantErr(t, err, fs.ErrExist, "commit", "x")
		wantOver(t, late)
		wantObject(t, s, "x", "first")
		put(t, s, "x", "without the option it is replaced")
		if err := s.Remove(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := blob.WriteAll(t.Context(), s, "x", []byte("again"), &blob.CreateOptions{IfAbsent: true}); err != nil {
			t.Errorf("WriteAll with IfAbsent after Remove = %v; want nil", err)
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
			if err := s.Remove(t.Context(), "a/b/c"); err != nil {
				t.Errorf("Remove = %v; want nil", err)
			}
			wantNone(t, s, "a/b/c")
		}
		if err := s.Remove(t.Context(), "never/was"); err != nil {
			t.Errorf("Remove of what never was = %v; want nil", err)
		}
		wantObject(t, s, "a/d", "stays")
	}},
	{"RemoveOfPrefixRemovesNothing", func(t *testing.T, s blob.Store) {
		put(t, s, "a/b", "hello")
		if err := s.Remove(t.Context(), "a"); err != nil {
			t.Errorf("Remove = %v; want nil", err)
		}
		wantObject(t, s, "a/b", "hello")
		wantNone(t, s, "a")
		if err := s.Remove(t.Context(), "a/b/c"); err != nil {
			t.Errorf("Remove below an object = %v; want nil", err)
		}
		wantObject(t, s, "a/b", "hello")
	}},
}

// wantOver checks that a writer is ended.
func wantOver(t *testing.T, w blob.Writer) {
	t.Helper()
	wantErr(t, w.WriteAt(t.Context(), []byte("more"), 100), blob.ErrClosed, "write", "")
	_, err := w.Commit(t.Context())
	wantErr(t, err, blob.ErrClosed, "commit", "")
	if err := w.Abort(); err != nil {
		t.Errorf("Abort of an ended writer = %v; want nil", err)
	}
}
