package cairn

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/run/versions"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
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
	// that it reads only the changes of the next one. Zero: 8 GiB. Negative: no files are kept.
	CacheBytes int64
	// BufferBytes bounds the memory for parts of a version that are compared with the state
	// at the same time. The largest part may take more. It is kept until Close. Zero: 256 MiB.
	BufferBytes int64
	// Interval is the time from one look at the run to the next in Wait. Zero: 0.2 seconds.
	Interval time.Duration
	// Logger receives a record, once, for each damaged version that Wait of rank 0 passes
	// over. Nil: no log.
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
	look    versions.Look

	mu      sync.Mutex
	known   versions.Known  // guarded by mu
	changes int             // how many commits have begun; guarded by mu
	logged  map[string]bool // the texts that Logger has received; guarded by mu
	memory  []byte          // for parts of a version; guarded by mu
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
	// Tried has the errors of earlier attempts: versions that could not be loaded, and newer
	// versions that cannot be opened.
	Tried []error
}

// Follow returns a Follower of the run at an address, as for OpenStore. All ranks of the
// group call it. The run need not exist yet. Each folder directly below it with a complete
// checkpoint, of any format, is a version. Its number is the step that the checkpoint records
// or, if it does not record one, the number at the end of its name.
func Follow(address string, opts *FollowOptions) (*Follower, error) {
	f := &Follower{address: address, logged: map[string]bool{}}
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
	f.look = versions.In(f.run, run.Bounds{Format: f.options.Format, Options: &formats.Options{Base: f.options.Base}})
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
	if last := f.now().Last; last != nil {
		return last.Step, true
	}
	return 0, false
}

// now returns a copy of the knowledge about versions.
func (f *Follower) now() *versions.Known {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.known
	k.Damaged = maps.Clone(k.Damaged)
	return &k
}

// Newest returns the newest complete version, without versions that Prepare has found
// damaged. Each rank may call it by itself. The error wraps ErrNotFound if there is no
// version.
func (f *Follower) Newest(ctx context.Context) (int64, error) {
	c, err := f.now().Newest(ctx, f.look, nil)
	if err != nil {
		return 0, f.wrap(err)
	}
	return c.Step, nil
}

// Wait waits for a version that is newer than the version of the last update, and returns
// it. It also returns the version of the last update if that was saved again. It leaves out
// versions that Prepare has found damaged, and the newest version if Prepare has found that
// it does not fit the state: then it waits for one that is newer still, or for another save.
// All ranks call it, and get the version that rank 0 has found.
func (f *Follower) Wait(ctx context.Context) (int64, error) {
	step, err := group.Broadcast(ctx, f.group, "version", 0, group.JSON[int64](), func(ctx context.Context) (int64, error) {
		for {
			c, passed, err := f.now().New(ctx, f.look)
			for i := range passed {
				f.log(&passed[i])
			}
			if err != nil {
				return 0, err
			}
			if c != nil {
				return c.Step, nil
			}
			if err := versions.Pause(ctx, f.options.Interval); err != nil {
				return 0, err
			}
		}
	})
	return step, f.wrap(err)
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

// Prepare reads and verifies a version, and keeps its differences from state. All ranks call
// it, each with the parts that it wants, in any sharding. state stays as it is, and must not
// change until Commit. It cannot contain a Stateful.
//
// If the version is replaced or removed meanwhile, Prepare looks again which versions there
// are, up to 16 times. If the version is damaged, Prepare reads it again without the bytes that
// it keeps in memory, and then, if step is Newest, tries a newer one that is there by now, or
// the next older one. Only a Prepare with a step goes back behind the version of the last
// update. If it can load none, it returns the first error. All ranks prepare the same version,
// or none.
func (f *Follower) Prepare(ctx context.Context, state State, step int64) (*Prepared, error) {
	begun, s, fresh := time.Now(), new(versions.Search), false
	if step >= 0 {
		s.Step = &step
	}
	for {
		c, err := group.Broadcast(ctx, f.group, "version", 0, group.JSON[*versions.Choice](), func(ctx context.Context) (*versions.Choice, error) {
			return s.Choose(ctx, f.now(), f.look, f.options.Interval)
		})
		if err != nil {
			return nil, f.wrap(err)
		}
		s.Take(c)
		if s.Again {
			f.cache.Clear() // its bytes may be why
			fresh = true
		}

		p, err := f.load(ctx, state, c)
		f.mu.Lock()
		over := s.Report(&f.known, err)
		f.mu.Unlock()
		if err == nil {
			p.full, p.time = !p.hasFrom || fresh || f.cache == nil, time.Since(begun)
			for i := range s.Tried {
				p.tried = append(p.tried, &s.Tried[i])
			}
			return p, nil
		}
		if over {
			return nil, f.wrap(err)
		}
	}
}

// load reads a version and compares. All ranks return the same error.
func (f *Follower) load(ctx context.Context, state State, v *versions.Choice) (*Prepared, error) {
	f.mu.Lock()
	p := &Prepared{follower: f, version: v.Version, hasFrom: f.known.Last != nil, changes: f.changes}
	if p.hasFrom {
		p.from = f.known.Last.Step
	}
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

// Prepared is a version that was read and verified: its differences from a state.
type Prepared struct {
	follower *Follower
	version  versions.Version
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

// Commit changes the state. Each rank calls it while its state is not in use. It can be
// called once, and only if no other Commit of the Follower has changed a state since Prepare:
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
	f.known.Last = nil
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
	f.known.Last = &p.version
	return &UpdateReport{
		Version: p.version.Step, From: p.from, HasFrom: p.hasFrom, SaveID: p.version.SaveID, Elements: c.elements, Changed: c.changed,
		Bytes: c.bytes, ChangedBytes: c.changedBytes, ReadBytes: p.read, Time: p.time + pause, Pause: pause, Full: p.full, Tried: p.tried,
	}, nil
}
