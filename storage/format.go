package storage

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// Format is a checkpoint format. Its implementations are structs; their fields are the
// options that only this format has, such as torchdcp.Format{FilePerTensor: true}. A Format
// makes writers and opens checkpoints, at the root of the store that is passed to the call.
type Format interface {
	// Name returns the name of the format. Package storage/formats lists all names.
	Name() string
	// NewWriter returns a writer for one rank. It does not touch the store. The
	// error wraps ErrOptions if the format cannot honour an option.
	NewWriter(store blob.Store, o WriteOptions) (Writer, error)
	// Open opens the checkpoint at the root of store. The error wraps ErrNotFound
	// if the store holds no checkpoint of this format.
	Open(ctx context.Context, store blob.Store) (Checkpoint, error)
}

// WriteOptions are the options that apply to every format. A format honours each
// of them or refuses it with ErrOptions. The zero value means the defaults.
type WriteOptions struct {
	// FilesPerRank is the number of data files that a rank writes at the same
	// time, at most MaxFilesPerRank. Zero: the format's default, which is 1 or 2.
	FilesPerRank int
	// BufferBytes bounds the host memory that a rank uses for bytes on their way
	// to the store. A rank may use 512 KiB even if the bound is lower. Zero:
	// 1 GiB.
	BufferBytes int64
	// FailIfExists refuses to replace a checkpoint, including one that appears
	// while this one is written.
	FailIfExists bool
	// Replaces, if not nil, has the ids of the saves that this one may replace: see MayReplace.
	Replaces []string
	// Others, if not nil, returns an *OtherFormatError if the root of a store holds files
	// of a checkpoint in another format than the named one, apart from files for which own
	// returns true: formats.CheckOthers. The coordinator calls it before the first file is
	// written and again before the commit, because readers might open the other checkpoint
	// instead of the new one. Nil: a save looks only for checkpoints of its own format.
	// empty means that the store holds no other files of any format.
	Others func(ctx context.Context, store blob.Store, format string, own func(name string) bool) (empty bool, err error)
	// SweepAfter is the age at which leftover files are removed after the commit, if
	// it is unknown whether the process that saved them is alive. If that process ran
	// on this host and is dead, its files are removed at any age. Zero: 24 hours, or
	// no sweep if the requests of the store are expensive, see blob.GapReader.
	// Negative: no leftover files are removed.
	SweepAfter time.Duration
	// RankLocal means that the rank saves without a group. Each rank is then the
	// coordinator of its own save. Finish publishes the metadata of this rank only,
	// and opening the checkpoint merges the metadata of all ranks. Such a save never
	// replaces a checkpoint.
	RankLocal bool
	// Base, if not nil, lets the save store only the bytes that changed since an earlier one.
	Base *Base
	// Apart means that ranks may have stores of their own, such as the disks of several
	// hosts. Finish then accepts that the coordinator does not see the files of a rank.
	Apart bool
}

// MayReplace reports whether a save with WriteOptions.Replaces may replace the save id. The id of
// some checkpoints is unknown, such as of a file of torch.save. It is "" then, and replaces has "" if
// the job has saved or loaded any checkpoint at that place. If the first one is "", the job has loaded a
// checkpoint there of which the reader does not know the id, and may replace any.
func MayReplace(replaces []string, id string) bool {
	return replaces == nil || slices.Contains(replaces, id) || len(replaces) > 0 && replaces[0] == ""
}

// Base is an earlier checkpoint to which a save may refer.
type Base struct {
	// Folder is the name of a folder beside the folder of the save. It holds an earlier
	// checkpoint of the same format. Where bytes have not changed, the new checkpoint refers to
	// its files. If it cannot be read, the save does without it. Empty: there is no earlier
	// checkpoint, and the save only keeps the hashes that later saves need in order to refer to
	// it.
	Folder string `json:"folder,omitempty"`
	// Find, if not nil, returns Folder if Folder is empty or holds no checkpoint that can be
	// opened. It returns "" if there is none.
	Find func(ctx context.Context) (string, error) `json:"-"`
	// MaxBodies bounds the number of checkpoints that hold the bytes of one part of the new one.
	// A part with as many in the base is written as a whole. More take longer to read for a
	// program that reads all of them, and fewer make a save write whole parts more often. Zero:
	// 8. At most 64.
	MaxBodies int `json:"max_bodies,omitempty"`
	// Paid, if not nil, is called on each rank that has referred to the base, with the bytes
	// that it has written and the bytes that it would have written without a base.
	Paid func(written, bytes int64) `json:"-"`
	// Referred, if not nil, is called on each rank when its data is written, with the store of
	// the save and the files in other folders to which the data refers. warn may be called
	// later.
	Referred func(store blob.Store, files []Reference, warn func(error)) `json:"-"`
	// Damaged, if not nil, reports whether a file in another folder is known to be damaged. The
	// save then writes the bytes that it would refer to.
	Damaged func(f Reference) bool `json:"-"`
}

// RefuseBase returns an error that wraps ErrOptions if Base is set. Formats that other
// programs read call it with their name.
func (o *WriteOptions) RefuseBase(format string) error {
	return RefuseIf(o.Base != nil, "Base: the format %s cannot refer to other checkpoints", format)
}

// MaxFilesPerRank is the largest FilesPerRank. More files at the same time do not
// make a save faster.
const MaxFilesPerRank = 1024

// Check returns an error that wraps ErrOptions if an option is out of range.
func (o *WriteOptions) Check() error {
	return errors.Join(
		RefuseIf(o.FilesPerRank < 0, "FilesPerRank %d is negative", o.FilesPerRank),
		RefuseIf(o.FilesPerRank > MaxFilesPerRank, "FilesPerRank %d is more than %d", o.FilesPerRank, MaxFilesPerRank),
		RefuseIf(o.BufferBytes < 0, "BufferBytes %d is negative", o.BufferBytes),
	)
}

// WithDefaults returns o with the default in place of each zero. The default of
// FilesPerRank is 1 here. The default of SweepAfter depends on the store, so it stays zero.
func (o WriteOptions) WithDefaults() WriteOptions {
	o.FilesPerRank = max(1, o.FilesPerRank)
	if o.BufferBytes <= 0 {
		o.BufferBytes = defaultBufferBytes
	}
	return o
}

// RefuseRankLocal returns an error that wraps ErrOptions if RankLocal is set. Formats
// that do not support RankLocal call it with their name.
func (o *WriteOptions) RefuseRankLocal(format string) error {
	return RefuseIf(o.RankLocal, "RankLocal: the format %s has no metadata of single ranks", format)
}
