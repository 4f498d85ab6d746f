package cairn

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/segment"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Newest is the version of Follower.Prepare that means the newest one.
const Newest = -1

// FollowOptions change how Follow works. Nil means the defaults.
type FollowOptions struct {
	// Group has the ranks that follow together. Nil: a single rank.
	Group Group
	// Rename returns a version's name for a name of the state, and Cast limits the
	// conversions to the dtypes of the state; see LoadOptions.
	Rename func(fqn string) string
	Cast   tensor.CastPolicy
	// Format opens the versions. It may show them in another form. Nil: their formats are
	// detected.
	Format storage.Format
	// Base is the address of version 0, if the versions are delta folders of slime, miles or
	// SGLang. Their full versions are of another format, so Format must be nil.
	Base string
	// CacheBytes bounds the bytes of files of a version that this rank keeps in memory, so
	// that it reads only the changes of the next one. Zero: 8 GiB. Negative: nothing is kept.
	CacheBytes int64
	// BufferBytes bounds the memory for parts of a version that are compared with the state
	// at the same time. The largest part may take more. It is kept until Close. Zero: 256 MiB.
	BufferBytes int64
	// Interval is the time from one look at the run to the next in Wait. Zero: 0.2 seconds.
	Interval time.Duration
	// Logger receives a record, once, for each damaged version that Wait of rank 0 passes
	// over. Nil: nothing is logged.
	Logger *slog.Logger
}

// Follower brings tensors in use from one version of their weights to the next. Versions are
// the checkpoints of a run. Follow returns a Follower; its methods are safe for concurrent
// use, but a state must not be used by several calls at once.
type Follower struct {
	address string
	options FollowOptions
	group   Group
	cache   *delta.Cache
	run     *run.Run

	mu      sync.Mutex
	version version          // of the last update; guarded by mu
	updated bool             // there was an update that was completed; guarded by mu
	changes int              // how many commits have begun; guarded by mu
	damaged map[int64]string // versions that cannot be loaded, and their saves; guarded by mu
	unfit   version          // the newest one, if it does not fit the state of the last Prepare; guarded by mu
	logged  map[string]bool  // what Logger has received; guarded by mu
	memory  []byte           // for parts of a version; guarded by mu
}

// version is a version of the run.
type version struct {
	Step   int64
	SaveID string
	Path   []byte // which need not be UTF-8

	// Damaged are the problems of newer versions that were passed over.
	Damaged []*group.RemoteError `json:",omitempty"`
}

// is reports whether v and w are the same save.
func (v *version) is(w *version) bool {
	return v.Step == w.Step && v.SaveID == w.SaveID && len(w.Path) > 0
}

// versionOf returns what was found in the run.
func versionOf(found *run.Found) version {
	v := version{Step: *found.Step, SaveID: found.SaveID, Path: []byte(found.Path)}
	for _, d := range found.Damaged {
		v.Damaged = append(v.Damaged, group.NewRemoteError(fmt.Errorf("version %d: %w", d.Step, d.Err)))
	}
	return v
}

// UpdateReport describes an update of a state to a version, on this rank.
type UpdateReport struct {
	// Version is the version of the state now, and From of the update before it. HasFrom is
	// false if it is the first one.
	Version, From int64
	HasFrom       bool
	SaveID        string
	// Elements is the number of elements of the state's tensors, and Changed how many of
	// them differed from the version. Bytes and ChangedBytes are their bytes.
	Elements, Changed   int64
	Bytes, ChangedBytes int64
	// ReadBytes is the number of bytes that were read from the store.
	ReadBytes int64
	// Time is how long the update took, without the time between Prepare and Commit. Pause is
	// the part of it in which the state changed.
	Time, Pause time.Duration
	// Full means that no bytes of earlier versions were used, so everything was read: it is
	// the first update, an earlier attempt failed, or FollowOptions.CacheBytes is negative.
	Full bool
	// Tried is what went wrong before: versions that could not be loaded, and newer versions
	// that cannot be opened.
	Tried []error
}

