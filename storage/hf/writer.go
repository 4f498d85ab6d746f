package hf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
	"github.com/cairn-ckpt/cairn/storage/publish"
	"github.com/cairn-ckpt/cairn/tensor"
)

// options are the options of a writer: those of the format and those of all.
type options struct {
	Format
	storage.WriteOptions
}

func (o *options) withDefaults() options {
	var out options
	if o != nil {
		out = *o
	}
	if out.BufferBytes <= 0 {
		out.BufferBytes = 1 << 30
	}
	if out.FilesPerRank <= 0 {
		out.FilesPerRank = 2
	}
	if out.SweepAfter == 0 {
		out.SweepAfter = 24 * time.Hour
	}
	return out
}

// Writer writes a checkpoint of safetensors at the root of a store. Each rank has
// its own.
//
// Where one rank has all tensors as a whole they go into model.safetensors, or
// into several files and an index, which is the commit. Else they go into
// PyTorch's distributed form: every rank has files of its own, which say where in
// its tensor each chunk lies, and cairn-save.json beside them is the commit;
// readers that do not know of it see what is there.
//
// The format holds tensors of the types that every library of it knows and
// nothing else: all else is refused with storage.ErrNotRepresentable before
// anything is written.
//
// A checkpoint under the names that this writer uses is replaced, also one that
// another program wrote: the names of the new files have the save's id inside
// then, and the old checkpoint is there until the new one takes its place in one
// step. A checkpoint under another name, and a second one in the same folder, are
// refused with storage.ErrExists.
type Writer struct {
	store blob.Store
	opts  options
	sess  storage.Session
	form  form          // of the save, known since WriteData
	in    string        // in the names of files, known since WriteData
	mark  *publish.Mark // of the coordinator, while a save is under way

	written publish.Written

	mu   sync.Mutex
	held blob.Writer // model.safetensors before its commit; guarded by mu
}

var (
	_ storage.Writer          = (*Writer)(nil)
	_ storage.MetadataChecker = (*Writer)(nil)
)

// newWriter returns a writer of checkpoints at the root of store.
func newWriter(store blob.Store, o *options) *Writer {
	return &Writer{store: store, opts: o.withDefaults()}
}

// SetUp begins a save.
func (w *Writer) SetUp(_ context.Context, s storage.Session) error {
	w.release()
	w.sess, w.form, w.in = s, form{}, ""
	w.written.Reset(true) // until the place is known to be free
	return nil
}

// PrepareLocalPlan returns p, or all that the format cannot hold as an error. The
// coordinator returns an error if there is a checkpoint that must stay.
func (w *Writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	var errs []error
	for i := range p.Items {
		if err := representable(&p.Items[i]); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if w.sess.Coordinator {
		if err := w.checkPlace(ctx); err != nil {
			return nil, err
		}
		if err := w.begin(ctx); err != nil {
			return nil, err
		}
	}
	w.written.Keep(false)
	return p, nil
}

// representable returns an error where an item cannot be written.
func representable(it *plan.WriteItem) error {
	why := ""
	switch _, known := safetensors.DTypeName(it.Info.DType); {
	case it.Kind == plan.KindBytes:
		why = "a value that is no tensor"
	case !known:
		why = fmt.Sprintf("elements of type %v", it.Info.DType)
	case it.FQN() == "__metadata__":
		why = "a name that the format keeps for itself"
	default:
		return nil
	}
	return &storage.NotRepresentable{FQN: it.FQN(), Why: why}
}

// form is what the coordinator tells the ranks by way of their plans.
type form struct {
	Distributed bool `json:"distributed"`
	// Files is the number of files that the rank with the most of them writes.
	Files int `json:"files"`
	// Empty says that no rank has any tensor.
	Empty bool `json:"empty,omitempty"`
}

// PrepareGlobalPlan decides on the form.
func (w *Writer) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	if err := checkOnce(ps); err != nil {
		return nil, err
	}
	f := form{Distributed: w.opts.Distributed || len(ps) > 1 || slices.ContainsFunc(ps, cutsTensors), Files: 1, Empty: true}
	for _, p := range ps {
		files, err := w.pack(p)
		if err != nil {
			return nil, err
		}
		f.Files = max(f.Files, len(files))
		f.Empty = f.Empty && len(files) == 0
	}
	return publish.Tell(ps, f)
}

// checkOnce refuses a chunk that several ranks would write: readers could not decide
// which copy is part of the checkpoint.
func checkOnce(ps []*plan.SavePlan) error {
	if len(ps) < 2 {
		return nil
	}
	seen := map[plan.ItemKey]int{}
	for rank, p := range ps {
		for i := range p.Items {
			it := &p.Items[i]
			if first, ok := seen[it.Key()]; ok {
				return &storage.NotRepresentable{FQN: it.FQN(), Why: fmt.Sprintf("ranks %d and %d would both write it, and safetensors files hold one copy", first, rank)}
			}
			seen[it.Key()] = rank
		}
	}
	return nil
}

// cutsTensors reports whether an item of the plan is only a part of its tensor.
func cutsTensors(p *plan.SavePlan) bool {
	return slices.ContainsFunc(p.Items, func(it plan.WriteItem) bool {
		return it.Kind != plan.KindBytes && !it.Box.Equal(tensor.Whole(it.Info.Shape))
	})
}

// CheckMetadata refuses planner data.
func (w *Writer) CheckMetadata(md *meta.Metadata) error {
	return storage.RefusePlannerData(Format{}.Name(), md)
}

// WriteData writes the plan's items into files of this rank.
func (w *Writer) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	if err := json.Unmarshal(p.StorageData, &w.form); err != nil {
		return nil, fmt.Errorf("%w: storage data of the plan: %w", plan.ErrProtocol, err)
	}
	w.dropHeld() // of an attempt before
	var err error
	if w.in, err = w.infix(ctx); err != nil {
		return nil, err
	}
	files, err := w.layOut(p)
	if err != nil {
		return nil, err
	}
	o := datafile.Options{Files: w.opts.FilesPerRank, BufferBytes: w.opts.BufferBytes, Created: w.written.Note}
	if w.single() {
		o.Replace = !w.opts.FailIfExists
		o.Hold = func(_ string, bw blob.Writer) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.held = bw
		}
	}
	r, err := datafile.Write(ctx, w.store, files, data, w.sess, p.NumBytes(), o)
	if err != nil {
		w.dropHeld()
		return nil, err
	}
	return r, nil
}

// single reports whether the checkpoint is one file, which is its own commit.
func (w *Writer) single() bool { return !w.form.Distributed && w.form.Files == 1 }

// takeHeld returns the file that waits for its commit, and forgets it.
func (w *Writer) takeHeld() blob.Writer {
	w.mu.Lock()
	defer w.mu.Unlock()
	bw := w.held
	w.held = nil
	return bw
}

func (w *Writer) dropHeld() {
	if bw := w.takeHeld(); bw != nil {
		bw.Abort()
	}
}
