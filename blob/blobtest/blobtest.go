// Package blobtest runs the contract of blob.Store against an implementation.
// It knows nothing of the medium and looks at stores only through their
// methods. Every store and every wrapper of one owes a test that calls Run.
package blobtest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
)

// Run checks the whole contract, a subtest a sentence. It calls open once for
// each subtest, which must return an empty store that nobody else uses.
func Run(t *testing.T, open func(t *testing.T) blob.Store) {
	for _, c := range slices.Concat(writing, ranging, reading, listing, naming, ending, sharing) {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

// claim is a sentence of the contract and what shows it.
type claim struct {
	name string
	run  func(t *testing.T, s blob.Store)
}

// huge is a limit for ReadAll that no object here reaches.
const huge = 1 << 30

// put makes an object, or ends the test.
func put(t *testing.T, s blob.Store, name, data string) {
	t.Helper()
	if !tryPut(t, s, name, data) {
		t.FailNow()
	}
}

// tryPut makes an object, from any goroutine.
func tryPut(t *testing.T, s blob.Store, name, data string) bool {
	t.Helper()
	_, err := blob.WriteAll(t.Context(), s, name, []byte(data), nil)
	if err != nil {
		t.Errorf("WriteAll(%q) = %v; want nil", name, err)
	}
	return err == nil
}

// create begins an object that is aborted with the test, or ends the test.
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

// open opens an object that is closed with the test, or ends the test.
func open(t *testing.T, s blob.Store, name string) blob.Reader {
	t.Helper()
	r, err := s.Open(t.Context(), name)
	if err != nil {
		t.Fatalf("Open(%q) = %v; want nil", name, err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// wantObject checks that the object is there with these bytes for all that
// look.
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

// wantNone checks that there is no such object for any that look.
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
// A wrapper may speak of a longer name.
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

// list returns what begins with prefix, or ends the test.
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

// names returns the names of what begins with prefix.
func names(t *testing.T, s blob.Store, prefix string) []string {
	t.Helper()
	ns := []string{}
	for _, info := range list(t, s, prefix) {
		ns = append(ns, info.Name)
	}
	return ns
}

// pattern returns n bytes in which every position is recognisable.
func pattern(n int, seed uint64) []byte {
	p := blob.AlignedBytes(n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	r.Read(p)
	return p
}

// firstDiff returns where a and b begin to differ, or -1.
func firstDiff(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// cancelled returns a context that was cancelled because of cause.
func cancelled(ctx context.Context, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	return ctx
}
