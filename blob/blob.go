// Package blob holds bytes under names: the one thing cairn asks of a disk, an
// object store or a test double. It knows nothing of tensors or checkpoints and
// imports nothing else of this module. The contract is in the comment of Store,
// and package blobtest runs it against any implementation.
package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"
	"time"
)

// Errors beyond those of package io/fs. A store reports a missing object with
// an error that wraps fs.ErrNotExist, a refused creation with fs.ErrExist and a
// refused access with fs.ErrPermission.
var (
	// ErrName reports a name that no store accepts; see [CheckName].
	ErrName = errors.New("invalid object name")
	// ErrRange reports a read beyond the end of an object or a write that
	// breaks the writer's rules.
	ErrRange = errors.New("range outside the object")
	// ErrClosed reports the use of a reader or writer after its end.
	ErrClosed = errors.New("already closed")
)

// Store holds objects: immutable sequences of bytes under names.
//
// # Contract
//
//   - An object appears whole or not at all: nobody sees a part of one, whether
//     its writer is still busy, was aborted, or died. Commit makes it visible.
//   - Once Commit has returned, every later Open, Stat and List sees the object,
//     and it survives the loss of power as far as the medium can promise.
//   - Commit replaces an object of the same name in one atomic step, unless
//     CreateOptions.IfAbsent is set. A reader that is already open goes on to
//     see the bytes it was opened on, or gets an error; never a mixture.
//   - Names are slash-separated relative paths; see [CheckName]. There are no
//     directories: a name exists when its object does.
//   - Errors name the operation and the object, and wrap what they are about.
//   - All methods are safe for concurrent use and heed their context: when it
//     is done they return soon with an error that wraps its cause.
type Store interface {
	// Create begins a new object. The caller must end the writer with Commit or
	// Abort. Nil options mean the defaults.
	Create(ctx context.Context, name string, opts *CreateOptions) (Writer, error)
	// Open returns a reader of the object name. The caller must close it.
	Open(ctx context.Context, name string) (Reader, error)
	// Stat describes the object name.
	Stat(ctx context.Context, name string) (Info, error)
	// List yields every object whose name begins with prefix, in the order of
	// their names. After a non-nil error the sequence ends. An empty store
	// yields nothing; a prefix need not end at a slash.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Remove deletes the object name. Removing one that is not there is no
	// error.
	Remove(ctx context.Context, name string) error
	// String returns where the store is, for people: a path or a URL.
	String() string
}

// Info describes an object.
type Info struct {
	Name    string
	Size    int64
	ModTime time.Time
}

// CreateOptions are the wishes of a writer.
type CreateOptions struct {
	// Size is the object's exact final size where it is known. Zero: unknown.
	// A store may reserve the space at once and so report a full disk early.
	// Commit fails with ErrRange if something else was written.
	Size int64
	// Piece promises that every WriteAt starts at a multiple of Piece and is
	// Piece long, except for the one that ends the object, which may be shorter.
	// Object stores then send pieces as they come. It is a multiple of 4096.
	// Zero: no promise.
	Piece int64
	// IfAbsent makes Commit fail with fs.ErrExist, and change nothing, when an
	// object of that name exists by then.
	IfAbsent bool
}

// Writer is a new object in the making. WriteAt may be called from several
// goroutines at once; Commit and Abort end the writer.
type Writer interface {
	// WriteAt writes p at off. It does not keep p. Ranges must not overlap, and
	// by Commit they must cover the object from 0 to its end without holes.
	WriteAt(ctx context.Context, p []byte, off int64) error
	// Commit makes the object durable and then visible, atomically. After an
	// error the object is not visible (unless the error came from a medium that
	// cannot tell) and the writer is ended as by Abort.
	Commit(ctx context.Context) (Info, error)
	// Abort gives the object up and frees what it took. It does nothing once
	// the writer is ended, so it can be deferred right after Create.
	Abort() error
}

// Reader reads one object. ReadAt may be called from several goroutines at
// once.
type Reader interface {
	// ReadAt fills p with the bytes from off on. There are no partial results:
	// either all of p is read or an error is returned, ErrRange where the
	// object ends before off+len(p).
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Size returns the object's size.
	Size() int64
	// Close ends the reader.
	Close() error
}

// Wrapper is implemented by stores that add something to another store.
type Wrapper interface {
	// Unwrap returns the wrapped store.
	Unwrap() Store
}

// As finds the first store along s and what it wraps that has capability T.
func As[T any](s Store) (T, bool) {
	for s != nil {
		if t, ok := s.(T); ok {
			return t, true
		}
		w, ok := s.(Wrapper)
		if !ok {
			break
		}
		s = w.Unwrap()
	}
	var zero T
	return zero, false
}

// GapReader is a capability of stores for which a request costs so much that
// reading a gap of unneeded bytes is cheaper than a second request.
type GapReader interface {
	// ReadGap returns the largest gap, in bytes, worth reading through.
	ReadGap() int64
}

// MaxName bounds the length of a name in bytes.
const MaxName = 1024

// CheckName returns an error that wraps [ErrName] unless name is a relative,
// slash-separated path in plain form: not empty, at most [MaxName] bytes, valid
// UTF-8, no leading or trailing slash, no empty, "." or ".." element, no NUL,
// backslash or other control character.
func CheckName(name string) error {
	if len(name) > MaxName {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrName, len(name), MaxName)
	}
	if !fs.ValidPath(name) || name == "." {
		return fmt.Errorf("%w: %q", ErrName, name)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
		return fmt.Errorf("%w: %q", ErrName, name)
	}
	return nil
}
