package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

var (
	_ blob.Locker = (*Store)(nil)
	_ blob.Clock  = (*Store)(nil)
)

const (
	// lockPrefix begins the last elements of the keys of locks. List does not yield them,
	// because no name of an object has this prefix.
	lockPrefix = blob.Reserved + "lock-"
	// maxLock bounds the size of a lock that is read, maxLocks how many are read, and
	// maxLockBytes the size of all of them. Removals of many files have large locks.
	maxLock      = 8 << 20
	maxLocks     = 100
	maxLockBytes = 16 << 20
)

// lockText is the content of a lock.
type lockText struct {
	Host string `json:"host"`
	PID  int    `json:"pid"`
	Note []byte `json:"note,omitempty"`
	Beat int    `json:"beat"` // so that each beat has another version
}

// lock is an object that its holder writes again and again. A lock that was written
// less than blob.Lease ago has a living holder; of others it is unknown.
type lock struct {
	s    *Store
	name string
	key  string

	mu      sync.Mutex
	text    lockText // guarded by mu
	version string   // guarded by mu
}

// TryLock implements [blob.Locker]. A lock costs a request, and one more for each
// change of its note, each beat and its release.
func (s *Store) TryLock(ctx context.Context, name string, note []byte) (blob.HeldLock, error) {
	if err := check(ctx, name); err != nil {
		return nil, s.fail("lock", name, err)
	}

	l := &lock{s: s, name: name, key: s.prefix + path.Join(path.Dir(name), lockPrefix+path.Base(name))}
	l.text.Host, _ = os.Hostname() // for messages only
	l.text.PID, l.text.Note = os.Getpid(), note
	err := l.put(ctx, Condition{IfAbsent: true})
	if errors.Is(err, ErrCondition) {
		err = l.takeOver(ctx)
	}
	if err != nil {
		return nil, s.fail("lock", name, err)
	}
	return l, nil
}

// takeOver takes an existing lock after its holder has stopped beating.
func (l *lock) takeOver(ctx context.Context) error {
	o, err := l.head(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist): // it was released meanwhile
		return l.put(ctx, Condition{IfAbsent: true})
	case err != nil:
		return err
	case l.s.ownerAt(o.ModTime) == blob.OwnerAlive:
		return blob.ErrLocked
	}

	if err = l.put(ctx, Condition{IfVersion: o.Version}); errors.Is(err, ErrCondition) {
		return blob.ErrLocked // another process was faster
	}
	return err
}

func (l *lock) head(ctx context.Context) (o Object, err error) {
	_, err = l.s.repeat(ctx, "lock", l.key, 0, func(ctx context.Context) (err error) {
		o, err = l.s.service.Head(ctx, l.key)
		return err
	})
	return o, err
}

// put writes the lock. The caller holds mu, or is its only user. If an answer got lost,
// a later attempt is refused although the lock is this one: then put looks at it.
func (l *lock) put(ctx context.Context, c Condition) error {
	body, err := json.Marshal(l.text)
	if err != nil {
		return err
	}

	c.Writer = newWriter()
	if l.s.opts.Unconditional {
		c = Condition{Writer: c.Writer}
	}

	var o Object
	uncertain, err := l.s.repeat(ctx, "lock", l.key, len(body), func(ctx context.Context) (err error) {
		o, err = l.s.service.Put(ctx, l.key, body, crc32c.Checksum(body), c)
		return err
	})
	if err != nil && uncertain && ctx.Err() == nil {
		if now, headErr := l.head(ctx); headErr == nil && now.Writer == c.Writer {
			o, err = now, nil
		}
	}
	if err == nil {
		l.version = o.Version
	}
	return err
}

// renew writes the lock again. The error wraps blob.ErrLocked if another process has
// taken the lock, or removed it.
func (l *lock) renew(ctx context.Context, change func(*lockText)) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	change(&l.text)
	l.text.Beat++
	err := l.put(ctx, Condition{IfVersion: l.version})
	if errors.Is(err, ErrCondition) || errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("another process has taken or removed the lock: %w", blob.ErrLocked)
	}
	if err != nil {
		return l.s.fail("lock", l.name, err)
	}
	return nil
}

// SetNote implements [blob.HeldLock].
func (l *lock) SetNote(note []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), abortTime)
	defer cancel()
	return l.renew(ctx, func(t *lockText) { t.Note = note })
}

// Beat implements [blob.HeldLock].
func (l *lock) Beat(ctx context.Context) error { return l.renew(ctx, func(*lockText) {}) }

// Release implements [blob.HeldLock].
func (l *lock) Release() error {
	ctx, cancel := context.WithTimeout(context.Background(), abortTime)
	defer cancel()
	_, err := l.s.repeat(ctx, "lock", l.key, 0, func(ctx context.Context) error {
		return l.s.service.Remove(ctx, []string{l.key})
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return l.s.fail("lock", l.name, err)
	}
	return nil
}

// Leave implements [blob.HeldLock]. Until blob.Lease is over, the holder seems to be alive.
func (l *lock) Leave() error { return nil }

// Locks implements [blob.Locker]. It costs a request, and one more for each lock.
func (s *Store) Locks(ctx context.Context, dir string) ([]blob.Lock, error) {
	prefix := s.prefix
	if dir != "" {
		if err := check(ctx, dir); err != nil {
			return nil, s.fail("locks", dir, err)
		}
		prefix += dir + "/"
	}

	var out []blob.Lock
	left := int64(maxLockBytes)
	for o, err := range pages(ctx, s, "list", prefix+lockPrefix, s.service.List) {
		if err != nil {
			return nil, s.fail("locks", dir, err)
		}

		name := strings.TrimPrefix(o.Key, prefix+lockPrefix)
		if strings.Contains(name, "/") {
			continue // below dir
		}

		l := blob.Lock{Name: path.Join(dir, name), ModTime: o.ModTime, Owner: s.ownerAt(o.ModTime)}
		if len(out) < maxLocks && o.Size <= min(maxLock, left) {
			s.readLock(ctx, o, &l)
			left -= o.Size
		}
		out = append(out, l)
	}

	return out, nil
}

// readLock fills in l from the content of a lock. Unreadable fields stay empty.
func (s *Store) readLock(ctx context.Context, o Object, l *blob.Lock) {
	body := make([]byte, max(1, o.Size))
	var n int
	_, err := s.repeat(ctx, "lock", o.Key, len(body), func(ctx context.Context) (err error) {
		n, _, err = s.service.Get(ctx, o.Key, "", body, 0)
		return err
	})

	var t lockText
	if err == nil && json.Unmarshal(body[:n], &t) == nil {
		l.Host, l.PID, l.Note = t.Host, t.PID, t.Note
	}
}

// ownerAt returns the state of the holder of a lock that was written at a time.
func (s *Store) ownerAt(written time.Time) blob.Owner {
	if s.Now().Sub(written) < blob.Lease {
		return blob.OwnerAlive
	}
	return blob.OwnerUnknown
}

// Now implements [blob.Clock]. Until the service has answered, it is the time of this host.
func (s *Store) Now() time.Time { return time.Now().Add(time.Duration(s.skew.Load())) }
