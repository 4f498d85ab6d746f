// Package protocol calls planners and storage in the order of the save and load
// protocols. Save and Load run one rank's part over a group: a step begins after all
// ranks have completed the step before it, and an error on one rank is returned on
// all of them. InProcessSave and InProcessLoad run the parts of several ranks in one
// process, step by step.
//
// The package does not depend on formats, on storage media or on how plans are
// made. docs/architecture.md shows the order of the calls.
package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Observer receives the progress of one rank. Every function may be nil, and may
// be called from several goroutines at once.
type Observer struct {
	// Planned receives the number of bytes that this rank will write or read.
	Planned func(bytes int64)
	// Moved receives the number of bytes that were written or read since its last
	// call. If the save or load succeeds, they add up to the number that Planned
	// received.
	Moved func(bytes int64)
	// Warned receives errors that do not damage the checkpoint.
	Warned func(err error)
	// Phase receives each phase of this rank when it has succeeded: the constants of
	// package meta name them. Its times count from the call of the save or load.
	Phase func(p meta.Phase)
	// Ended receives the outcome of a save or load when it is over, also of one that
	// failed. No other function is called after it, except for Uploaded. The Outcome must
	// not be changed.
	Ended func(o *Outcome)
	// Uploaded receives the outcome of the upload of a background save to its second store
	// when it is over, also of one that failed; Outcome.Op is OpUpload, and Outcome.Time
	// counts from the beginning of the upload. It is not called if the save has failed. The
	// Outcome must not be changed.
	Uploaded func(o *Outcome)
}

func (o *Observer) planned(n int64) {
	if o.Planned != nil {
		o.Planned(n)
	}
}

// SaveReport describes a save that succeeded.
type SaveReport struct {
	SaveID string `json:"save_id"`
	Step   *int64 `json:"step"`
	// Folder is the name of the checkpoint's folder in its run. Empty: it is not saved to a
	// run.
	Folder string `json:"folder,omitempty"`
	// Bytes and Files count the data files of all ranks, RankBytes the files of
	// this rank.
	Bytes     int64 `json:"bytes"`
	RankBytes int64 `json:"local_bytes"`
	Files     int   `json:"files"`
	// Wrote are the data files that this rank has written. Nil: another process has saved.
	Wrote []storage.File `json:"-"`
	// PlanReused is set if this rank reused the plan of its previous save.
	PlanReused bool          `json:"plan_reused"`
	PlanTime   time.Duration `json:"plan_ns"`
	WriteTime  time.Duration `json:"write_ns"`
	// StageTime is how long a background save took to copy the state aside. MemoryWait
	// is the part of it that came after all that fitted into the staging memory was
	// copied: the rest of the state waited for the save to release memory.
	StageTime  time.Duration `json:"stage_ns,omitempty"`
	MemoryWait time.Duration `json:"memory_wait_ns,omitempty"`
	// Phases are the phases of this rank, in the order in which they ended. Their times
	// count from the beginning of the first.
	Phases []meta.Phase `json:"phases,omitempty"`
	// Traffic is the traffic of this rank's store, including other work in the same blob.Store
	// at the same time. Nil: the store does not count its requests.
	Traffic *blob.Traffic `json:"traffic,omitempty"`
}

func (r *SaveReport) rankBytes() int64 {
	if r == nil {
		return 0
	}
	return r.RankBytes
}

// LoadReport describes a load that succeeded.
type LoadReport struct {
	SaveID string `json:"save_id"`
	Step   *int64 `json:"step"`
	// Local counts the bytes that this rank asked for, read from the store and
	// received from other ranks (see RankLoad.Share); Total counts the bytes of all
	// ranks.
	Local storage.ReadStats `json:"local"`
	Total storage.ReadStats `json:"total"`
	// Missing are this rank's names that the checkpoint does not have.
	Missing  []string      `json:"missing,omitempty"`
	PlanTime time.Duration `json:"plan_ns"`
	ReadTime time.Duration `json:"read_ns"`
	// Phases are the phases of this rank, as in SaveReport.
	Phases []meta.Phase `json:"phases,omitempty"`
	// Traffic is the traffic of this rank's store, including other work in the same blob.Store
	// at the same time. Nil: the store does not count its requests.
	Traffic *blob.Traffic `json:"traffic,omitempty"`
}

func (r *LoadReport) rankBytes() int64 {
	if r == nil {
		return 0
	}
	return r.Local.Needed
}

// errNotCommitted reports that the commit certainly did not take place, so that
// every rank may remove the files that it wrote.
var errNotCommitted = errors.New("not committed")

