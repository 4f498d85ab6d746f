package cairn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// Group is the job that a rank belongs to: see package group. Package group/inproc
// makes one of goroutines, package group/tcp one of processes.
type Group = group.Group

// SaveOptions change how Save works. Nil means the defaults.
type SaveOptions struct {
	// Group is the job. Nil: a job of one rank.
	Group group.Group
	// RankLocal saves this rank of a job that has no group. Nil: the ranks of
	// Group save together.
	RankLocal *RankLocal
	// Step is the training step, stored in the checkpoint. Nil: it is unknown.
	Step *int64
	// Tags are stored in the checkpoint. cairn does not interpret them.
	Tags map[string]string
	// Metrics are numbers about the state, such as the loss, by their names, which have no
	// spaces and commas. They are noted beside the checkpoint when it is complete, and a
	// Policy can keep the best checkpoints by a metric. The metrics of rank 0 count. If they
	// cannot be noted, the save succeeds, and Observer.Warned receives why.
	Metrics map[string]float64
	// Exports are what a checkpoint of a Run is converted into after the save, in the background; see
	// RunOptions.Export. An export that fails does not make the save fail.
	Exports []Export

	// Planner decides which rank writes which bytes. Nil: a new plan.DefaultSave.
	Planner plan.SavePlanner
	// Cache remembers the plan from one save to the next, so that a save with the
	// same plan does not plan again. Nil: every save makes a new plan.
	Cache *plan.Cache

	// Format is the format of the checkpoint with its own options, such as
	// torchdcp.Format{}. Nil: native.Format{}. If the format does not support one
	// of the options below, Save fails with ErrOptions.
	Format storage.Format
	// FilesPerRank is the number of data files each rank writes in parallel. Zero:
	// the format's default, which is 1 for the native format. A rank that holds
	// several chunks of one tensor writes up to 8 files. At most
	// storage.MaxFilesPerRank.
	FilesPerRank int
	// BufferBytes bounds the host memory this rank uses beyond the state
	// itself for bytes on their way to the store. Zero: 1 GiB.
	BufferBytes int64
	// FailIfExists makes Save fail with ErrExists if there is a checkpoint.
	// Otherwise the new one replaces it once it is complete, see Overwrite. If the old one has another
	// format, Save fails with ErrExists in any case, before it writes anything.
	FailIfExists bool
	// Overwrite lets the save replace any checkpoint of its format. Otherwise it replaces only one that
	// this process has saved or loaded at this place; if there is another one, Save fails with
	// ErrExists before it writes anything. The process of rank 0 counts. It has no effect in a Run,
	// which never replaces a checkpoint of another line.
	Overwrite bool
	// SweepAfter is the age from which Save, after its commit, removes files that
	// no checkpoint names, if it is unknown whether the save that wrote them is
	// over. If the process of that save ran on this host and is dead, Save removes
	// the files at any age. Zero: 24 hours; in object storage, only 'cairn clean'
	// removes such files. Negative: Save removes no such files.
	SweepAfter time.Duration
	// Base lets the save refer to an earlier checkpoint of the same run instead of writing
	// unchanged bytes again. Only the native format can do that, and only cairn opens such
	// a checkpoint. A Run sets Base by itself. Nil: the checkpoint stands alone.
	Base *storage.Base
	// Writer stores the checkpoint instead of one that Format makes, for storage of
	// your own. It cannot be combined with Format, FilesPerRank, BufferBytes,
	// FailIfExists, Overwrite, SweepAfter or Base, and with Metrics only if there is a store.
	Writer storage.Writer

	// Observer receives the progress of this rank. Nil: it is not reported.
	Observer *Observer
	// Logger receives a record for each phase of the save on this rank, with its bytes,
	// seconds and rate, and one for the outcome. Nil: no log.
	Logger *slog.Logger

	line   *meta.Line  // the place in the history of a Run
	ofRun  bool        // a Run chooses the folder
	member *run.Member // its place there; nil: it belongs to no Run
}

// RankLocal describes a rank that saves without the other ranks, in a job without a
// group. Each rank writes its own data and its own metadata; opening the checkpoint
// merges the metadata of all ranks. The formats of storage/torchdcp and
// storage/hyper support this; with other formats Save fails with ErrOptions.
//
// The ranks do not communicate. The checkpoint is complete once Save has returned
// nil on every rank; until then opening it returns ErrIncomplete. Each rank writes
// everything that it holds. If ranks hold different values under one name, a load
// returns the value of the lowest rank. Such a save never replaces a checkpoint: if
// there is one, the save fails with ErrExists. So each save needs its own store,
// such as a folder.
type RankLocal struct {
	// Rank is this rank, from 0 to Size-1.
	Rank, Size int
	// SaveID identifies the save: the same on all ranks, and never used before.
	// It has 1 to 64 letters, digits and dashes.
	SaveID string
}

