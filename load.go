package cairn

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
)

// LoadOptions change how Load works. Nil means the defaults.
type LoadOptions struct {
	// Group is the job. Nil: a job of one rank.
	Group group.Group

	// AllowMissing lets a load succeed if the checkpoint does not have a name of
	// the state, and leaves the value of that name unchanged. AllowMissingFunc
	// allows this for the names for which it returns true. The report lists the missing names.
	AllowMissing     bool
	AllowMissingFunc func(fqn string) bool
	// RejectUnexpected refuses a checkpoint with names that no rank asks for.
	RejectUnexpected bool
	// Cast limits the conversions from the saved to the wanted dtype. Zero:
	// tensor.CastInRange, which rounds, but refuses a cast that loses numbers: an
	// integer that is out of the range of the wanted dtype, or a float in place of
	// which the state has integers. tensor.CastAny allows every cast.
	Cast tensor.CastPolicy
	// Rename returns the checkpoint's name for a name of the state. Nil: the names
	// are the same.
	Rename func(fqn string) string
	// Planner replaces the default planner. It cannot be combined with AllowMissing,
	// AllowMissingFunc, RejectUnexpected, Cast or Rename, which configure the
	// default planner. If your planner embeds plan.DefaultLoad, set them there.
	Planner plan.LoadPlanner

	// Format is the format of the checkpoint with its own options, such as
	// hf.Format{Dequantize: true}. Nil: it is detected.
	Format storage.Format
	// BufferBytes bounds the host memory this rank uses beyond the state itself
	// for bytes on their way from the store. Zero: 1 GiB.
	BufferBytes int64
	// Parallel is the number of reads at the same time. Zero: 4, or 16 from object
	// storage, or one for each processor if there are more.
	Parallel int
	// Reader reads the checkpoint instead of one that Format makes, for storage of
	// your own. It cannot be combined with Format or Parallel, or with BufferBytes
	// if Share is not set.
	Reader storage.Reader

	// Share lets one of the ranks that need the same bytes read them from the store
	// and send them to the other ranks. Each rank reads about the same number of
	// bytes. Share makes a
	// load faster if ranks need the same bytes, as data-parallel replicas of a
	// model do, and the network is faster than the store. The loaded state is the
	// same as without Share. Share takes up to BufferBytes more memory.
	//
	// A rank takes part if it sets Share, its group is a group.Messenger and a
	// group.Alarmer, and its planner is the default one or a plan.Sharer. The other
	// ranks read for themselves. Every rank reads the values that are not tensors.
	Share bool

	// Observer receives the progress of this rank. Nil: it is not reported.
	Observer *Observer
	// Logger receives a record for each phase of the load on this rank, with its bytes,
	// seconds and rate, and one for the outcome. Nil: no log.
	Logger *slog.Logger
}

// LoadReport describes a load that succeeded.
type LoadReport = protocol.LoadReport

// Load fills state from the checkpoint at the root of store. Every rank of the
// group calls it with the parts it wants, in any sharding; a rank without parts passes
// an empty state. Tensors are filled in place, converted to their dtype as Cast allows;
// quantised ones are not converted, see meta.Metadata.Scales. Other values are replaced
// in the state. They keep their Go type if the saved value fits it; otherwise they get
// the type that value.Decode returns. A value.Ref inside a value names a tensor of the
// checkpoint that was at that place when it was saved: Load fills the tensor if the
// state has that name.
//
// Tensors are filled concurrently. A tensor that the state has under several names, such
// as a tied weight, is filled once, from the first of these names that the checkpoint has;
// the checkpoint may lack the others. If two tensors share memory in any other way, the
// checkpoint must have the same values for both, and the race detector may report the load.
//
// Every byte for which the format has a checksum is verified before Load returns
// nil. If Load fails, every rank returns the same error, and the contents of the
// state are undefined.
func Load(ctx context.Context, store blob.Store, state State, opts *LoadOptions) (*LoadReport, error) {
	return load(ctx, store, opts, func(context.Context, *protocol.RankLoad) (State, error) { return state, nil })
}

