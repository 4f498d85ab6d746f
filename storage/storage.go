// Package storage defines the interfaces that every checkpoint format implements,
// Writer for saves and Reader for loads, and the errors that all formats share. It
// does not depend on any format or medium: each format is a package in a folder below
// and uses a blob store. The contract is in the comments of Writer and Reader.
package storage

import (
	"context"
	"fmt"
	"iter"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// Session describes a save or load from the view of one rank.
type Session struct {
	Rank, Size int
	// Coordinator is set on the one rank that plans globally and commits.
	Coordinator bool
	// Storage describes the checkpoint being saved: the same on every rank.
	Storage meta.Storage
	// Progress, if not nil, receives the number of bytes of the plan's items that
	// were written or read since the last call. When WriteData or ReadData returns
	// nil, the numbers sum up to the bytes of all items that had to be written, or
	// read from files. Progress is called from several goroutines at once.
	Progress func(bytes int64)
	// Warn, if not nil, receives errors that do not make the save or load fail,
	// such as the error of an old file that could not be removed.
	Warn func(err error)
	// Timeline, if not nil, returns the phases of all ranks up to now. The coordinator
	// may call it in Finish, to keep them with the checkpoint.
	Timeline func() meta.Timeline
	// Journal, if not nil, records the finished files of a save that can be continued
	// after an interruption. A writer calls Finished before it writes a file, and Note
	// after. The content of a file depends on the plan and on Storage only, so the save may
	// replace its own files by files of the same name.
	Journal Journal
	// Private means that no other program uses the store until the save has ended: it is
	// the staging store of a conversion. Writers then take no lock, and give files the
	// plain names of the format.
	Private bool
	// Divide, if not nil, is called by WriteData with the data files of the rank, in their
	// order, before the first one is written. It returns for each file whether this
	// process writes it. WriteData leaves the other files out, of its results too: other
	// processes have writers of the same rank, with the same plan, and write them. held
	// is set if the only file becomes visible in Finish, so that the process of the
	// coordinator has to write it. Nil: WriteData writes all files.
	Divide func(files []File, held bool) []bool
}

// Writer carries out a save. Its methods are called in the order in which they are
// listed: PrepareGlobalPlan and Finish only on the coordinator, the other methods on
// every rank. A Writer serves one save at a time.
type Writer interface {
	// SetUp begins a save.
	SetUp(ctx context.Context, s Session) error
	// PrepareLocalPlan may change this rank's plan before the plan is sent to the
	// coordinator. It returns an error if the writer cannot save to this store.
	PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error)
	// PrepareGlobalPlan may change the final plans of all ranks, which are in rank order. If
	// plans are reused (see plan.Cache), it is called only if a plan has changed, so the data
	// that it adds must not depend on the save. A writer with data that depends on options has a
	// method PlanOptions() string: plans are reused only if it returns the same string.
	PrepareGlobalPlan(ctx context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error)
	// WriteData writes the plan's items. data provides their bytes. When WriteData
	// returns nil, the items are durable, but not yet part of a checkpoint.
	WriteData(ctx context.Context, p *plan.SavePlan, data Resolver) (*WriteResults, error)
	// Finish commits: it makes the checkpoint visible in one atomic step. results are
	// the results of all ranks. md is not changed. If Finish returns an error, the checkpoint
	// is not visible, unless the error wraps ErrUncertain.
	Finish(ctx context.Context, md *meta.Metadata, results []*WriteResults) error
	// Abort removes the files of a save that will not finish. Each rank removes its own files.
	// The coordinator also removes the files of other ranks that it finds, because those ranks
	// may have died. Abort is called in place of the remaining methods, also after one of them
	// returned an error, on every rank that called SetUp. After Finish returned nil or
	// ErrUncertain, Abort has no effect. If the session has a journal that lists a file, Abort
	// keeps all files: the save may go on later.
	Abort(ctx context.Context) error
}

// Publisher is a capability of writers of checkpoints that can be copied file by file.
type Publisher interface {
	// Published returns the names of the files that Finish has written after the data files, in
	// this order. The last one is the record, which has committed the checkpoint. It is the data
	// file itself if the checkpoint has only one file.
	Published() []string
}

// DataKeeper is a capability of writers of formats with a place for storage data, see
// [meta.Location.SetStorageData].
type DataKeeper interface {
	// KeepsStorageData reports whether the data of results reaches readers.
	KeepsStorageData() bool
}

// RoomMaker is a capability of writers that prepare their store for a save.
type RoomMaker interface {
	// MakeRoom is called on the coordinator when the plans of all ranks are final and
	// before any rank writes. bytes is the size of the state. The caller calls done when
	// the save is over, whether it has succeeded or not. Until then, the store does not
	// free the space of files that were removed, see blob.Reclaimer.
	MakeRoom(ctx context.Context, bytes int64) (done func())
}

// Resolver provides the bytes of items. A plan.SavePlanner is a Resolver.
type Resolver interface {
	Resolve(it *plan.WriteItem) (plan.Data, error)
}

