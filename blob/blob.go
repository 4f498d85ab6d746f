// Package blob holds bytes under names: the one thing cairn asks of a disk, an
// object store or a test double. It knows nothing of tensors or checkpoints and
// imports nothing else of this module. The contract is in the comment of Store,
// and package blobtest runs it against any implementation.
package blob

import (
	"context"
	"iter"
	"time"
)

// Store holds objects: immutable sequences of bytes under names.
//
// # Contract
//
//   - An object appears whole or not at all: nobody sees a part of one, whether
//     its writer is still busy, was aborted, or died. Commit makes it visible.
//   - Once Commit has returned, every later Open, Stat and List sees the object,
//     and it survives the loss of power as far as the medium can promise. An
//     object that was removed may be back after such a loss.
//   - Commit replaces an object of the same name in one atomic step, unless
//     CreateOptions.IfAbsent is set. A reader that is already open goes on to
//     see the bytes it was opened on, or gets an error; never a mixture. The
//     same holds when the object is removed.
//   - Names are slash-separated relative paths; see [CheckName]. There are no
//     directories: a name exists when its object does. A store on a medium that
//     cannot hold "a" beside "a/b" refuses the later one with [ErrNested].
//   - Errors name the operation and the object, and wrap what they are about;
//     see [Error].
//   - All methods are safe for concurrent use and heed their context: when it
//     is done they return soon with an error that wraps its cause.
type Store interface {
	// Create begins a new object. The caller must end the writer with Commit or
	// Abort. Nil options mean the defaults; the options are not kept.
	Create(ctx context.Context, name string, opts *CreateOptions) (Writer, error)
	// Open returns a reader of the object name. The caller must close it.
	Open(ctx context.Context, name string) (Reader, error)
	// Stat describes the object name.
	Stat(ctx context.Context, name string) (Info, error)
	// List yields every object whose name begins with prefix, in the order of
	// their names, bytewise. After a non-nil error the sequence ends. An empty
	// store yields nothing; a prefix need not end at a slash, and one that no
	// name can begin with yields ErrName; see [CheckPrefix]. An object that is
	// there for the whole of the call comes exactly once; one that comes or
	// goes meanwhile comes at most once. The loop may use the store.
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
	// object of that name exists by then. Of several such writers one wins.
	IfAbsent bool
}

// Writer is a new object in the making. WriteAt may be called from several
// goroutines at once; Commit and Abort end the writer, after which WriteAt and
// Commit return ErrClosed.
type Writer interface {
	// WriteAt writes p at off. It does not keep p. Ranges must not overlap, and
	// by Commit they must cover the object from 0 to its end without holes;
	// what breaks a rule is refused with ErrRange and changes nothing. After
	// any other error the same range may be written again.
	WriteAt(ctx context.Context, p []byte, off int64) error
	// Commit makes the object durable and then visible, atomically. After an
	// error the object is not visible (unless the error came from a medium that
	// cannot tell) and the writer is ended as by Abort. Every WriteAt must have
	// returned before. An object that nothing was written to is empty.
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
	// object ends before off+len(p), ErrClosed after Close.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Size returns the object's size.
	Size() int64
	// Close ends the reader. It does nothing once the reader is closed.
	Close() error
}
