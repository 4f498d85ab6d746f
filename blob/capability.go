package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// Wrapper is implemented by stores that wrap another store. If a wrapper changes
// names, it must implement every capability that takes names: otherwise [As] would
// return the capability of the wrapped store, which expects other names.
type Wrapper interface {
	// Unwrap returns the wrapped store.
	Unwrap() Store
}

// As returns s, or the first store that s wraps, directly or indirectly, that has
// capability T.
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

// GapReader is a capability of stores with expensive requests: to read a gap of
// unneeded bytes is cheaper than a second request. It is a capability of readers too, if a
// store keeps only some of its objects far away.
type GapReader interface {
	// ReadGap returns the size of the largest gap, in bytes, that is cheaper than a
	// request.
	ReadGap() int64
}

// Cooler is a capability of stores with a cache in memory that can be emptied, so that
// the next read is one of the medium. It is for measurements.
type Cooler interface {
	// Cool drops the object name from the cache. If that is not possible, the error
	// wraps errors.ErrUnsupported.
	Cool(ctx context.Context, name string) error
}

// Owner is the state of the process that made an object of a store.
type Owner int

const (
	// OwnerUnknown: the process may be on another host, or the store cannot tell.
	OwnerUnknown Owner = iota
	// OwnerAlive: the process still runs.
	OwnerAlive
	// OwnerDead: the process ran on this host and has ended.
	OwnerDead
)

// String returns unknown, running or dead.
func (o Owner) String() string {
	switch o {
	case OwnerAlive:
		return "running"
	case OwnerDead:
		return "dead"
	}
	return "unknown"
}

// Temp is the temporary data of a writer before Commit or Abort. No reader sees it. If
// the process of the writer dies, the data takes space until a sweep removes it.
type Temp struct {
	Name    string // not the name of an object
	Size    int64
	ModTime time.Time
	Owner   Owner
}

// Sweeper is a capability of stores in which a dead writer leaves a Temp. Both methods
// look at the directory dir only, not below it. The empty string is the root.
type Sweeper interface {
	// Temps returns the Temps of all writers in dir, including running ones.
	Temps(ctx context.Context, dir string) ([]Temp, error)
	// SweepTemp removes each Temp of dir with a dead owner, and each with an unknown owner that
	// is at least olderThan old. It returns the number of removed ones, also with an error.
	SweepTemp(ctx context.Context, dir string, olderThan time.Duration) (int, error)
}

// TempFinder is a capability of stores in which a folder may have Temps and no objects, so
// that [Folders] does not return it.
type TempFinder interface {
	// TempFolders returns the folders below dir, at any depth, in which there are Temps:
	// in order, each once, and without dir. The empty dir is the root.
	TempFolders(ctx context.Context, dir string) ([]string, error)
}

// Lock is a lock that was found in a store.
type Lock struct {
	Name string
	// Note is the text of the owner.
	Note []byte
	// Host and PID identify the owner, for messages.
	Host    string
	PID     int
	ModTime time.Time
	Owner   Owner
}

// Lease is how long after its last Beat a lock has a living owner, in stores that cannot
// find out whether its process runs.
const Lease = 2 * time.Minute

// HeldLock is a lock that this process holds.
type HeldLock interface {
	// SetNote replaces the note of the lock.
	SetNote(note []byte) error
	// Beat shows other processes that the holder is alive, for as long as Lease. It sets
	// Lock.ModTime. The error wraps ErrLocked if this process has lost the lock.
	Beat(ctx context.Context) error
	// Release releases the lock and removes it.
	Release() error
	// Leave releases the lock and does not remove it, as if the process had died: another
	// process finds it with its note.
	Leave() error
}

// Locker is a capability of stores with locks. A lock is held until it is released or
// its process ends in any way, so it shows other processes whether its owner is alive. A
// store that cannot find out whether the process runs goes by the time of the last Beat,
// so a holder calls Beat several times in each [Lease]. Names of locks follow the rules of names of objects, but locks are not objects.
type Locker interface {
	// TryLock takes the lock of that name and stores note with it. It does not
	// wait: if another holder is alive, the error wraps ErrLocked. If the store cannot
	// lock, it wraps errors.ErrUnsupported. TryLock takes over the lock of a dead
	// process.
	TryLock(ctx context.Context, name string, note []byte) (HeldLock, error)
	// Locks returns the locks in the directory dir, but not below it.
	Locks(ctx context.Context, dir string) ([]Lock, error)
}

// Clock is a capability of stores with a clock of their own, from which the times of
// objects come.
type Clock interface {
	Now() time.Time
}

// Age returns how long ago an object of s was written, by the clock of s. It is 0 if the
// time is unknown.
func Age(s Store, written time.Time) time.Duration {
	if written.IsZero() {
		return 0
	}
	now := time.Now()
	if c, ok := As[Clock](s); ok {
		now = c.Now()
	}
	return now.Sub(written)
}