// Observer receives the progress of one rank.
type Observer = protocol.Observer

// Outcome describes a save or load that is over on one rank. Observer.Ended receives it.
type Outcome = protocol.Outcome

// The operations of an Outcome.
const (
	OpSave   = protocol.OpSave
	OpUpload = protocol.OpUpload
	OpLoad   = protocol.OpLoad
)

// Phase is a part of the work of one rank in a save or load.
type Phase = meta.Phase

// SaveReport describes a save that succeeded.
type SaveReport = protocol.SaveReport

// Save saves state as the checkpoint at the root of store. Every rank of the group
// calls it with its own state. The ranks together must hold all elements of each
// tensor. If several ranks hold the same part, one copy of it is written.
//
// When Save returns nil the checkpoint is complete and durable. Otherwise every
// rank returns the same error, and the checkpoint that was there before, if any, is
// unchanged. The exception is ErrUncertain: then either the old checkpoint or the
// new one is there.
func Save(ctx context.Context, store blob.Store, state State, opts *SaveOptions) (*SaveReport, error) {
	var o SaveOptions
	if opts != nil {
		o = *opts
	}
	job := o.job(store)
	since := blob.Since(store)
	job.Recorder = o.recorder(ctx, &job)
	r, err := o.save(job.Recorder.Context(ctx), store, state, &job)
	job.Recorder.Traffic(since())
	if err != nil {
		err = wrap("save", store, err)
		job.Recorder.End(0, err)
		return nil, err
	}
	r.Traffic = since()
	job.Recorder.End(r.RankBytes, nil)
	return r, nil
}

func (o *SaveOptions) save(ctx context.Context, store blob.Store, state State, job *protocol.RankSave) (*SaveReport, error) {
	err := group.Each(ctx, job.Group, "state", func(context.Context) error {
		var err error
		if job.Writer, err = o.writer(store, ""); err != nil {
			return err
		}
		job.State, _, err = expand(state)
		return err
	})
	if err != nil {
		return nil, job.NumberRank(err)
	}
	r, err := o.saveAndNote(ctx, store, job)
	if o.Group == nil && o.RankLocal == nil && lacksParts(err) {
		err = fmt.Errorf("%w (this process saves alone: SaveOptions.Group is not set)", err)
	}
	return r, err
}

// saveAndNote saves, and notes the metrics if the save succeeds.
func (o *SaveOptions) saveAndNote(ctx context.Context, store blob.Store, job *protocol.RankSave) (*SaveReport, error) {
	first := job.RankLocal && job.Rank == 0 || !job.RankLocal && job.Group.Rank() == 0
	if first { // all ranks write while rank 0 does
		defer run.Saving(ctx, store)()
	}
	r, err := protocol.Save(ctx, *job)
	o.noteOurs(store, r, job.Storage.SaveID)
	if err == nil && first {
		notes := &run.Notes{Metrics: o.Metrics, Line: job.Storage.Line}
		for _, e := range o.Exports {
			notes.AskExport(e)
		}
		if o.member != nil {
			if err := o.member.NoteExports(ctx, job.Storage.Step, notes); err != nil {
				job.Recorder.Warn(err)
			}
		}
		if err := run.NoteSave(ctx, store, r.SaveID, o.format().Name(), notes); err != nil {
			job.Recorder.Warn(err)
		}
	}
	return r, err
}

// recorder returns the recorder for the phases of a save.
func (o *SaveOptions) recorder(ctx context.Context, job *protocol.RankSave) *protocol.Recorder {
	rank := job.Rank
	if !job.RankLocal {
		rank = job.Group.Rank()
	}
	r := protocol.NewRecorder(ctx, protocol.OpSave, rank, o.Logger, o.Observer)
	s := meta.Storage{Step: job.Storage.Step}
	if rank == 0 || job.RankLocal {
		s.SaveID = job.Storage.SaveID // the other ranks learn it from rank 0
	}
	r.Describe(&s)
	return r
}

// lacksParts reports whether a save failed because its ranks do not hold all
// elements of a tensor.
func lacksParts(err error) bool {
	problems, _ := errors.AsType[plan.Problems](err)
	return slices.ContainsFunc(problems, func(p plan.Problem) bool { return p.Kind == plan.ProblemVolume })
}

