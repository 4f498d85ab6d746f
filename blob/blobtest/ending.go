package blobtest

import (
	"context"
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
)

// errWhy is the cause of the contexts that end here.
var errWhy = errors.New("somebody changed their mind")

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
		if _, err := w.Commit(t.Context()); err != nil {
			t.Errorf("Commit = %v; want nil", err)
		}
		wantObject(t, s, "x", "hello")
	}},
	{"EndedContextOnCommit", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "old")
		w := create(t, s, "x", nil)
		write(t, w, "newer", 0)
		_, err := w.Commit(cancelled(t.Context(), errWhy))
		wantErr(t, err, errWhy, "commit", "x")
		wantOver(t, w)
		wantObject(t, s, "x", "old")
	}},
	{"ContextOfCreateMayEnd", func(t *testing.T, s blob.Store) {
		ctx, cancel := context.WithCancel(t.Context())
		w, err := s.Create(ctx, "x", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Abort()
		cancel()
		write(t, w, "hello", 0)
		if _, err := w.Commit(t.Context()); err != nil {
			t.Errorf("Commit = %v; want nil: each method heeds its own context", err)
		}
		wantObject(t, s, "x", "hello")
	}},
	{"ContextOfOpenMayEnd", func(t *testing.T, s blob.Store) {
		put(t, s, "x", "hello")
		ctx, cancel := context.WithCancel(t.Context())
		r, err := s.Open(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cancel()
		p := make([]byte, 5)
		if err := r.ReadAt(t.Context(), p, 0); err != nil || string(p) != "hello" {
			t.Errorf("ReadAt = %q, %v; want hello: each method heeds its own context", p, err)
		}
	}},
}
