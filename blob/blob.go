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
	"unicode"
	"unsafe"
)

// Store holds objects: immutable sequences of bytes under names.
//
// # Contract
//
//   - An object appears whole or not at all: no reader sees a part of one, whether
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
	// Size is the object's exact final size if it is known. Zero: unknown.
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
	// either all of p is read or an error is returned, ErrRange if the
	// object ends before off+len(p), ErrClosed after Close.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Size returns the object's size.
	Size() int64
	// Close ends the reader. It does nothing once the reader is closed.
	Close() error
}

const (
	// MaxName bounds the length of a name in bytes.
	MaxName = 1024
	// MaxElement bounds the length of what stands between two slashes of a
	// name, in bytes. File systems allow no more.
	MaxElement = 255
	// Reserved begins no element of a name, so that a store can keep things of
	// its own beside its objects.
	Reserved = ".cairn-tmp-"
)

// CheckName returns an error that wraps [ErrName] unless name is a relative,
// slash-separated path in plain form: not empty, at most [MaxName] bytes, valid
// UTF-8, no leading or trailing slash, no empty, "." or ".." element, none
// longer than [MaxElement] bytes or beginning with [Reserved], no NUL,
// backslash or other control character.
func CheckName(name string) error {
	if len(name) > MaxName {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrName, len(name), MaxName)
	}
	if name == "" {
		return fmt.Errorf("%w: empty", ErrName)
	}
	if !fs.ValidPath(name) || name == "." {
		return fmt.Errorf("%w: %q is not a plain relative path", ErrName, name)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r == '\\' || unicode.IsControl(r) }) {
		return fmt.Errorf("%w: %q holds a backslash or control character", ErrName, name)
	}
	for e := range strings.SplitSeq(name, "/") {
		if len(e) > MaxElement {
			return fmt.Errorf("%w: element of %d bytes, at most %d", ErrName, len(e), MaxElement)
		}
		if strings.HasPrefix(e, Reserved) {
			return fmt.Errorf("%w: %q: %q is reserved", ErrName, name, Reserved)
		}
	}
	return nil
}

// CheckPrefix returns an error that wraps [ErrName] unless prefix is empty or
// some valid name can begin with it.
func CheckPrefix(prefix string) error {
	if prefix == "" || CheckName(prefix) == nil {
		return nil
	}
	// "a/" and "a/." are no names, but some names begin with them.
	if err := CheckName(prefix + "x"); err != nil {
		return fmt.Errorf("%w: no name begins with %.64q", ErrName, prefix)
	}
	return nil
}

// Errors beyond those of package io/fs. A store reports a missing object with
// an error that wraps fs.ErrNotExist, a refused creation with fs.ErrExist and a
// refused access with fs.ErrPermission.
var (
	// ErrName reports a name that no store accepts; see [CheckName].
	ErrName = errors.New("invalid object name")
	// ErrNested reports a name below or above another object's, such as "a/b"
	// beside "a", in a store that cannot hold both.
	ErrNested = errors.New("name lies below or above another object's")
	// ErrRange reports a read beyond the end of an object or a write that
	// breaks the writer's rules.
	ErrRange = errors.New("range outside the object")
	// ErrClosed reports the use of a reader or writer after its end.
	ErrClosed = errors.New("already closed")
	// ErrTooLarge reports an object above the limit that its reader set.
	ErrTooLarge = errors.New("object is too large")
	// ErrLocked reports a lock whose holder is alive.
	ErrLocked = errors.New("locked by another process")
)

// Error says which operation on which object of which store went wrong.
type Error struct {
	// Op is the operation: create, write, commit, abort, open, read, stat,
	// list, remove, or that of a capability.
	Op string
	// Store is where the store is, as its String says. It may be empty.
	Store string
	// Name is the object's name, or the prefix of a list. It may be empty.
	Name string
	// Err is what went wrong.
	Err error
}

// Error returns all of it in a line.
func (e *Error) Error() string {
	s := e.Op
	if e.Name != "" {
		s += fmt.Sprintf(" %q", e.Name)
	}
	if e.Store != "" {
		s += " in " + e.Store
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns what went wrong.
func (e *Error) Unwrap() error { return e.Err }

// Align is the alignment, in bytes, of memory and file offsets at which stores
// on a local disk move bytes without copying them once more.
const Align = 4096

// AlignedBytes returns n zero bytes whose address is a multiple of [Align], or
// nil if n is not positive. Writers that hand such memory to WriteAt, in
// pieces, give the store the chance to skip a copy.
func AlignedBytes(n int) []byte {
	if n <= 0 {
		return nil
	}
	p := make([]byte, n+Align-1)
	skip := -int(uintptr(unsafe.Pointer(&p[0]))) & (Align - 1)
	return p[skip : skip+n : skip+n]
}

// Aligned reports whether p begins at a multiple of [Align].
func Aligned(p []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(p)))%Align == 0
}

// ReadAll returns the whole object name of s. It refuses one of more than max
// bytes with ErrTooLarge before it reads or allocates anything, so that a
// strange store cannot make its caller run out of memory.
func ReadAll(ctx context.Context, s Store, name string, max int64) ([]byte, error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if r.Size() > max {
		err := fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, r.Size(), max)
		return nil, &Error{Op: "read", Store: s.String(), Name: name, Err: err}
	}
	p := make([]byte, r.Size())
	if err := r.ReadAt(ctx, p, 0); err != nil {
		return nil, err
	}
	return p, nil
}

// WriteAll makes data the object name of s. Nil options mean the defaults; an
// unset Size becomes that of data, and if Piece is set data goes out in
// such pieces, one after the other.
func WriteAll(ctx context.Context, s Store, name string, data []byte, opts *CreateOptions) (Info, error) {
	var o CreateOptions
	if opts != nil {
		o = *opts
	}
	if o.Size == 0 {
		o.Size = int64(len(data))
	}
	w, err := s.Create(ctx, name, &o)
	if err != nil {
		return Info{}, err
	}
	defer w.Abort() // does nothing once committed
	step := int64(len(data))
	if o.Piece > 0 {
		step = min(o.Piece, step)
	}
	for off := int64(0); off < int64(len(data)); off += step {
		end := min(off+step, int64(len(data)))
		if err := w.WriteAt(ctx, data[off:end], off); err != nil {
			return Info{}, err
		}
	}
	return w.Commit(ctx)
}

// ReadLarge reads n bytes from off and returns them as a part of buf, which
// begins at a multiple of [Align] and is at least n bytes and two times Align
// long. It reads cached bytes from the system's cache, and reads other bytes past
// the cache if r is a [DirectReader].
func ReadLarge(ctx context.Context, r Reader, buf []byte, off, n int64) ([]byte, error) {
	if d, ok := r.(DirectReader); ok && !d.Cached(off, n) {
		return d.ReadDirect(ctx, buf, off, n)
	}
	p := buf[:n]
	return p, r.ReadAt(ctx, p, off)
}