// load loads into the state that begin returns. begin may set the job's metadata.
func load(ctx context.Context, store blob.Store, opts *LoadOptions, begin func(context.Context, *protocol.RankLoad) (State, error)) (*LoadReport, error) {
	var o LoadOptions
	if opts != nil {
		o = *opts
	}
	job := o.job()
	since := blob.Since(store)
	job.Recorder = protocol.NewRecorder(ctx, protocol.OpLoad, job.Group.Rank(), o.Logger, o.Observer)
	r, err := o.load(job.Recorder.Context(ctx), store, &job, begin)
	job.Recorder.Traffic(since())
	if err == nil {
		ours.complete(placeOf(store), r.SaveID)
	}
	if err != nil {
		err = wrap("load", store, err)
		job.Recorder.End(0, err)
		return nil, err
	}
	r.Traffic = since()
	job.Recorder.End(r.Local.Needed, nil)
	return r, nil
}

func (o *LoadOptions) load(ctx context.Context, store blob.Store, job *protocol.RankLoad, begin func(context.Context, *protocol.RankLoad) (State, error)) (*LoadReport, error) {
	var state State
	var stateful map[string]Stateful
	release := func() {}
	defer func() { release() }()

	err := group.Each(ctx, job.Group, "state", func(ctx context.Context) error {
		var err error
		if job.Reader, err = o.reader(store, job.Group.Rank()); err != nil {
			return err
		}
		if o.Reader == nil && job.Group.Rank() == 0 { // until the end of the load on all ranks
			done, err := formats.Reading(ctx, store)
			if err != nil {
				return err
			}
			release = done
		}
		if state, err = begin(ctx, job); err != nil {
			return err
		}
		job.State, stateful, err = expand(state)
		return err
	})
	if err != nil {
		return nil, err
	}

	r, err := protocol.Load(ctx, *job)
	if err != nil {
		return nil, err
	}

	err = group.Each(ctx, job.Group, "state", func(context.Context) error { return giveBack(state, job.State, stateful) })
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (o *LoadOptions) job() protocol.RankLoad {
	job := protocol.RankLoad{Group: o.Group, Planner: o.Planner, Share: o.Share, BufferBytes: o.BufferBytes, Observer: o.Observer}
	if job.Group == nil {
		job.Group = group.Solo()
	}
	if job.Planner == nil {
		job.Planner = &plan.DefaultLoad{
			AllowMissing: o.AllowMissing, AllowMissingFunc: o.AllowMissingFunc, RejectUnexpected: o.RejectUnexpected,
			Cast: o.Cast, Rename: o.Rename,
		}
	}
	return job
}

// reader returns the reader of a rank. The error wraps ErrOptions if an option
// would have no effect.
func (o *LoadOptions) reader(store blob.Store, rank int) (storage.Reader, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Reader != nil {
		return o.Reader, nil
	}
	if store == nil {
		return nil, errNoStore
	}
	open := func(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
		return formats.Open(ctx, store, nil)
	}
	if o.Format != nil {
		open = func(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
			c, err := o.Format.Open(ctx, store)
			return c, commit.Explain(ctx, store, err)
		}
	}
	return storage.NewReader(open, store, storage.ReadOptions{BufferBytes: o.BufferBytes, Parallel: o.Parallel, TrustSizes: rank != 0}), nil
}

// check refuses options that would have no effect.
func (o *LoadOptions) check() error {
	const (
		planner = "has no effect if LoadOptions.Planner is set: set it on the planner"
		reader  = "has no effect if LoadOptions.Reader is set"
	)
	p, r := o.Planner != nil, o.Reader != nil
	return refuse(append(o.adapting(p, planner),
		option{"LoadOptions.Format", r && o.Format != nil, reader},
		option{"LoadOptions.BufferBytes", r && o.BufferBytes != 0 && !o.Share, reader},
		option{"LoadOptions.Parallel", r && o.Parallel != 0, reader},
		option{"LoadOptions.BufferBytes", o.BufferBytes < 0, "is negative"},
		option{"LoadOptions.Parallel", o.Parallel < 0, "is negative"},
	)...)
}

// adapting lists the options that adapt a checkpoint to the caller's state. If
// refuse is true, options that the caller has set are refused, with the reason why.
func (o *LoadOptions) adapting(refuse bool, why string) []option {
	return []option{
		{"LoadOptions.AllowMissing", refuse && o.AllowMissing, why},
		{"LoadOptions.AllowMissingFunc", refuse && o.AllowMissingFunc != nil, why},
		{"LoadOptions.RejectUnexpected", refuse && o.RejectUnexpected, why},
		{"LoadOptions.Cast", refuse && o.Cast != 0, why},
		{"LoadOptions.Rename", refuse && o.Rename != nil, why},
	}
}

// LoadNew makes the state that the checkpoint describes, nested as it was saved,
// with every tensor whole, and fills it. Maps are map[string]any, even if their
// keys were integers when they were saved. Values have the types that value.Decode
// returns: int64, float64, string, []any and so on; the tensors that a value refers
// to are inside it. If there are prefixes, LoadNew loads only the names that are
// equal to a prefix or continue it after a dot. If a prefix selects no name, the
// error wraps ErrMissing.
//
// The error wraps ErrOptions if an option is set that adapts a checkpoint to the
// caller's state: AllowMissing, AllowMissingFunc, RejectUnexpected, Cast or Rename.
// If a Planner leaves out a name, the error wraps ErrMissing.
func LoadNew(ctx context.Context, store blob.Store, opts *LoadOptions, prefixes ...string) (State, *LoadReport, error) {
	var state State
	var md *meta.Metadata

	r, err := load(ctx, store, opts, func(ctx context.Context, job *protocol.RankLoad) (State, error) {
		if opts != nil {
			const why = "needs a state from the caller: LoadNew makes the state from the checkpoint"
			if err := refuse(opts.adapting(true, why)...); err != nil {
				return nil, err
			}
		}
		// Load from the save that the state is made for, even if another save
		// replaces the checkpoint meanwhile.
		var err error
		if md, err = job.Reader.ReadMetadata(ctx); err != nil {
			return nil, err
		}
		job.Metadata = md
		for _, p := range prefixes {
			if !slices.ContainsFunc(md.Entries, func(e meta.Entry) bool { return hasPrefix(e.FQN, []string{p}) }) {
				return nil, fmt.Errorf("%q is %w", p, ErrMissing)
			}
		}

		wanted := func(fqn string) bool { return hasPrefix(fqn, prefixes) }
		if h, ok := job.Reader.(storage.HeldChecker); ok {
			if err := h.CheckHeld(ctx, md.Select(wanted)); err != nil {
				return nil, err
			}
		}
		apart := func(x *meta.Missing) bool { // its names begin otherwise
			return x.Below && x.FQN != "" && !hasPrefix(x.FQN, prefixes) &&
				!slices.ContainsFunc(prefixes, func(p string) bool { return hasPrefix(p, []string{x.FQN}) })
		}
		state, err = plan.NewState(md.WithoutMissing(apart), wanted)
		return state, err
	})

	if err != nil {
		return nil, nil, err
	}

	if len(r.Missing) > 0 {
		return nil, nil, wrap("load", store, fmt.Errorf("%w: the planner left out %q", ErrMissing, r.Missing))
	}
	plan.ResolveRefs(state, md)
	return state, r, nil
}

// hasPrefix reports whether fqn is one of the prefixes or below one. No
// prefixes select everything.
func hasPrefix(fqn string, prefixes []string) bool {
	for _, p := range prefixes {
		if rest, ok := strings.CutPrefix(fqn, p); ok && (rest == "" || rest[0] == '.' || strings.HasSuffix(p, ".")) {
			return true
		}
	}
	return len(prefixes) == 0
}
