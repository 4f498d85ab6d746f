// Package blob defines stores: bytes under names, on a disk, in memory or in an object
// store. It does not depend on tensors or checkpoints and imports no other package of
// this module. The contract is in the comment of Store, and package blobtest tests any
// implementation against it.
package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unsafe"
)

// Store holds objects: immutable sequences of bytes under names.
//
// # Contract
//
//   - An object appears completely or not at all: no reader sees a part of it, even if
//     its writer is still writing, was aborted, or died. Commit makes it visible.
//   - After Commit has returned, every later Open, Stat and List sees the object,
//     and it survives a loss of power if the medium allows that. An object that was
//     removed may exist again after such a loss.
//   - Commit replaces an object of the same name in one atomic step, unless
//     CreateOptions.IfAbsent is set. A reader that is already open continues to
//     see the bytes of the old object, or returns an error; never a mixture. The
//     same holds when the object is removed.
//   - Names are slash-separated relative paths; see [CheckName]. There are no
//     directories: a name exists when its object does. A store on a medium that
//     cannot hold both "a" and "a/b" refuses the later one with [ErrNested].
//   - Errors name the operation and the object, and wrap their cause; see [Error].
//   - All methods are safe for concurrent use. When their context ends, they return
//     soon with an error that wraps its cause.
type Store interface {
	// Create begins a new object. The caller must end the writer with Commit or
	// Abort. Nil options mean the defaults; the options are not kept.
	Create(ctx context.Context, name string, opts *CreateOptions) (Writer, error)
	// Open returns a reader of the object name. The caller must close it.
	Open(ctx context.Context, name string) (Reader, error)
	// Stat describes the object name.
	Stat(ctx context.Context, name string) (Info, error)
	// List yields every object with a name that begins with prefix, in the order of their names,
	// bytewise. After a non-nil error the sequence ends. A prefix need not end at a slash. If no
	// name can begin with it, List yields ErrName; see [CheckPrefix]. An object that exists
	// during the whole loop is yielded exactly once. One that is created or removed meanwhile is
	// yielded at most once. The loop may use the store.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Remove deletes the object name. If there is no such object, this is not an
	// error.
	Remove(ctx context.Context, name string) error
	// String returns the location of the store, for messages: a path or a URL.
	String() string
}

// Info describes an object.
type Info struct {
	Name    string
	Size    int64
	ModTime time.Time
	// Version changes when the object is replaced by one with other bytes. It is empty
	// if the store has no versions.
	Version string
}

// CreateOptions describe a new object.
type CreateOptions struct {
	// Size is the object's exact final size if it is known. Zero: unknown.
	// A store may reserve the space at once and so report a full disk early.
	// Commit fails with ErrRange if something else was written.
	Size int64
	// Piece means that every WriteAt starts at a multiple of Piece and has Piece
	// bytes, except for the one that ends the object, which may be shorter. Object
	// stores can then send the pieces at once. It is a multiple of 4096. Zero: writes
	// may have any offset and size.
	Piece int64
	// IfAbsent makes Commit fail with fs.ErrExist and leave the store unchanged if an object of
	// that name exists at that moment. Of several such writers one succeeds.
	IfAbsent bool
	// IfVersion makes Commit fail with ErrChanged and leave the store unchanged unless the
	// object of that name has this Info.Version by then. Of several such writers one succeeds.
	// If the store has no versions, Create fails with errors.ErrUnsupported. Empty: any.
	IfVersion string
}

// Writer writes a new object. WriteAt may be called from several
// goroutines at once; Commit and Abort end the writer, after which WriteAt and
// Commit return ErrClosed.
type Writer interface {
	// WriteAt writes p at off. It does not keep p. Ranges must not overlap, and before Commit
	// they must cover the object from 0 to its end without holes. A call that breaks these rules
	// returns ErrRange and writes no byte. After any other error the same range may be written
	// again.
	WriteAt(ctx context.Context, p []byte, off int64) error
	// Commit makes the object durable and then visible, atomically. After an error the object is
	// not visible, unless the error wraps ErrUncertain, and the writer is ended as by Abort.
	// Every WriteAt must have returned before. Without any WriteAt, the object is empty.
	Commit(ctx context.Context) (Info, error)
	// Abort ends the writer without an object and frees its resources. It does nothing
	// after the writer has ended, so it can be deferred right after Create.
	Abort() error
}

// Reader reads one object. ReadAt may be called from several goroutines at
// once.
type Reader interface {
	// ReadAt fills p with the bytes from off on. There are no partial results: it
	// reads all of p or returns an error: ErrRange if the object ends before
	// off+len(p), ErrClosed after Close.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// Size returns the object's size.
	Size() int64
	// Close ends the reader. A second Close has no effect.
	Close() error
}

const (
	// MaxName bounds the length of a name in bytes.
	MaxName = 1024
	// MaxElement bounds the length of an element of a name, between two slashes, in
	// bytes. File systems do not allow more.
	MaxElement = 255
	// Reserved is the prefix of files that a store keeps for itself. No element of
	// a name begins with it.
	Reserved = ".cairn-tmp-"
)