// DirectReader is a capability of readers that can read past the system's cache.
// A large range that is not cached is read faster that way, and does not push
// other data out of the cache. [ReadLarge] uses it.
type DirectReader interface {
	// Cached reports whether ReadAt is better for n bytes from off: most of
	// them are in the system's cache, or the reader cannot read past it.
	Cached(off, n int64) bool
	// ReadDirect reads n bytes from off and returns them as a part of buf, which begins at a
	// multiple of Align and is at least n bytes and two times Align long. It bypasses the
	// system's cache. Otherwise it is like ReadAt.
	ReadDirect(ctx context.Context, buf []byte, off, n int64) ([]byte, error)
}

// FileReader is a capability of readers of an object that is a file of this host.
type FileReader interface {
	// File returns the file, which the reader has opened and closes. The whole file is the
	// object. The caller may change the offset of the file, which ReadAt does not use, and must
	// not write.
	File() *os.File
}

// CopyReader is a capability of readers of stores in which an object may have several copies.
// A store does not compare them. A caller that has a checksum of the bytes reads another copy
// if one is damaged, or cannot be read; see [Reread].
type CopyReader interface {
	// Copies returns the places of the copies that have the size of the object, such as names of
	// hosts. The first one is the copy that ReadAt reads. Later calls return the same places at
	// the same indexes, and may add others. With an error, there may be copies at other places.
	Copies(ctx context.Context) (places []string, err error)
	// ReadCopy is like ReadAt, and reads the copy at index n of Copies. It never reads another
	// copy instead.
	ReadCopy(ctx context.Context, n int, p []byte, off int64) error
	// Report tells the store that the copy at index n of Copies is damaged or cannot be read,
	// because of err. The store may log it or replace the copy.
	Report(n int, err error)
}

// ReadFunc reads a range of an object, as Reader.ReadAt does.
type ReadFunc func(ctx context.Context, p []byte, off int64) error

// Reread is called after bytes of r were damaged, or could not be read, because of err. If r is
// a [CopyReader], Reread calls try for each other copy until try returns nil, which is then the
// result. try reads the same bytes again by read, in place of r.ReadAt, and checks them; read
// works as long as r is open. Reread reports each copy that did not succeed. If none did, the
// error wraps err and names all places.
func Reread(ctx context.Context, r Reader, err error, try func(read ReadFunc) error) error {
	c, ok := r.(CopyReader)
	if !ok || ctx.Err() != nil {
		return err
	}

	places, unknown := c.Copies(ctx)
	if len(places) == 0 || ctx.Err() != nil {
		return err
	}

	c.Report(0, err)
	var failed strings.Builder
	for n := 1; n < len(places); n++ {
		again := try(func(ctx context.Context, p []byte, off int64) error { return c.ReadCopy(ctx, n, p, off) })
		if again == nil || ctx.Err() != nil {
			return again
		}
		c.Report(n, again)
		fmt.Fprintf(&failed, "; on %s: %v", places[n], again)
	}

	if unknown != nil {
		fmt.Fprintf(&failed, "; there may be other copies: %v", unknown)
	}
	return fmt.Errorf("%w (on %s%s)", err, places[0], failed.String())
}

// Knower is a capability of stores with expensive requests: it saves the request that Open
// makes to find out the size of an object.
type Knower interface {
	// OpenKnown is like Open for an object that exists and has the size of o, and its
	// version if that is not empty. If that is not so, reads fail.
	OpenKnown(ctx context.Context, o Info) (Reader, error)
}

// OpenKnown opens an object with the size of o, and its version if that is not empty, in
// the cheapest way that s has. If the object is another one by then, OpenKnown or the reads
// fail.
func OpenKnown(ctx context.Context, s Store, o Info) (Reader, error) {
	if k, ok := As[Knower](s); ok {
		return k.OpenKnown(ctx, o)
	}

	r, err := s.Open(ctx, o.Name)
	if err != nil || o.Version == "" {
		return r, err
	}

	if v, ok := r.(VersionReader); ok && v.Version() != "" && v.Version() != o.Version {
		r.Close()
		return nil, &Error{Op: "open", Store: s.String(), Name: o.Name, Err: ErrChanged}
	}
	return r, nil
}

// BulkRemover is a capability of stores that remove many objects with one request.
type BulkRemover interface {
	// RemoveAll removes objects, as Remove does. It continues after an error.
	RemoveAll(ctx context.Context, names []string) error
}

// VersionRemover is a capability of stores that remove an object on a condition.
type VersionRemover interface {
	// RemoveVersion removes the object name if it has this Info.Version, and otherwise leaves it
	// unchanged. The error wraps ErrChanged if the object has another version or does not exist;
	// if it does not exist, it wraps fs.ErrNotExist too. Unlike a removal by Remove, the removal
	// survives a loss of power if the medium allows that.
	//
	// Of a removal and a writer with the same version in CreateOptions.IfVersion, one
	// succeeds. A service may ignore the condition of a removal; the store then looks at
	// the object right before, and an object that is written in between is lost. In a file
	// system, the same holds for writers without IfVersion and for other programs.
	RemoveVersion(ctx context.Context, name, version string) error
}