// Follow returns a Follower of the run at an address, as for OpenStore. All ranks of the
// group call it. The run need not exist yet. Each folder directly below it with a complete
// checkpoint, of any format, is a version. Its number is the step that the checkpoint records
// or, if it does not record one, the number at the end of its name.
func Follow(address string, opts *FollowOptions) (*Follower, error) {
	f := &Follower{address: address, damaged: map[int64]string{}, logged: map[string]bool{}}
	if opts != nil {
		f.options = *opts
	}
	if f.group = f.options.Group; f.group == nil {
		f.group = group.Solo()
	}
	if f.options.BufferBytes <= 0 {
		f.options.BufferBytes = 256 << 20
	}
	if f.options.Interval <= 0 {
		f.options.Interval = 200 * time.Millisecond
	}
	switch n := f.options.CacheBytes; {
	case n == 0:
		f.cache = delta.NewCache(8 << 30)
	case n > 0:
		f.cache = delta.NewCache(n)
	}
	err := refuse(option{"FollowOptions.Base", f.options.Base != "" && f.options.Format != nil, "has no effect if FollowOptions.Format is set"})
	if err == nil {
		f.run, err = run.Open(context.Background(), address, "")
	}
	if err != nil {
		return nil, f.wrap(err)
	}
	return f, nil
}

func (f *Follower) wrap(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: "follow", Where: blob.Redact(f.address), Err: err}
}

// Close frees the memory of the Follower.
func (f *Follower) Close() {
	f.cache.Clear()
	f.take(0)
}

// take returns n bytes, which the last load has used if they are enough.
func (f *Follower) take(n int64) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.memory
	f.memory = nil
	if int64(len(p)) < n {
		return make([]byte, n)
	}
	return p[:n]
}

// put keeps memory for the next load.
func (f *Follower) put(p []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.memory = p[:cap(p)]
}

// Version returns the version of the last update. ok is false if there was no update, or if
// the last one failed while it changed the state.
func (f *Follower) Version() (version int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version.Step, f.updated
}

// Newest returns the newest complete version, without versions that Prepare has found
// damaged. Each rank may call it by itself. The error wraps ErrNotFound if there is no
// version.
func (f *Follower) Newest(ctx context.Context) (int64, error) {
	v, err := f.newest(ctx, nil, nil)
	return v.Step, f.wrap(err)
}

// look returns the newest version within bounds.
func (f *Follower) look(ctx context.Context, after, before *int64) (*run.Found, error) {
	return storage.Settle(func() (*run.Found, error) {
		return f.run.Newest(ctx, run.Bounds{After: after, Before: before, Format: f.options.Format, Options: &formats.Options{Base: f.options.Base}})
	})
}

// newest returns the newest version within bounds that is not known to be damaged.
func (f *Follower) newest(ctx context.Context, after, before *int64) (version, error) {
	var damaged []*group.RemoteError
	for {
		found, err := f.look(ctx, after, before)
		if err != nil {
			return version{}, err
		}
		v := versionOf(found)
		damaged = append(damaged, v.Damaged...)
		f.mu.Lock()
		saveID, bad := f.damaged[v.Step]
		f.mu.Unlock()
		if !bad || v.SaveID != saveID {
			v.Damaged = damaged
			return v, nil
		}
		before = found.Step
	}
}

// unfits are errors of a version that another attempt to load it does not help against.
var unfits = []error{
	ErrMismatch, ErrMissing, ErrState, ErrVersion, ErrOptions, storage.ErrNotRepresentable,
	tensor.ErrCast, tensor.ErrShape, tensor.ErrDType, value.ErrValue, value.ErrEncoding, value.ErrCodec,
}

// Wait waits for a version that is newer than the version of the last update, and returns
// it. It also returns the version of the last update if that was saved again. It leaves out
// versions that Prepare has found damaged, and the newest version if Prepare has found that
// it does not fit the state: then it waits for one that is newer still, or for another save.
// All ranks call it, and get what rank 0 has found.
func (f *Follower) Wait(ctx context.Context) (int64, error) {
	v, err := group.Broadcast(ctx, f.group, "version", 0, group.JSON[version](), func(ctx context.Context) (version, error) {
		for {
			f.mu.Lock()
			last, updated, unfit := f.version, f.updated, f.unfit
			f.mu.Unlock()
			var after *int64
			if updated {
				after = new(last.Step - 1)
			}
			v, err := f.newest(ctx, after, nil)
			for _, damaged := range v.Damaged {
				f.log(damaged)
			}
			if err == nil && (!updated || !v.is(&last)) && !v.is(&unfit) {
				return v, nil
			}
			switch storage.Judge(err) {
			case storage.Failed:
				return version{}, err
			case storage.Damaged:
				f.log(err)
			}
			if err := f.pause(ctx); err != nil {
				return version{}, err
			}
		}
	})
	return v.Step, f.wrap(err)
}

