package remote

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

const (
	// partBytes is the size of parts if the writer of the object does not set one.
	partBytes = 8 << 20
	// abortTime bounds how long Abort tries to remove the parts of an upload.
	abortTime = 20 * time.Second
)

// writer writes an object. Objects of one part are kept in memory until Commit, which
// sends them with one request. Larger ones are sent part by part: straight from the
// memory of the caller if a write covers a whole part.
type writer struct {
	s    *Store
	name string
	key  string
	opts blob.CreateOptions
	acct *blob.Extents
	id   string // see Condition.Writer
	part int64  // bytes of a part

	begin sync.Mutex // held while the upload is begun

	mu     sync.Mutex
	ended  bool             // guarded by mu
	upload Upload           // guarded by mu; nil: not begun
	parts  map[int]*partial // guarded by mu
	sums   map[int]partSum  // guarded by mu; of parts that were sent
}

// partial is a part of which some bytes are there.
type partial struct {
	data   []byte
	filled int64
}

type partSum struct {
	sum uint32
	n   int64
}

// Create implements [blob.Store]. It makes no request.
func (s *Store) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	if err := check(ctx, name); err != nil {
		return nil, s.fail("create", name, err)
	}

	acct, err := blob.NewExtents(opts)
	if err != nil {
		return nil, s.fail("create", name, err)
	}

	w := &writer{s: s, name: name, key: s.prefix + name, acct: acct, id: newWriter(), parts: map[int]*partial{}, sums: map[int]partSum{}}
	if opts != nil {
		w.opts = *opts
	}

	if w.part, err = s.partSize(w.opts); err != nil {
		return nil, s.fail("create", name, err)
	}
	return w, nil
}

// partSize returns the bytes of a part: a multiple of the pieces, within the limits of
// the service.
func (s *Store) partSize(o blob.CreateOptions) (int64, error) {
	unit := max(o.Piece, blob.Align)
	least := max(s.limits.MinPart, (o.Size+int64(s.limits.Parts)-1)/int64(s.limits.Parts))
	if o.Piece == 0 {
		least = max(least, partBytes)
	}

	n := (least + unit - 1) / unit * unit
	if n > s.limits.MaxPart {
		return 0, fmt.Errorf("an object of %d bytes is too large for %s: %w", o.Size, s.name, errors.ErrUnsupported)
	}
	return n, nil
}

// WriteAt implements [blob.Writer].
func (w *writer) WriteAt(ctx context.Context, p []byte, off int64) error {
	if err := w.write(ctx, p, off); err != nil {
		return w.s.fail("write", w.name, err)
	}
	return nil
}

func (w *writer) write(ctx context.Context, p []byte, off int64) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if w.isEnded() {
		return blob.ErrClosed
	}
	if err := w.acct.Begin(off, len(p)); err != nil {
		return err
	}

	begin, length := off, len(p)
	defer func() { w.acct.End(begin, length, err == nil) }()

	for len(p) > 0 {
		number := int(off / w.part)
		start := int64(number) * w.part
		n := min(int64(len(p)), start+w.part-off)
		if err := w.writePart(ctx, number, p[:n], off-start); err != nil {
			return err
		}
		p, off = p[n:], off+n
	}

	return nil
}

func (w *writer) isEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// writePart takes bytes of a part. If the part is complete and not the only one, it sends
// the part.
func (w *writer) writePart(ctx context.Context, number int, p []byte, at int64) error {
	size := w.part // of this part
	single := false
	if w.opts.Size > 0 {
		size = min(size, w.opts.Size-int64(number)*w.part)
		single = w.opts.Size <= w.part
	}

	if at == 0 && int64(len(p)) == size && !single {
		return w.send(ctx, number, p)
	}

	w.mu.Lock()
	part := w.parts[number]
	if part == nil {
		part = &partial{data: make([]byte, size)}
		w.parts[number] = part
	}
	w.mu.Unlock()
	copy(part.data[at:], p)

	w.mu.Lock()
	part.filled += int64(len(p))
	full := part.filled == size && !single
	w.mu.Unlock()
	if !full {
		return nil
	}

	if err := w.send(ctx, number, part.data); err != nil {
		w.mu.Lock()
		part.filled -= int64(len(p)) // the caller may write this range again
		w.mu.Unlock()
		return err
	}

	w.mu.Lock()
	delete(w.parts, number)
	w.mu.Unlock()
	return nil
}