// These errors keep their identity on the way from one rank to another. The codes
// are part of the protocol between ranks.
func init() {
	for code, err := range map[string]error{
		"blob.service":       blob.ErrService,
		"engine.uncommitted": errNotCommitted,
		"meta.invalid":       meta.ErrInvalid,
		"plan.state":         plan.ErrState,
		"plan.protocol":      plan.ErrProtocol,
		"plan.mismatch":      plan.ErrMismatch,
		"plan.missing":       plan.ErrMissing,
		"plan.unexpected":    plan.ErrUnexpected,
		"plan.stale":         plan.ErrStale,
		"storage.notfound":   storage.ErrNotFound,
		"storage.incomplete": storage.ErrIncomplete,
		"storage.underway":   storage.ErrUnderWay,
		"storage.corrupt":    storage.ErrCorrupt,
		"storage.version":    storage.ErrVersion,
		"storage.inuse":      storage.ErrInUse,
		"storage.removing":   storage.ErrRemoving,
		"storage.exists":     storage.ErrExists,
		"storage.uncertain":  storage.ErrUncertain,
		"storage.changed":    storage.ErrChanged,
		"storage.options":    storage.ErrOptions,
		"storage.represent":  storage.ErrNotRepresentable,
		"tensor.cast":        tensor.ErrCast,
		"tensor.shape":       tensor.ErrShape,
		"tensor.dtype":       tensor.ErrDType,
		"tensor.layout":      tensor.ErrLayout,
		"tensor.placeholder": tensor.ErrPlaceholder,
		"value.value":        value.ErrValue,
		"value.encoding":     value.ErrEncoding,
		"value.codec":        value.ErrCodec,
	} {
		group.RegisterError(code, err)
	}
}

// given returns the result of a method of a planner, writer or reader, which may
// be the caller's own. A nil result without an error is an error that names the
// method.
func given[T any](what string, call func() (*T, error)) (*T, error) {
	v, err := call()
	if err == nil && v == nil {
		err = fmt.Errorf("%w: %s returned nil and no error", plan.ErrProtocol, what)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// givenAll is given for a list with one value for each rank.
func givenAll[T any](what string, ranks int, call func() ([]*T, error)) ([]*T, error) {
	list, err := call()
	if err == nil && len(list) != ranks {
		err = fmt.Errorf("%w: %s returned %d plans for %d ranks", plan.ErrProtocol, what, len(list), ranks)
	}
	if i := slices.Index(list, nil); err == nil && i >= 0 {
		err = fmt.Errorf("%w: %s returned no plan for rank %d", plan.ErrProtocol, what, i)
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Storage calls planners from its own goroutines, in which a panic would end the
// process and leave the other ranks waiting. source and target return panics of
// planners as errors.

// source is the planner of a save, for calls by storage.
type source struct {
	ctx context.Context
	plan.SavePlanner
	copies *copySums // of the items that other ranks hold too; may be nil
}

var _ storage.Resolver = source{}

func (s source) Resolve(it *plan.WriteItem) (d plan.Data, err error) {
	err = group.Catch(func() (err error) {
		d, err = s.SavePlanner.Resolve(it)
		return err
	})
	if err == nil && it.Kind != plan.KindBytes && d.Tensor == nil && d.Stream == nil {
		err = plan.Named(it.FQN(), fmt.Errorf("%w: the planner's Resolve returned no tensor and no error", plan.ErrProtocol))
	}
	if err == nil && it.Replicated {
		s.copies.add(s.ctx, it, d)
	}
	return d, err
}

// target is the planner of a load, for calls by storage.
type target struct{ plan.LoadPlanner }

var _ storage.Receiver = target{}

func (t target) ResolveTensor(it *plan.ReadItem) (x *tensor.Tensor, err error) {
	err = group.Catch(func() (err error) {
		x, err = t.LoadPlanner.ResolveTensor(it)
		return err
	})
	if err == nil && x == nil {
		err = plan.Named(it.Dest.FQN, fmt.Errorf("%w: the planner's ResolveTensor returned no tensor and no error", plan.ErrProtocol))
	}
	if err == nil && x.IsPlaceholder() {
		err = plan.Named(it.Dest.FQN, fmt.Errorf("%w: the planner's ResolveTensor returned no memory: %w", plan.ErrProtocol, tensor.ErrPlaceholder))
	}
	return x, err
}

func (t target) CommitTensor(it *plan.ReadItem, x *tensor.Tensor) error {
	return group.Catch(func() error { return t.LoadPlanner.CommitTensor(it, x) })
}

func (t target) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	return group.Catch(func() error {
		data, err := t.place(it, data)
		if err != nil {
			return err
		}
		return t.LoadPlanner.LoadBytes(it, codec, data)
	})
}

// place copies the bytes of a value into the memory that the planner provides, if it does.
func (t target) place(it *plan.ReadItem, data []byte) ([]byte, error) {
	r, ok := t.LoadPlanner.(plan.BytesReceiver)
	if !ok {
		return data, nil
	}

	memory, err := r.ResolveBytes(it, len(data))
	switch {
	case err != nil || memory == nil:
		return data, err
	case len(memory) != len(data):
		return nil, plan.Named(it.Dest.FQN, fmt.Errorf("%w: the planner's ResolveBytes returned %d bytes; want %d", plan.ErrProtocol, len(memory), len(data)))
	}

	copy(memory, data)
	return memory, nil
}