// log logs why a version is passed over, once.
func (f *Follower) log(err error) {
	f.mu.Lock()
	known := f.logged[err.Error()]
	f.logged[err.Error()] = true
	f.mu.Unlock()
	if !known && f.options.Logger != nil {
		f.options.Logger.Warn("follow: a damaged version is passed over", "run", blob.Redact(f.address), "error", err)
	}
}

// Update brings the tensors of state to the newest version. It is Prepare and then Commit.
func (f *Follower) Update(ctx context.Context, state State) (*UpdateReport, error) {
	p, err := f.Prepare(ctx, state, Newest)
	if err != nil {
		return nil, err
	}
	return p.Commit()
}

// Prepare reads and verifies a version, and keeps what differs from state. All ranks call it,
// each with the parts that it wants, in any sharding. state stays as it is, and must not change
// until Commit. It cannot contain a Stateful. Prepared holds what differs.
//
// If the version is replaced or removed meanwhile, Prepare looks again which versions there
// are, up to 16 times. If the version is damaged, Prepare reads it again without the bytes that
// it keeps in memory, and then, if step is Newest, tries a newer one that is there by now, or
// the next older one. Only a Prepare with a step goes back behind the version of the last
// update. If it can load none, it returns the first error. All ranks prepare the same version,
// or none.
func (f *Follower) Prepare(ctx context.Context, state State, step int64) (*Prepared, error) {
	begun := time.Now()
	s := search{step: step}
	for range attempts {
		v, err := f.choose(ctx, &s)
		switch verdict := storage.Judge(err); {
		case verdict != storage.Fine && verdict != storage.Failed && s.damage != nil:
			return nil, f.wrap(fmt.Errorf("%w; no newer version can be loaded, so the state stays as it is", s.damage))
		case verdict == storage.Gone && step < 0 && s.gone > 0:
			s.gone++ // the one that takes its place is not there yet
			continue
		case err != nil:
			return nil, f.wrap(err)
		}

		p, err := f.attempt(ctx, state, &v, &s)
		switch verdict := storage.Judge(err); {
		case err == nil:
			p.full, p.tried, p.time = !p.hasFrom || s.fresh || f.cache == nil, s.tried, time.Since(begun)
			return p, nil
		case verdict == storage.Failed || ctx.Err() != nil:
			return nil, f.wrap(err)
		case verdict == storage.Damaged && step >= 0:
			return nil, f.wrap(fmt.Errorf("%w; the state stays as it is", s.damage))
		}
	}
	return nil, f.wrap(fmt.Errorf("%w; nor could later versions be loaded, so the state stays as it is", cmp.Or(s.damage, s.tried[0])))
}

// attempts is how many versions Prepare tries. One may be removed while it is read, if the
// trainer keeps few.
const attempts = 16

// search is a call of Prepare: what it looks for, and what went wrong so far. It is the same on
// all ranks.
type search struct {
	step   int64 // or Newest
	tried  []error
	gone   int   // how often a version was replaced or removed meanwhile
	fresh  bool  // the bytes in memory were not used
	damage error // of the first damaged version
}

// pass notes newer versions that were passed over.
func (s *search) pass(damaged []*group.RemoteError) {
	for _, d := range damaged {
		if !slices.ContainsFunc(s.tried, func(err error) bool { return err.Error() == d.Text }) {
			s.tried = append(s.tried, d)
		}
	}
}

