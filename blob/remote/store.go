package remote

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
)

var (
	_ blob.Store        = (*Store)(nil)
	_ blob.GapReader    = (*Store)(nil)
	_ blob.Sweeper      = (*Store)(nil)
	_ blob.TempFinder   = (*Store)(nil)
	_ blob.Meter        = (*Store)(nil)
	_ blob.Knower       = (*Store)(nil)
	_ blob.FolderLister = (*Store)(nil)
	_ blob.Versioner    = (*Store)(nil)
	_ blob.BulkRemover  = (*Store)(nil)
	_ blob.Hosted       = (*Store)(nil)
	_ blob.Child        = (*Store)(nil)

	_ blob.VersionRemover = (*Store)(nil)
)

const (
	// levelRetry is the level of messages about requests that are repeated.
	levelRetry = slog.LevelWarn
	// readGap is about the number of bytes that a service sends in the time of a request.
	readGap = 1 << 20
	// minRange and maxRange bound the ranges in which a large read is divided.
	minRange = 8 << 20
	maxRange = 64 << 20
	// prefixBytes is how much Open reads at once. Small objects need no other request.
	prefixBytes = 64 << 10
)

// Options change how a store works. Nil means the defaults.
type Options struct {
	Policy Policy
	// Parallel bounds the reads of one call of ReadAt that are under way at the same
	// time. Zero: 16.
	Parallel int
	// CopyBytes is the most bytes of an object that S3 copies with one request. It copies
	// larger ones in parts. Zero: 256 MiB.
	CopyBytes int64
	// Unconditional allows services that ignore conditions. Then two savers that commit
	// at the same time may both believe that they have won, and one of the checkpoints is
	// lost without an error.
	Unconditional bool
	// Logger receives a warning for each request that is repeated. Nil: no log.
	Logger *slog.Logger
}

// Store is the objects of a service with keys that begin with a prefix.
type Store struct {
	service Service
	prefix  string // empty, or ends with a slash
	name    string // for messages
	policy  Policy
	opts    Options
	log     *slog.Logger
	count   counters
	pace    pace
	limits  Limits
	reached atomic.Bool  // the service has answered
	skew    atomic.Int64 // see tally
	probe   *Probe
}

// New returns the objects of a service below a prefix, which is empty or a path. name is
// the address of the store for messages; it contains no secrets.
func New(service Service, prefix, name string, o *Options) (*Store, error) {
	s := &Store{service: service, prefix: strings.Trim(prefix, "/"), name: name, limits: service.Limits()}
	if s.probe = s.limits.Probe; s.probe == nil {
		s.probe = new(Probe)
	}
	if o != nil {
		s.opts = *o
	}

	if s.prefix != "" {
		if err := blob.CheckName(s.prefix); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", blob.ErrAddress, name, err)
		}
		s.prefix += "/"
	}

	s.policy = s.opts.Policy.withDefaults()
	if s.opts.Parallel <= 0 {
		s.opts.Parallel = 16
	}

	s.log = slog.New(slog.DiscardHandler)
	if s.opts.Logger != nil {
		s.log = s.opts.Logger.With("store", name)
	}
	return s, nil
}

// String returns the address of the store.
func (s *Store) String() string { return s.name }

// Service returns the service and the prefix of the keys.
func (s *Store) Service() (Service, string) { return s.service, s.prefix }

// Parent implements [blob.Child].
func (s *Store) Parent() (blob.Store, string, error) {
	dir, name := path.Split(strings.TrimSuffix(s.prefix, "/"))
	above, last := blob.SplitAddress(s.name)
	if name == "" || last == "" {
		return nil, "", s.fail("find the folder above", "", errors.ErrUnsupported)
	}

	parent, err := New(s.service, dir, above, &s.opts)
	if err != nil {
		return nil, "", err
	}

	parent.reached.Store(s.reached.Load())
	return parent, name, nil
}

// Host implements [blob.Hosted], if the service does.
func (s *Store) Host() string {
	if h, ok := s.service.(blob.Hosted); ok {
		return h.Host()
	}
	return ""
}

// ReadGap implements [blob.GapReader].
func (s *Store) ReadGap() int64 { return readGap }

// Versions implements [blob.Versioner].
func (s *Store) Versions() bool { return true }

// Traffic implements [blob.Meter].
func (s *Store) Traffic() blob.Traffic { return s.count.traffic() }

// Stat implements [blob.Store].
func (s *Store) Stat(ctx context.Context, name string) (blob.Info, error) {
	if err := check(ctx, name); err != nil {
		return blob.Info{}, s.fail("stat", name, err)
	}

	var o Object
	_, err := s.repeat(ctx, "stat", s.prefix+name, 0, func(ctx context.Context) (err error) {
		o, err = s.service.Head(ctx, s.prefix+name)
		return err
	})
	if err != nil {
		return blob.Info{}, s.fail("stat", name, err)
	}
	return s.info(o), nil
}

