// Package storage holds the two protocols by which plans become bytes and
// bytes become state again, and the errors that all formats share. It knows no
// format and no medium: each format is a package below it, over a blob store.
// The contract is in the comments of Writer and Reader.
package storage

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// Session describes a save or load to one of its ranks.
type Session struct {
	Rank, Size int
	// Coordinator is set on the one rank that plans globally and commits.
	Coordinator bool
	// Storage describes the checkpoint being saved: the same on every rank.
	Storage meta.Storage
	// Progress, if not nil, receives the number of bytes of the plan's items that
	// were moved. When WriteData or ReadData returns nil, the sum is that of all
	// items that had to be written, or read from files. It is called from several
	// goroutines at once.
	Progress func(bytes int64)
	// Warn, if not nil, receives errors that do not make the save or load fail,
	// such as that of an old file that could not be removed.
	Warn func(err error)
	// Journal, if not nil, keeps the results of finished files of a save that may
	// be interrupted and continued. A writer calls Finished before it writes a
	// file, and Note after.
	Journal Journal
}

// Writer carries a save out. The calls come in the order in which the methods
// are listed: PrepareGlobalPlan and Finish on the coordinator only, the other
// methods on every rank. A Writer serves one save at a time.
type Writer interface {
	// SetUp begins a save.
	SetUp(ctx context.Context, s Session) error
	// PrepareLocalPlan may amend this rank's plan before it is gathered. It
	// also returns an error if the writer cannot write to the place.
	PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error)
	// PrepareGlobalPlan may amend the ranks' final plans, in rank order. If
	// plans are reused (see plan.Cache), it is called only if one has changed, so
	// its additions must not depend on the save.
	PrepareGlobalPlan(ctx context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error)
	// WriteData writes the plan's items, whose bytes data resolves. When it
	// returns they are durable, and not yet part of any checkpoint.
	WriteData(ctx context.Context, p *plan.SavePlan, data Resolver) (*WriteResults, error)
	// Finish makes the checkpoint of all ranks' results appear, in one atomic
	// step: the commit. md is not changed. After an error nothing has appeared,
	// unless it wraps ErrUncertain.
	Finish(ctx context.Context, md *meta.Metadata, results []*WriteResults) error
	// Abort removes what was written in a save that will not finish: a rank its
	// own, the coordinator also what it finds of other ranks, which may be gone.
	// It is called instead of the remaining steps, also after an error, on every
	// rank that called SetUp, unless Finish returned nil or ErrUncertain; after
	// those it does nothing.
	Abort(ctx context.Context) error
}

// Resolver hands out the bytes of items. A plan.SavePlanner is one.
type Resolver interface {
	Resolve(it *plan.WriteItem) (plan.Data, error)
}

// Aliaser is a Resolver that can tell that several items are one tensor.
type Aliaser interface {
	// Alias returns a key that can be compared. Items whose keys are equal have
	// the same bytes, dtype and shape, because they are one tensor under several
	// names. Nil: no other item is known to be the same tensor.
	Alias(it *plan.WriteItem) any
}

// Reader carries a load out, in the order of its methods: ReadMetadata, SetUp,
// PrepareLocalPlan and ReadData on every rank, PrepareGlobalPlan on the
// coordinator only.
type Reader interface {
	// ReadMetadata reads the description of the checkpoint.
	ReadMetadata(ctx context.Context) (*meta.Metadata, error)
	// SetUp begins a load of the checkpoint that md describes.
	SetUp(ctx context.Context, md *meta.Metadata, s Session) error
	// PrepareLocalPlan may amend this rank's plan before it is gathered.
	PrepareLocalPlan(ctx context.Context, p *plan.LoadPlan) (*plan.LoadPlan, error)
	// PrepareGlobalPlan may amend the ranks' final plans, in rank order.
	PrepareGlobalPlan(ctx context.Context, ps []*plan.LoadPlan) ([]*plan.LoadPlan, error)
	// ReadData reads the plan's items and hands them to dst. It returns once
	// everything was handed over and verified. If ranks read for each other,
	// it may be called more than once, each time with other items.
	ReadData(ctx context.Context, p *plan.LoadPlan, dst Receiver) (ReadStats, error)
}

// Receiver takes what was read. A plan.LoadPlanner is one. Its methods may be
// called from several goroutines at once.
type Receiver interface {
	plan.TensorReceiver
	LoadBytes(it *plan.ReadItem, codec string, data []byte) error
}

// ReadStats counts what a load read.
type ReadStats struct {
	// Needed is the number of bytes the items asked for.
	Needed int64 `json:"bytes_needed"`
	// Rounded is Needed rounded out to whole tiles, if the format has them.
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

// NewReader returns a reader, for one rank of a load, of the checkpoint at the root
// of store. open opens it: the Open method of a Format, or a function that detects
// the format. ReadMetadata opens the checkpoint and closes it again, so that
// nothing stays open between calls.
func NewReader(open func(ctx context.Context, store blob.Store) (Checkpoint, error), store blob.Store, o ReadOptions) Reader {
	return &reader{open: open, store: store, opts: o}
}

// ReaderOf returns a reader, for one rank of a load, of an open checkpoint.
func ReaderOf(c Checkpoint, o ReadOptions) Reader { return &reader{c: c, opts: o} }

// reader carries the protocol of a load out on a Checkpoint.
type reader struct {
	open  func(ctx context.Context, store blob.Store) (Checkpoint, error) // nil: c is open
	store blob.Store
	opts  ReadOptions
	c     Checkpoint // nil before ReadMetadata opens it
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