// attempt loads a version. If it is damaged, it is loaded again without the bytes that are kept
// in memory, which may be why.
func (f *Follower) attempt(ctx context.Context, state State, v *version, s *search) (*Prepared, error) {
	s.pass(v.Damaged)
	p, err := f.load(ctx, state, *v)
	if storage.Judge(err) == storage.Damaged && ctx.Err() == nil {
		s.tried = append(s.tried, fmt.Errorf("version %d: %w", v.Step, err))
		s.fresh = true
		f.cache.Clear()
		p, err = f.load(ctx, state, *v)
	}
	if err != nil {
		s.tried = append(s.tried, fmt.Errorf("version %d: %w", v.Step, err))
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	switch storage.Judge(err) {
	case storage.Fine:
		f.unfit = version{}
	case storage.Gone:
		s.gone++
	case storage.Damaged:
		s.damage = cmp.Or(s.damage, s.tried[len(s.tried)-1])
		f.damaged[v.Step] = v.SaveID
	case storage.Failed:
		if s.step < 0 && slices.ContainsFunc(unfits, func(unfit error) bool { return errors.Is(err, unfit) }) {
			f.unfit = *v
		}
	}
	return p, err
}

// choose returns the version that all ranks take. It leaves out versions that could not be
// loaded before.
func (f *Follower) choose(ctx context.Context, s *search) (version, error) {
	return group.Broadcast(ctx, f.group, "version", 0, group.JSON[version](), func(ctx context.Context) (version, error) {
		if s.gone > 1 { // it may take a while
			if err := f.pause(ctx); err != nil {
				return version{}, err
			}
		}
		if s.step >= 0 {
			found, err := f.look(ctx, new(s.step-1), new(s.step+1))
			if err != nil {
				return version{}, fmt.Errorf("version %d: %w", s.step, err)
			}
			return versionOf(found), nil
		}
		f.mu.Lock()
		last, updated := f.version.Step, f.updated
		f.mu.Unlock()
		if !updated {
			return f.newest(ctx, nil, nil)
		}
		if s.damage != nil { // the caller is to know of it
			return f.newest(ctx, &last, nil)
		}
		v, err := f.newest(ctx, new(last-1), nil)
		if storage.Judge(err) == storage.Gone || storage.Judge(err) == storage.Damaged {
			err = fmt.Errorf("no version %d or newer, so the state stays as it is; Prepare with a step goes back: %w", last, err)
		}
		return v, err
	})
}

// pause waits for the time between two looks at the run.
func (f *Follower) pause(ctx context.Context) error {
	select {
	case <-time.After(f.options.Interval):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// load reads a version and compares. All ranks return the same error.
func (f *Follower) load(ctx context.Context, state State, v version) (*Prepared, error) {
	f.mu.Lock()
	p := &Prepared{follower: f, version: v, from: f.version.Step, hasFrom: f.updated, changes: f.changes}
	f.mu.Unlock()
	p.planner.Rename, p.planner.Cast = f.options.Rename, f.options.Cast
	job := protocol.RankLoad{Group: f.group, Planner: &p.planner, State: state}
	release := func() {}
	defer func() { release() }()
	err := group.Each(ctx, f.group, "state", func(ctx context.Context) error {
		for name, value := range state {
			if _, ok := value.(Stateful); ok {
				return fmt.Errorf("%w: %q is a Stateful: pass its State", ErrState, name)
			}
		}
		store, err := f.storeOf(ctx, string(v.Path))
		if err != nil {
			return err
		}
		if f.group.Rank() == 0 { // until the end of the load on all ranks
			if release, err = formats.Reading(ctx, store); err != nil {
				release = func() {}
				return err
			}
		}
		reader := storage.NewReader(f.open, store, storage.ReadOptions{TrustSizes: f.group.Rank() != 0})
		job.Reader = &comparingReader{reader, &p.planner, f}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r, err := protocol.Load(ctx, job)
	if err != nil {
		return nil, err
	}
	p.read = r.Local.Read
	return p, group.Each(ctx, f.group, "version", func(context.Context) error {
		if r.SaveID != v.SaveID {
			return fmt.Errorf("%w: version %d has the save %s, and had %s", ErrChanged, v.Step, r.SaveID, v.SaveID)
		}
		return nil
	})
}

// storeOf opens the store of a version. In object storage, versions share the store of the run.
func (f *Follower) storeOf(ctx context.Context, address string) (blob.Store, error) {
	if f.run.Local.IsFolder() {
		return openAddress(ctx, address)
	}
	_, name := blob.SplitAddress(address)
	return f.run.Local.StoreOf(name)
}

// open opens a version through the cache.
func (f *Follower) open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	switch format := f.options.Format.(type) {
	case nil:
		return formats.Open(ctx, store, &formats.Options{Segments: f.cache, Base: f.options.Base})
	case native.Format:
		format.Segments = f.cache
		c, err := format.Open(ctx, store)
		return c, commit.Explain(ctx, store, err)
	default:
		c, err := format.Open(ctx, store)
		return c, commit.Explain(ctx, store, err)
	}
}

// Prepared is a version that was read and verified: what differs from a state.
type Prepared struct {
	follower *Follower
	version  version
	from     int64
	hasFrom  bool
	changes  int // Follower.changes
	planner  comparer
	read     int64
	full     bool
	tried    []error
	time     time.Duration
}

// Version returns the number of the version.
func (p *Prepared) Version() int64 { return p.version.Step }

// Commit changes the state. Each rank calls it, when nothing uses its state. It can be called
// once, and only if no other Commit of the Follower has changed a state since Prepare:
// otherwise the error wraps ErrOptions. After any other error a part of the state may have
// changed, and Follower.Version returns no version; the next update compares all of it.
func (p *Prepared) Commit() (*UpdateReport, error) {
	f := p.follower
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.changes != f.changes {
		return nil, f.wrap(fmt.Errorf("%w: this or another Commit has changed a state since Prepare: prepare it again", ErrOptions))
	}
	f.changes++
	f.updated = false
	c := &p.planner
	begun := time.Now()
	err := work.Each(context.Background(), len(c.found), runtime.GOMAXPROCS(0), func(_ context.Context, i int) error { return c.found[i].write() })
	if err != nil {
		return nil, f.wrap(err)
	}
	for _, value := range c.values {
		if err := value(); err != nil {
			return nil, f.wrap(err)
		}
	}
	pause := time.Since(begun)
	f.version, f.updated = p.version, true
	return &UpdateReport{
		Version: p.version.Step, From: p.from, HasFrom: p.hasFrom, SaveID: p.version.SaveID, Elements: c.elements, Changed: c.changed,
		Bytes: c.bytes, ChangedBytes: c.changedBytes, ReadBytes: p.read, Time: p.time + pause, Pause: pause, Full: p.full, Tried: p.tried,
	}, nil
}

// comparer is the default planner, but it compares with the state and does not fill it.
type comparer struct {
	plan.DefaultLoad

	mu                                     sync.Mutex
	memory                                 []byte         // for a batch of items; guarded by mu
	used                                   int64          // of memory; guarded by mu
	found                                  []difference   // guarded by mu
	values                                 []func() error // guarded by mu
	elements, changed, bytes, changedBytes int64          // guarded by mu
}

// ResolveTensor returns memory of its own.
func (c *comparer) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	live, err := c.DefaultLoad.ResolveTensor(it)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at, n := c.used, live.NumBytes()
	c.used += aligned(n)
	t, err := tensor.FromBytes(live.DType(), live.Shape(), c.memory[at:at+n])
	if err == nil && c.Cast == tensor.CastAny {
		t = t.Lossy()
	}
	return t, err
}

// aligned rounds a number of bytes up.
func aligned(n int64) int64 { return (n + 63) &^ 63 }

// comparingReader reads the items of a comparer in batches.
type comparingReader struct {
	storage.Reader
	planner  *comparer
	follower *Follower
}

// ReadData implements storage.Reader.
func (r *comparingReader) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	c := r.planner
	sizes, most := make([]int64, len(p.Items)), int64(0)
	total := int64(0)
	for i := range p.Items {
		if p.Items[i].Kind != plan.KindBytes {
			live, err := c.DefaultLoad.ResolveTensor(&p.Items[i])
			if err != nil {
				return storage.ReadStats{}, err
			}
			sizes[i] = aligned(live.NumBytes())
		}
		most, total = max(most, sizes[i]), total+sizes[i]
	}
	c.memory = r.follower.take(max(most, min(total, r.follower.options.BufferBytes)))
	defer func() {
		r.follower.put(c.memory)
		c.memory = nil
	}()
	var sum storage.ReadStats
	for from := 0; from < len(p.Items); {
		to, n := from, int64(0)
		for to < len(p.Items) && n+sizes[to] <= int64(len(c.memory)) {
			n += sizes[to]
			to++
		}
		c.used = 0
		batch := *p
		batch.Items = p.Items[from:to]
		st, err := r.Reader.ReadData(ctx, &batch, dst)
		sum.Add(st)
		if err != nil {
			return sum, err
		}
		from = to
	}
	return sum, nil
}

// CommitTensor compares what was read with the state.
func (c *comparer) CommitTensor(it *plan.ReadItem, t *tensor.Tensor) error {
	live, err := c.DefaultLoad.ResolveTensor(it)
	if err != nil {
		return err
	}
	d, n := compare(live, t)
	c.mu.Lock()
	defer c.mu.Unlock()
	size := int64(live.DType().Size())
	c.elements += live.NumElements()
	c.bytes += live.NumElements() * size
	c.changed += n
	c.changedBytes += n * size
	c.found = append(c.found, d...)
	return nil
}

// LoadBytes keeps a value until Commit.
func (c *comparer) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	item, kept := *it, append([]byte(nil), data...)
	c.values = append(c.values, func() error { return c.DefaultLoad.LoadBytes(&item, codec, kept) })
	return nil
}

// difference is what differs between a part of a state and a version.
type difference struct {
	// live is the part, if it is contiguous. at are the offsets of elements of it, and values
	// what they become. Without places, values is what all of it becomes.
	live   []byte
	size   int // of an element
	n      int // elements that differ
	at     []uint32
	values []byte

	// part is a part with strides, which becomes whole.
	part, whole *tensor.Tensor
}

const (
	// dense is the part of its elements, one in dense, from which a part that differs is kept
	// whole.
	dense = 8
	// partBytes is the size of a difference. Several are compared and written at a time.
	partBytes = segment.MaxLen
)

// compare returns what differs between a part of the state and t, which is contiguous, and
// how many elements do.
func compare(live, t *tensor.Tensor) ([]difference, int64) {
	size, is := live.DType().Size(), t.Contents()
	was, ok := live.Bytes()
	if !ok { // rare, so the part is kept whole
		if n := segment.Count(live.Contents(), is, size); n > 0 {
			return []difference{{part: live, whole: t.Clone()}}, int64(n)
		}
		return nil, 0
	}
	parts := make([]difference, (len(is)+partBytes-1)/partBytes)
	_ = work.Each(context.Background(), len(parts), runtime.GOMAXPROCS(0), func(_ context.Context, i int) error {
		lo, hi := i*partBytes, min((i+1)*partBytes, len(is))
		parts[i] = difference{live: was[lo:hi], size: size}
		parts[i].compare(is[lo:hi])
		return nil
	})
	n := int64(0)
	for i := range parts {
		n += int64(parts[i].n)
	}
	return slices.DeleteFunc(parts, func(d difference) bool { return d.n == 0 }), n
}

// scratch has memory for places.
var scratch = sync.Pool{New: func() any { return new([]uint32) }}

// compare notes what differs between d.live and is.
func (d *difference) compare(is []byte) {
	buf := scratch.Get().(*[]uint32)
	defer scratch.Put(buf)
	at, most := (*buf)[:0], len(is)/d.size/dense
	// If much of the beginning differs, all of it may. Then it takes long to find the places.
	if k := min(len(is), 4<<10); segment.Count(d.live[:k], is[:k], d.size) > k/d.size/dense {
		d.n = segment.Count(d.live, is, d.size)
	}
	if d.n <= most {
		at = segment.AppendPlaces(at, d.live, is, d.size)
		*buf, d.n = at, len(at)
	}
	if d.n > most {
		d.values = bytes.Clone(is)
		return
	}
	d.at, d.values = slices.Clone(at), make([]byte, 0, d.n*d.size)
	for _, i := range at {
		d.values = append(d.values, is[i:int(i)+d.size]...)
	}
}

// write changes the state.
func (d *difference) write() error {
	if d.whole != nil {
		return tensor.Copy(d.part, d.whole)
	}
	if d.at == nil {
		copy(d.live, d.values)
		return nil
	}
	switch d.size {
	case 1:
		for i, at := range d.at {
			d.live[at] = d.values[i]
		}
	case 2:
		for i, at := range d.at {
			binary.LittleEndian.PutUint16(d.live[at:], binary.LittleEndian.Uint16(d.values[2*i:]))
		}
	default:
		for i, at := range d.at {
			copy(d.live[at:], d.values[i*d.size:(i+1)*d.size])
		}
	}
	return nil
}