// RemoveVersion removes the object name of s if it has this version; see [VersionRemover].
// If s has no such capability, RemoveVersion looks at the object right before it removes
// it. If version is empty, the error wraps errors.ErrUnsupported: s has no versions.
func RemoveVersion(ctx context.Context, s Store, name, version string) error {
	if version == "" {
		return &Error{Op: "remove", Store: s.String(), Name: name, Err: fmt.Errorf("%w: the store has no versions", errors.ErrUnsupported)}
	}
	if r, ok := As[VersionRemover](s); ok {
		return r.RemoveVersion(ctx, name, version)
	}

	info, err := s.Stat(ctx, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Error{Op: "remove", Store: s.String(), Name: name, Err: ErrRemoved}
	case err != nil:
		return err
	case info.Version != version:
		return &Error{Op: "remove", Store: s.String(), Name: name, Err: ErrChanged}
	}

	return s.Remove(ctx, name)
}

// FolderRemover is a capability of stores with folders that stay when they are empty.
type FolderRemover interface {
	// RemoveFolder removes the folder dir if it is empty. If it is not empty or does not
	// exist, this is not an error. The empty dir is the root of the store.
	RemoveFolder(ctx context.Context, dir string) error
}

// Reclaimer is a capability of stores that take long to free the space of removed objects,
// and write slowly meanwhile.
type Reclaimer interface {
	// DeferReclaim announces that n bytes will be written. Until end is called, which the
	// caller must do, the store does not free the space of removed objects, unless there is
	// no room otherwise. Before it returns, it frees the space of objects that were removed
	// before the preceding call, so that the space does not grow from call to call.
	DeferReclaim(ctx context.Context, n int64) (end func())
}

// Versioner is a capability of stores of versioned objects: Info.Version is set, and
// CreateOptions.IfVersion works.
type Versioner interface {
	// Versions reports whether the store has versions.
	Versions() bool
}

// VersionReader is a capability of readers of stores with versions.
type VersionReader interface {
	// Version returns the Info.Version of the object that is read. It is empty as long as
	// it is not known: a reader of OpenKnown may learn it with its first read.
	Version() string
}

// Resident is a capability of stores whose objects are in the memory of this host: to write an
// object takes no longer than to copy its bytes, and small writes at any offset are as good as large ones.
type Resident interface {
	// Resident reports whether new objects are in memory.
	Resident() bool
}

// Hosted is a capability of stores with a String that lacks the server or the account.
type Hosted interface {
	// Host identifies the server and the account, without secrets. It may be empty.
	Host() string
}

// HasVersions reports whether the objects of s have versions.
func HasVersions(s Store) bool {
	v, ok := As[Versioner](s)
	return ok && v.Versions()
}

// IsResident reports whether new objects of s are in memory.
func IsResident(s Store) bool {
	r, ok := As[Resident](s)
	return ok && r.Resident()
}

// Traffic counts the requests and bytes of a store since it was opened.
type Traffic struct {
	Requests int64 `json:"requests"` // all requests, including repeated ones
	Retries  int64 `json:"retries"`  // requests that were made again after a failure
	Hedges   int64 `json:"hedges"`   // reads that were made twice because the first was slow
	Sent     int64 `json:"bytes_sent"`
	Received int64 `json:"bytes_received"`
	// Cached is how many bytes came from a cache of this host instead; see package cache.
	Cached int64 `json:"bytes_cached,omitempty"`
}

// Sub returns the traffic after the earlier count u.
func (t Traffic) Sub(u Traffic) Traffic {
	return Traffic{t.Requests - u.Requests, t.Retries - u.Retries, t.Hedges - u.Hedges, t.Sent - u.Sent, t.Received - u.Received, t.Cached - u.Cached}
}

// Add returns the sum of two counts.
func (t Traffic) Add(u Traffic) Traffic {
	return Traffic{t.Requests + u.Requests, t.Retries + u.Retries, t.Hedges + u.Hedges, t.Sent + u.Sent, t.Received + u.Received, t.Cached + u.Cached}
}

// Meter is a capability of stores that count their requests.
type Meter interface {
	Traffic() Traffic
}

// Copier is a capability of stores of an object storage service: the service copies
// objects by itself, and no bytes move through this process.
type Copier interface {
	// CopyFrom makes the object name a copy of an object of another store, or replaces it. o
	// comes from Stat or List of that store. The error wraps ErrChanged if the object is another
	// one by then, and errors.ErrUnsupported if the service cannot copy from that store.
	CopyFrom(ctx context.Context, from Store, o Info, name string) (Info, error)
}

// Summer is a capability of stores that keep a checksum of each object.
type Summer interface {
	// Sum returns the CRC-32C of the object name without reading it. ok is false if the
	// store does not have it.
	Sum(ctx context.Context, name string) (sum uint32, ok bool, err error)
}

// Since returns a function that returns the traffic of s since the call of Since, or nil
// if s does not count it.
func Since(s Store) func() *Traffic {
	m, ok := As[Meter](s)
	if !ok {
		return func() *Traffic { return nil }
	}
	before := m.Traffic()
	return func() *Traffic {
		t := m.Traffic().Sub(before)
		return &t
	}
}