// List implements [blob.Store].
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		if err := blob.CheckPrefix(prefix); err != nil {
			yield(blob.Info{}, s.fail("list", prefix, err))
			return
		}
		for o, err := range pages(ctx, s, "list", s.prefix+prefix, s.service.List) {
			info := s.info(o)
			switch {
			case err == nil && ctx.Err() != nil:
				err = context.Cause(ctx)
			case err == nil && blob.CheckName(info.Name) != nil:
				continue // not an object of ours, such as a folder that a web page has made
			}
			if err != nil {
				yield(blob.Info{}, s.fail("list", prefix, err))
				return
			}

			if !yield(info, nil) {
				return
			}
		}
	}
}

// pages yields the entries of a list, which a service returns page by page. After a non-nil
// error the sequence ends. The error never wraps fs.ErrNotExist.
func pages[T any](ctx context.Context, s *Store, op, prefix string, list func(ctx context.Context, prefix, token string) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var seen PageTokens
		for token := ""; ; {
			var page []T
			var next string
			_, err := s.repeat(ctx, op, prefix, 0, func(ctx context.Context) (err error) {
				page, next, err = list(ctx, prefix, token)
				return err
			})
			if errors.Is(err, fs.ErrNotExist) {
				// A prefix without objects is no error. This is a missing bucket or another
				// service, which must not pass for a place without a checkpoint.
				err = errors.New(err.Error())
			}
			if err != nil {
				var none T
				yield(none, err)
				return
			}

			for _, x := range page {
				if !yield(x, nil) {
					return
				}
			}

			if token = next; token == "" {
				return
			}
			if err := seen.Next(token); err != nil {
				var none T
				yield(none, err)
				return
			}
		}
	}
}

// Folders implements [blob.FolderLister]. If the service is not a [FolderService], it
// lists all objects below dir.
func (s *Store) Folders(ctx context.Context, dir string) ([]string, error) {
	service, ok := s.service.(FolderService)
	if !ok {
		return blob.Folders(ctx, struct{ blob.Store }{s}, dir)
	}

	prefix := s.folder(dir)
	if dir != "" {
		if err := check(ctx, dir); err != nil {
			return nil, s.fail("list", dir, err)
		}
	}

	var out []string
	for key, err := range pages(ctx, s, "list", prefix, service.Folders) {
		if err != nil {
			return nil, s.fail("list", dir, err)
		}
		if name := strings.TrimSuffix(strings.TrimPrefix(key, prefix), "/"); blob.CheckName(name) == nil {
			out = append(out, name)
		}
	}

	slices.Sort(out) // services order "b-c/" before "b/"
	return out, nil
}

// Remove implements [blob.Store].
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := check(ctx, name); err != nil {
		return s.fail("remove", name, err)
	}

	_, err := s.repeat(ctx, "remove", s.prefix+name, 0, func(ctx context.Context) error {
		return s.service.Remove(ctx, []string{s.prefix + name})
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.fail("remove", name, err)
	}
	return nil
}

// RemoveVersion implements [blob.VersionRemover]. It costs two requests: services that
// ignore the condition of a removal do not say so, so it looks at the object first.
func (s *Store) RemoveVersion(ctx context.Context, name, version string) error {
	if err := check(ctx, name); err != nil {
		return s.fail("remove", name, err)
	}

	key, sent := s.prefix+name, false
	uncertain, err := s.repeat(ctx, "remove", key, 0, func(ctx context.Context) error {
		o, err := s.service.Head(ctx, key)
		if err == nil && o.Version != version {
			err = ErrCondition
		}
		if err != nil {
			return err
		}
		sent = true
		return s.service.RemoveVersion(ctx, key, version)
	})
	switch {
	case errors.Is(err, fs.ErrNotExist) && sent && uncertain:
		return nil // an earlier attempt has removed it, but its answer got lost
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%w: %w", blob.ErrRemoved, err)
	case errors.Is(err, ErrCondition):
		err = fmt.Errorf("%w: %w", blob.ErrChanged, err)
	case errors.Is(err, errors.ErrUnsupported):
		err = s.removeAfterLook(ctx, key)
	}
	if err != nil {
		return s.fail("remove", name, err)
	}
	return nil
}