// CheckName returns an error that wraps [ErrName] unless name is a relative,
// slash-separated path in plain form: not empty, at most [MaxName] bytes, valid
// UTF-8, no leading or trailing slash, no empty, "." or ".." element, no element
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
// a valid name can begin with it.
func CheckPrefix(prefix string) error {
	if prefix == "" || CheckName(prefix) == nil {
		return nil
	}
	// "a/" and "a/." are not names, but some names begin with them.
	if err := CheckName(prefix + "x"); err != nil {
		return fmt.Errorf("%w: no name begins with %.64q", ErrName, prefix)
	}
	return nil
}

// Errors in addition to the errors of package io/fs: fs.ErrNotExist for a missing object,
// fs.ErrExist for an object that exists although CreateOptions.IfAbsent is set, and
// fs.ErrPermission for an access that is not allowed.
var (
	// ErrName reports a name that no store accepts; see [CheckName].
	ErrName = errors.New("invalid object name")
	// ErrNested reports a name below or above another object's, such as "a/b"
	// beside "a", in a store that cannot hold both.
	ErrNested = errors.New("name lies below or above another object's")
	// ErrRange reports a read beyond the end of an object, or a write that
	// breaks the rules of Writer.
	ErrRange = errors.New("range outside the object")
	// ErrClosed reports the use of a reader or writer after its end.
	ErrClosed = errors.New("already closed")
	// ErrTooLarge reports an object above the limit of ReadAll.
	ErrTooLarge = errors.New("object is too large")
	// ErrChanged reports an object that is another than CreateOptions.IfVersion says, or
	// that was replaced while it was being read.
	ErrChanged = errors.New("object has changed")
	// ErrRemoved reports an object that does not exist although it should have a version. It
	// wraps ErrChanged and fs.ErrNotExist.
	ErrRemoved = fmt.Errorf("%w: %w", ErrChanged, fs.ErrNotExist)
	// ErrUncertain reports a Commit with an unknown result: the service gave no answer, and may
	// have written the object or may write it later. If the Commit has a condition, the result
	// is known once the object no longer meets the condition.
	ErrUncertain = errors.New("it is unknown whether the object was written")
	// ErrLocked reports a lock with a live holder.
	ErrLocked = errors.New("locked by another process")
	// ErrService marks the errors of stores at a service: see Error.Service.
	ErrService = errors.New("error of a service")
)

// Error is an error of an operation of a store.
type Error struct {
	// Op is the operation: create, write, commit, abort, open, read, stat,
	// list, remove, or an operation of a capability.
	Op string
	// Store is the location of the store: its String. It may be empty.
	Store string
	// Name is the object's name, or the prefix of a list. It may be empty.
	Name string
	// Err is the cause.
	Err error
	// Service means that the store is at a service, not in folders of this machine. Then the
	// error wraps ErrService, which ranks tell each other.
	Service bool
}

// Error returns the operation, the name, the store and the cause.
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

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is ErrService and e an error of a service.
func (e *Error) Is(target error) bool { return e.Service && target == ErrService }

// IsFull reports whether err means that the disk, or the quota of the user, is full.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Align is the alignment, in bytes, of memory and file offsets at which stores
// on a local disk can read and write without an extra copy.
const Align = 4096

// AlignedBytes returns n zero bytes at an address that is a multiple of [Align], or nil if n
// is not positive. If WriteAt receives such memory, in pieces, a store can avoid a copy.
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

// ReadAll returns the bytes of the object name of s. If it has more than max bytes,
// ReadAll returns ErrTooLarge before it reads or allocates anything, so that a bad
// object cannot make the process run out of memory.
func ReadAll(ctx context.Context, s Store, name string, max int64) ([]byte, error) {
	p, _, err := ReadVersion(ctx, s, name, max)
	return p, err
}

// ReadVersion is like ReadAll, and also returns the version of the object as Info has it,
// or "" if its reader is not a [VersionReader].
func ReadVersion(ctx context.Context, s Store, name string, max int64) (p []byte, version string, err error) {
	return ReadChecked(ctx, s, name, max, nil)
}

// ReadChecked is like ReadVersion, and calls check with the bytes. If they cannot be read or
// check fails, and the object has other copies, it reads these; see [Reread]. A nil check
// succeeds, and other copies are not read.
func ReadChecked(ctx context.Context, s Store, name string, max int64, check func(p []byte) error) (p []byte, version string, err error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return nil, "", err
	}
	defer r.Close()

	if r.Size() > max {
		err := fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, r.Size(), max)
		return nil, "", &Error{Op: "read", Store: s.String(), Name: name, Err: err}
	}

	p = make([]byte, r.Size())
	try := func(read ReadFunc) error {
		err := read(ctx, p, 0)
		if err == nil && check != nil {
			err = check(p)
		}
		return err
	}
	if err = try(r.ReadAt); err != nil && check != nil {
		err = Reread(ctx, r, err, try)
	}
	if err != nil {
		return nil, "", err
	}

	if v, ok := r.(VersionReader); ok {
		version = v.Version()
	}
	return p, version, nil
}

// WriteAll writes data as the object name of s. Nil options mean the defaults. If Size
// is not set, it is the size of data. If Piece is set, WriteAll writes such pieces, one
// after the other.
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