// Reader carries out a load. Its methods are called in the order in which they are
// listed: PrepareGlobalPlan only on the coordinator, the other methods on every rank.
type Reader interface {
	// ReadMetadata reads the description of the checkpoint.
	ReadMetadata(ctx context.Context) (*meta.Metadata, error)
	// SetUp begins a load of the checkpoint that md describes.
	SetUp(ctx context.Context, md *meta.Metadata, s Session) error
	// PrepareLocalPlan may change this rank's plan before the plan is sent to the
	// coordinator.
	PrepareLocalPlan(ctx context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error)
	// PrepareGlobalPlan may change the final plans of all ranks, which are in rank
	// order.
	PrepareGlobalPlan(ctx context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error)
	// ReadData reads the plan's items and passes them to dst. It converts elements to
	// the dtype of the receiver's memory as tensor.Convert does with tensor.CastInRange.
	// It returns after all items were verified and passed on. If ranks read for each other, it may be
	// called several times, each time with other items.
	ReadData(ctx context.Context, p *plan.LoadPlan, dst Receiver) (ReadStats, error)
}

// Receiver receives the items that were read. A plan.LoadPlanner is a Receiver. Its
// methods may be called from several goroutines at once.
type Receiver interface {
	plan.TensorReceiver
	LoadBytes(it *plan.ReadItem, codec string, data []byte) error
}

// ReadStats counts the bytes and requests of a load.
type ReadStats struct {
	// Needed is the number of bytes the items asked for.
	Needed int64 `json:"bytes_needed"`
	// Rounded is Needed, rounded up to whole tiles if the format has tiles.
	Rounded int64 `json:"bytes_rounded"`
	// Read is the number of bytes read from data files.
	Read int64 `json:"bytes_read"`
	// Requests is the number of reads.
	Requests int64 `json:"requests"`
	// Received is the number of Needed bytes that other ranks read and sent.
	Received int64 `json:"bytes_received"`
}

// Add adds t to s.
func (s *ReadStats) Add(t ReadStats) {
	s.Needed += t.Needed
	s.Rounded += t.Rounded
	s.Read += t.Read
	s.Requests += t.Requests
	s.Received += t.Received
}

// NewReader returns the Reader of one rank for the checkpoint at the root of store.
// open opens the checkpoint: it is the Open method of a Format, or a function that
// detects the format. ReadMetadata opens the checkpoint and closes it again, so the
// caller does not have to close anything.
func NewReader(open func(ctx context.Context, store blob.Store) (Checkpoint, error), store blob.Store, o ReadOptions) Reader {
	return &reader{open: open, store: store, opts: o}
}

// HeldChecker is a capability of readers that know the files of the checkpoint.
type HeldChecker interface {
	// CheckHeld is the function CheckHeld for the checkpoint, after ReadMetadata.
	CheckHeld(ctx context.Context, entries iter.Seq[*meta.Entry]) error
}

var _ HeldChecker = (*reader)(nil)

// ReaderOf returns the Reader of one rank for an open checkpoint. The caller closes
// the checkpoint.
func ReaderOf(c Checkpoint, o ReadOptions) Reader { return &reader{c: c, opts: o} }

// reader implements Reader for a Checkpoint.
type reader struct {
	open  func(ctx context.Context, store blob.Store) (Checkpoint, error) // nil: c is open
	store blob.Store
	opts  ReadOptions
	c     Checkpoint // nil until ReadMetadata has opened it
	md    *meta.Metadata
}

// ReadMetadata opens the checkpoint, reads its description and checks its files.
func (r *reader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	c := r.c
	if r.open != nil {
		var err error
		if c, err = r.open(ctx, r.store); err != nil {
			return nil, err
		}
		defer c.Close()
	}

	md, err := c.Metadata(ctx)
	if err == nil && !r.opts.TrustSizes {
		err = c.CheckFiles(ctx)
	}
	if err != nil {
		return nil, err
	}

	r.c = c
	return md, nil
}

// CheckHeld implements HeldChecker.
func (r *reader) CheckHeld(ctx context.Context, entries iter.Seq[*meta.Entry]) error {
	return CheckHeld(ctx, r.c, entries)
}

// SetUp begins a load.
func (r *reader) SetUp(_ context.Context, md *meta.Metadata, s Session) error {
	if r.c == nil {
		return fmt.Errorf("%w: SetUp before ReadMetadata", plan.ErrProtocol)
	}
	r.md, r.opts.Progress = md, s.Progress
	return nil
}

// PrepareLocalPlan returns p.
func (r *reader) PrepareLocalPlan(_ context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error) {
	return p, nil
}

// PrepareGlobalPlan returns ps.
func (r *reader) PrepareGlobalPlan(_ context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error) {
	return ps, nil
}

// ReadData reads the plan's items.
func (r *reader) ReadData(ctx context.Context, p *plan.LoadPlan, dst Receiver) (ReadStats, error) {
	return r.c.Read(ctx, r.md, p, dst, r.opts)
}