func (o *SaveOptions) job(store blob.Store) protocol.RankSave {
	job := protocol.RankSave{Group: o.Group, Planner: o.Planner, Cache: o.Cache, Observer: o.Observer}
	if job.Group == nil {
		job.Group = group.Solo()
	}
	if job.Planner == nil {
		job.Planner = new(plan.DefaultSave)
	}
	now := time.Now().UTC()
	id := storage.NewSaveID(now, rand.Uint32())
	size := job.Group.Size()
	if l := o.RankLocal; l != nil {
		job.RankLocal, job.Rank, job.Size, id, size = true, l.Rank, l.Size, l.SaveID, l.Size
	}
	job.Storage = meta.Storage{
		SaveID: id, Step: o.Step, Time: now, WorldSize: size,
		Writer: "cairn " + Version, Tags: o.Tags, Line: o.line,
	}
	if store != nil {
		job.Storage.ID = store.String()
	}
	return job
}

// format returns the format of the checkpoint.
func (o *SaveOptions) format() storage.Format {
	if o.Format == nil {
		return native.Format{}
	}
	return o.Format
}

// writer returns the writer of this rank. The error wraps ErrOptions if an option
// would have no effect. remote is AsyncOptions.Remote.
func (o *SaveOptions) writer(store blob.Store, remote string) (storage.Writer, error) {
	err := refuse(
		option{"SaveOptions.FilesPerRank", o.FilesPerRank < 0, "is negative"},
		option{"SaveOptions.FilesPerRank", o.FilesPerRank > storage.MaxFilesPerRank, fmt.Sprintf("is more than %d", storage.MaxFilesPerRank)},
		option{"SaveOptions.BufferBytes", o.BufferBytes < 0, "is negative"},
		option{"SaveOptions.Overwrite", o.Overwrite && o.FailIfExists, "contradicts SaveOptions.FailIfExists"},
		option{"SaveOptions.Exports", len(o.Exports) > 0 && o.member == nil, "needs a Run: its address is that of the checkpoint"},
	)
	if err == nil {
		err = errors.Join(o.RankLocal.check(o), (&run.Notes{Metrics: o.Metrics}).Check())
	}
	if err != nil {
		return nil, err
	}

	if o.Writer != nil {
		const why = "has no effect if SaveOptions.Writer is set"
		return o.Writer, refuse(
			option{"SaveOptions.Format", o.Format != nil, why},
			option{"SaveOptions.FilesPerRank", o.FilesPerRank != 0, why},
			option{"SaveOptions.BufferBytes", o.BufferBytes != 0, why},
			option{"SaveOptions.FailIfExists", o.FailIfExists, why},
			option{"SaveOptions.Overwrite", o.Overwrite, why},
			option{"SaveOptions.SweepAfter", o.SweepAfter != 0, why},
			option{"SaveOptions.Base", o.Base != nil, why},
			option{"SaveOptions.Metrics", len(o.Metrics) > 0 && store == nil, "needs a store"},
		)
	}

	if store == nil {
		return nil, errNoStore
	}

	return o.format().NewWriter(store, storage.WriteOptions{
		FilesPerRank: o.FilesPerRank, BufferBytes: o.BufferBytes, FailIfExists: o.FailIfExists, Replaces: o.replaces(placeOf(store)), SweepAfter: o.SweepAfter,
		Others: formats.CheckOthers, RankLocal: o.RankLocal != nil, Apart: remote != "",
		Base: o.Base,
	})
}

// warn reports a problem that does not make the save fail.
func (o *SaveOptions) warn(err error) { warn(o.Observer, o.Logger, err) }

// check refuses a rank that does not exist, and options that need all ranks.
func (l *RankLocal) check(o *SaveOptions) error {
	if l == nil {
		return nil
	}
	const why = "has no effect if SaveOptions.RankLocal is set"
	return refuse(
		option{"SaveOptions.RankLocal", l.Rank < 0 || l.Rank >= l.Size, fmt.Sprintf("is rank %d of %d", l.Rank, l.Size)},
		option{"SaveOptions.RankLocal", l.SaveID == "", "has no SaveID, which must be the same on all ranks"},
		option{"SaveOptions.Group", o.Group != nil, why},
		option{"SaveOptions.Writer", o.Writer != nil, why},
		option{"SaveOptions.SweepAfter", o.SweepAfter != 0, why},
	)
}