// removeAfterLook removes an object that has just been looked at, for services that refuse
// the condition.
func (s *Store) removeAfterLook(ctx context.Context, key string) error {
	_, err := s.repeat(ctx, "remove", key, 0, func(ctx context.Context) error { return s.service.Remove(ctx, []string{key}) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// RemoveAll implements [blob.BulkRemover].
func (s *Store) RemoveAll(ctx context.Context, names []string) error {
	var errs []error
	for batch := range slices.Chunk(names, max(1, s.limits.Removes)) {
		keys := make([]string, len(batch))
		for i, name := range batch {
			if err := check(ctx, name); err != nil {
				return errors.Join(append(errs, s.fail("remove", name, err))...)
			}
			keys[i] = s.prefix + name
		}

		_, err := s.repeat(ctx, "remove", keys[0], 0, func(ctx context.Context) error { return s.service.Remove(ctx, keys) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, s.fail("remove", batch[0], err))
		}
	}

	return errors.Join(errs...)
}

// Temps implements [blob.Sweeper]: uploads that were begun and not ended.
func (s *Store) Temps(ctx context.Context, dir string) ([]blob.Temp, error) {
	var found []PendingUpload
	err := s.uploads(ctx, dir, false, func(u PendingUpload) error {
		if strings.Contains(strings.TrimPrefix(u.Key, s.folder(dir)), "/") {
			return nil // below dir
		}
		found = append(found, u)
		return nil
	})

	out := make([]blob.Temp, len(found))
	sizer, ok := s.service.(UploadSizer)
	sizeErr := work.Each(ctx, len(found), s.opts.Parallel, func(ctx context.Context, i int) error {
		u := &found[i]
		var err error
		if ok {
			_, err = s.repeat(ctx, "sweep", u.Key, 0, func(ctx context.Context) (err error) {
				u.Size, err = sizer.UploadSize(ctx, *u)
				return err
			})
		}
		if errors.Is(err, fs.ErrNotExist) { // it has ended meanwhile
			return nil
		}

		out[i] = blob.Temp{Name: s.tempName(*u), Size: u.Size, ModTime: u.Begun}
		if errors.Is(err, fs.ErrPermission) { // a sweep works without sizes
			return nil
		}
		return err
	})
	if sizeErr != nil {
		err = cmp.Or(err, s.fail("sweep", dir, sizeErr))
	}
	return slices.DeleteFunc(out, func(t blob.Temp) bool { return t.Name == "" }), err
}

// TempFolders implements [blob.TempFinder].
func (s *Store) TempFolders(ctx context.Context, dir string) ([]string, error) {
	var out []string
	err := s.uploads(ctx, dir, true, func(u PendingUpload) error {
		name := strings.TrimPrefix(u.Key, s.folder(dir))
		if i := strings.LastIndexByte(name, '/'); i > 0 && blob.CheckName(name[:i]) == nil {
			out = append(out, name[:i])
		}
		return nil
	})

	slices.Sort(out)
	return slices.Compact(out), err
}

// folder returns the prefix of the keys of the objects in and below dir.
func (s *Store) folder(dir string) string {
	if dir == "" {
		return s.prefix
	}
	return s.prefix + dir + "/"
}

// SweepTemp implements [blob.Sweeper]. The owners of uploads are unknown.
func (s *Store) SweepTemp(ctx context.Context, dir string, olderThan time.Duration) (n int, err error) {
	if olderThan < 0 {
		return 0, nil
	}

	err = s.uploads(ctx, dir, false, func(u PendingUpload) error {
		if strings.Contains(strings.TrimPrefix(u.Key, s.folder(dir)), "/") {
			return nil // below dir
		}
		if u.Begun.IsZero() || s.Now().Sub(u.Begun) < olderThan { // some services do not say when it was begun
			return nil
		}

		_, err := s.repeat(ctx, "sweep", u.Key, 0, func(ctx context.Context) error { return s.service.AbortUpload(ctx, u) })
		if err == nil {
			n++
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	})
	return n, err
}

// uploads calls fn for each pending upload that the service lists for dir.
func (s *Store) uploads(ctx context.Context, dir string, deep bool, fn func(PendingUpload) error) error {
	list := func(ctx context.Context, prefix, token string) ([]PendingUpload, string, error) {
		return s.service.Uploads(ctx, prefix, deep, token)
	}
	for u, err := range pages(ctx, s, "sweep", s.folder(dir), list) {
		if err != nil {
			return s.fail("sweep", dir, err)
		}
		if err := fn(u); err != nil {
			return s.fail("sweep", u.Key, err)
		}
	}

	return nil
}

// tempName returns the name of an upload in messages.
func (s *Store) tempName(u PendingUpload) string {
	name := strings.TrimPrefix(u.Key, s.prefix)
	return path.Join(path.Dir(name), blob.Reserved+path.Base(name)+"-"+u.ID)
}

func (s *Store) info(o Object) blob.Info {
	return blob.Info{Name: strings.TrimPrefix(o.Key, s.prefix), Size: o.Size, ModTime: o.ModTime, Version: o.Version}
}

func (s *Store) fail(op, name string, err error) error {
	return &blob.Error{Op: op, Store: s.name, Name: name, Err: err, Service: true}
}

func check(ctx context.Context, name string) error {
	if err := blob.CheckName(name); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// newWriter returns a name that no other writer has.
func newWriter() string { return rand.Text() }

func attrs(op, key string, attempt int, wait, elapsed time.Duration, err error) []slog.Attr {
	return []slog.Attr{
		slog.String("op", op), slog.String("key", key), slog.Int("attempt", attempt), slog.Duration("wait", wait), slog.Any("error", err),
		slog.Duration("elapsed", elapsed),
	}
}