// send sends a part. The first one begins the upload.
func (w *writer) send(ctx context.Context, number int, p []byte) error {
	u, err := w.begun(ctx)
	if err != nil {
		return err
	}

	sum := crc32c.Checksum(p)
	_, err = w.s.repeat(ctx, "write", w.key, len(p), func(ctx context.Context) error {
		w.s.count.sent.Add(int64(len(p)))
		return u.Part(ctx, number, p, sum)
	})
	if err != nil {
		return explainEnded(err)
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	w.sums[number] = partSum{sum, int64(len(p))}
	return nil
}

// begun returns the upload.
func (w *writer) begun(ctx context.Context) (Upload, error) {
	w.begin.Lock()
	defer w.begin.Unlock()

	w.mu.Lock()
	u, ended := w.upload, w.ended
	w.mu.Unlock()

	if ended {
		return nil, blob.ErrClosed
	}
	if u != nil {
		return u, nil
	}

	_, err := w.s.repeat(ctx, "create", w.key, 0, func(ctx context.Context) (err error) {
		u, err = w.s.service.Begin(ctx, w.key, w.id)
		return err
	})
	if err != nil {
		return nil, err
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	w.upload = u
	return u, nil
}

// Commit implements [blob.Writer].
func (w *writer) Commit(ctx context.Context) (blob.Info, error) {
	o, err := w.commit(ctx)
	if err != nil {
		w.Abort() // its own error would hide this one; a sweep finds leftovers
		return blob.Info{}, w.s.fail("commit", w.name, err)
	}
	return blob.Info{Name: w.name, Size: o.Size, ModTime: o.ModTime, Version: o.Version}, nil
}

func (w *writer) commit(ctx context.Context) (Object, error) {
	if w.isEnded() {
		return Object{}, blob.ErrClosed
	}
	if ctx.Err() != nil {
		return Object{}, context.Cause(ctx)
	}

	size, err := w.acct.Size()
	if err != nil {
		return Object{}, err
	}

	w.mu.Lock()
	rest, whole := w.parts, w.upload == nil
	w.mu.Unlock()
	var o Object
	if whole {
		o, err = w.put(ctx, size, rest[0])
	} else {
		o, err = w.complete(ctx, size, rest)
	}
	if err != nil {
		return Object{}, err
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.ended, w.upload, w.parts = true, nil, nil
	o.Size = size
	return o, nil
}

// put writes an object of one part.
func (w *writer) put(ctx context.Context, size int64, part *partial) (Object, error) {
	var body []byte
	if part != nil {
		body = part.data[:size]
	}

	sum := crc32c.Checksum(body)
	request := func(ctx context.Context) (Object, error) {
		w.s.count.sent.Add(size)
		return w.s.service.Put(ctx, w.key, body, sum, w.condition())
	}
	o, err := w.publish(ctx, len(body), request)
	if err == nil && w.opts.IfAbsent && !w.s.opts.Unconditional && !w.s.limits.Conditional {
		err = w.s.tryOut(ctx, w.key, body, sum)
	}
	return o, err
}

// complete sends the remaining bytes and completes an object of several parts.
func (w *writer) complete(ctx context.Context, size int64, rest map[int]*partial) (Object, error) {
	for number, part := range rest {
		if err := w.send(ctx, number, part.data[:part.filled]); err != nil {
			return Object{}, err
		}
	}

	w.mu.Lock()
	upload, n := w.upload, len(w.sums)
	var sum uint32
	for i := range n {
		sum = crc32c.Join(sum, w.sums[i].sum, w.sums[i].n)
	}
	w.mu.Unlock()

	// Some services put the parts together before they answer: allow for a disk's pace.
	work := int(min(size/128, 600*w.s.policy.Slow))
	o, err := w.publish(ctx, work, func(ctx context.Context) (Object, error) { return upload.Complete(ctx, n, size, sum, w.condition()) })
	return o, explainEnded(err)
}

// explainEnded returns the error of a request for an upload that no longer exists. It does
// not wrap fs.ErrNotExist, which callers take for a missing object or path.
func explainEnded(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !errors.Is(err, fs.ErrNotExist) || ok && e.Hint != "" { // such as a missing bucket
		return err
	}
	return fmt.Errorf("the upload was ended by another program, such as 'cairn clean --older-than', or by a rule of the bucket: %v", err)
}

// condition returns the condition of the object. A service that ignores conditions gets
// no condition.
func (w *writer) condition() Condition {
	if w.s.opts.Unconditional {
		return Condition{Writer: w.id}
	}
	return Condition{IfAbsent: w.opts.IfAbsent, IfVersion: w.opts.IfVersion, Writer: w.id}
}

// publish makes the request that makes the object visible. If an attempt got no answer,
// the service may carry it out later: after an error, publish looks at the object. Either
// it is there, or it has changed so that the condition refuses the attempt, or the error
// wraps blob.ErrUncertain.
func (w *writer) publish(ctx context.Context, n int, request func(context.Context) (Object, error)) (Object, error) {
	if w.s.opts.Unconditional {
		if err := w.checkUnconditional(ctx); err != nil {
			return Object{}, err
		}
	}

	var o Object
	uncertain, err := w.s.repeat(ctx, "commit", w.key, n, func(ctx context.Context) (err error) {
		o, err = request(ctx)
		return err
	})
	if err == nil {
		return o, nil
	}

	if uncertain {
		now, known := w.fate(ctx)
		switch {
		case known && now.Writer == w.id:
			return now, nil
		case !known:
			return Object{}, fmt.Errorf("%w: %w", blob.ErrUncertain, err)
		}
	}

	switch {
	case w.opts.IfAbsent && errors.Is(err, ErrCondition):
		return Object{}, fs.ErrExist
	case w.opts.IfVersion != "" && (errors.Is(err, ErrCondition) || errors.Is(err, fs.ErrNotExist)):
		return Object{}, blob.ErrChanged
	}

	return Object{}, err
}

// fate asks the service about a write without an answer. known is true if the object was
// written, which is then o, or if it can no longer be written, because the object does not
// meet the condition.
func (w *writer) fate(ctx context.Context) (o Object, known bool) {
	if ctx.Err() != nil {
		return Object{}, false
	}

	o, err := w.head(ctx)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return Object{}, false
	case err == nil && o.Writer == w.id:
		return o, true
	case w.s.opts.Unconditional:
		return Object{}, false
	}

	gone := err != nil
	return o, w.opts.IfAbsent && !gone || w.opts.IfVersion != "" && (gone || o.Version != w.opts.IfVersion)
}

func (w *writer) head(ctx context.Context) (o Object, err error) {
	_, err = w.s.repeat(ctx, "stat", w.key, 0, func(ctx context.Context) (err error) {
		o, err = w.s.service.Head(ctx, w.key)
		return err
	})
	return o, err
}

// checkUnconditional checks the condition of the write, but not atomically.
func (w *writer) checkUnconditional(ctx context.Context) error {
	if !w.opts.IfAbsent && w.opts.IfVersion == "" {
		return nil
	}

	now, err := w.head(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist) && w.opts.IfAbsent:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return blob.ErrChanged
	case err != nil:
		return err
	case w.opts.IfAbsent:
		return fs.ErrExist
	case now.Version != w.opts.IfVersion:
		return blob.ErrChanged
	}

	return nil
}

// Abort implements [blob.Writer].
func (w *writer) Abort() error {
	w.begin.Lock() // a write may be beginning the upload
	defer w.begin.Unlock()

	w.mu.Lock()
	upload := w.upload
	w.ended, w.upload, w.parts = true, nil, nil
	w.mu.Unlock()
	if upload == nil {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), abortTime)
	defer cancel()

	_, err := w.s.repeat(ctx, "abort", w.key, 0, upload.Abort)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return w.s.fail("abort", w.name, err)
	}
	return nil
}

// ErrNoConditions reports a service that ignores conditions.
var ErrNoConditions = errors.New("the service ignores If-None-Match, so two savers at the same time could both believe that they have won; " +
	"the option unconditional allows that")

// Probe is the result of trying out whether a service keeps conditions.
type Probe struct {
	mu   sync.Mutex
	kept bool // guarded by mu
}

// tryOut finds out, once, whether the service keeps conditions: it writes an object that
// is there once more, which the service must refuse. If it does not, no harm is done,
// because the bytes are the same.
func (s *Store) tryOut(ctx context.Context, key string, body []byte, sum uint32) error {
	s.probe.mu.Lock()
	defer s.probe.mu.Unlock()

	if s.probe.kept {
		return nil
	}

	_, err := s.repeat(ctx, "probe", key, len(body), func(ctx context.Context) error {
		_, err := s.service.Put(ctx, key, body, sum, Condition{IfAbsent: true, Writer: newWriter()})
		return err
	})
	if err == nil {
		return ErrNoConditions
	}
	if !errors.Is(err, ErrCondition) {
		return err
	}

	s.probe.kept = true
	return nil
}
