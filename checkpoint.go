package cairn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Checkpoint is a checkpoint opened for reading, without a job. Its methods are
// safe for concurrent use.
type Checkpoint struct {
	store blob.Store
	c     storage.Checkpoint
}

// Open opens the checkpoint at the root of store, in any format of package
// storage/formats. If the root is the folder of a run with a file of its training program
// that names the newest checkpoint, such as Megatron's latest_checkpointed_iteration.txt,
// Open opens that checkpoint. It reads the record and the end of the index of a native
// checkpoint, and all metadata of a checkpoint in any other format.
func Open(ctx context.Context, store blob.Store) (*Checkpoint, error) {
	if store == nil {
		return nil, wrap("open", store, errNoStore)
	}
	c, at, err := formats.OpenLocated(ctx, store, nil)
	if err != nil {
		return nil, wrap("open", store, err)
	}
	return NewCheckpoint(at, c), nil
}

// OpenPath is Open for an address: the path of a folder or of a single file, or a URL; see
// OpenStore.
func OpenPath(ctx context.Context, address string) (*Checkpoint, error) {
	store, err := openAddress(ctx, address)
	if err != nil {
		return nil, err
	}
	if path, local, _ := file.LocalPath(address); local {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil, wrap("open", store, fmt.Errorf("%w: %w", ErrNotFound, err))
		} else if err != nil {
			return nil, wrap("open", store, err) // there may be a checkpoint
		}
	}
	return Open(ctx, store)
}

// OpenStore returns the store at an address, for Save and Load: a path, file:///path, or a
// URL such as s3://bucket/prefix if the program imports the package of its scheme, such as
// blob/s3. A path names a folder, which Save creates if it does not exist, or of a
// single file. Package blob/file opens stores with options. Errors do not repeat the user
// and the query of a URL, which may hold secrets.
func OpenStore(address string) (blob.Store, error) {
	return openAddress(context.Background(), address)
}

func openAddress(ctx context.Context, address string) (blob.Store, error) {
	s, err := blob.OpenAddress(ctx, address)
	if _, single := s.(*blob.Single); err != nil || single || blob.Scheme(address) == "file" {
		return s, err
	}
	return &located{s, address}, nil
}

// located is a folder that a saver process can open too, by its address.
type located struct {
	blob.Store
	address string
}

// Unwrap returns the store itself.
func (l *located) Unwrap() blob.Store { return l.Store }

// NewCheckpoint returns a Checkpoint, as Open does, for the checkpoint c at the
// root of store. The caller has opened c with a format that has options of its own,
// such as hf.Format{Dequantize: true}.
func NewCheckpoint(store blob.Store, c storage.Checkpoint) *Checkpoint {
	return &Checkpoint{store: store, c: c}
}

// Close releases the resources of the checkpoint.
func (c *Checkpoint) Close() error { return c.c.Close() }

// Info describes the checkpoint as a whole.
func (c *Checkpoint) Info() meta.Storage { return c.c.Storage() }

// Files returns the checkpoint's files with sizes, and checksums if the format has
// them. Files that describe the checkpoint come first.
func (c *Checkpoint) Files() []storage.File { return c.c.Files() }

// MissingFiles returns the names of the files that do not exist.
func (c *Checkpoint) MissingFiles(ctx context.Context) ([]string, error) {
	out, err := storage.MissingFiles(ctx, c.store, c.Files())
	return out, wrap("read", c.store, err)
}

// Metadata returns the description of everything in the checkpoint. It reads
// the whole index.
func (c *Checkpoint) Metadata(ctx context.Context) (*meta.Metadata, error) {
	md, err := c.c.Metadata(ctx)
	return md, wrap("read", c.store, err)
}

// Entry returns the description of one name. It reads one block of a native index.
// The error wraps ErrMissing if there is no such name.
func (c *Checkpoint) Entry(ctx context.Context, fqn string) (*meta.Entry, error) {
	e, ok, err := c.c.Find(ctx, fqn)
	if err == nil && !ok {
		err = fmt.Errorf("%q is %w", fqn, ErrMissing)
	}
	if err != nil {
		return nil, wrap("read", c.store, err)
	}
	return e, nil
}

// ReadTensor reads a whole tensor.
func (c *Checkpoint) ReadTensor(ctx context.Context, fqn string) (*tensor.Tensor, error) {
	e, err := c.Entry(ctx, fqn)
	if err != nil {
		return nil, err
	}
	if e.Tensor == nil {
		return nil, wrap("read", c.store, fmt.Errorf("%q is a value, not a tensor: %w", fqn, ErrMismatch))
	}
	if err := c.c.CheckHeld(ctx, e); err != nil { // before memory is allocated for it
		return nil, wrap("read", c.store, plan.Named(fqn, err))
	}
	t, err := tensor.New(e.Tensor.DType, e.Tensor.Shape)
	if err != nil {
		return nil, wrap("read", c.store, plan.Named(fqn, err))
	}
	if err := c.ReadEntry(ctx, e, tensor.Whole(e.Tensor.Shape), t); err != nil {
		return nil, err
	}
	return t, nil
}

// ReadBox reads one box of a tensor into dst, which has the shape of the box
// and any dtype and strides; elements are converted as tensor.Convert does with
// tensor.CastInRange. To read with tensor.CastAny, pass dst.Lossy().
func (c *Checkpoint) ReadBox(ctx context.Context, fqn string, box tensor.Box, dst *tensor.Tensor) error {
	e, err := c.Entry(ctx, fqn)
	if err != nil {
		return err
	}
	return c.ReadEntry(ctx, e, box, dst)
}

// ReadEntry is ReadBox for an entry that Entry or Metadata returned: it does not
// look the name up again.
func (c *Checkpoint) ReadEntry(ctx context.Context, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error {
	if e.Tensor == nil {
		return wrap("read", c.store, fmt.Errorf("%q is a value, not a tensor: %w", e.FQN, ErrMismatch))
	}
	if err := box.Check(e.Tensor.Shape); err != nil {
		return wrap("read", c.store, plan.Named(e.FQN, err))
	}
	if dst == nil || !slices.Equal(dst.Shape(), box.Sizes) {
		return wrap("read", c.store, fmt.Errorf("%q: reading a box of %v into %v: %w", e.FQN, box.Sizes, dst, tensor.ErrShape))
	}
	return c.read(ctx, only(e), &plan.DefaultLoad{Cast: tensor.CastInRange.Into(dst)}, plan.State{e.FQN: &oneBox{e.Tensor.Shape, box, dst}})
}

// ReadEntries reads the whole tensors of entries that Entry or Metadata returned,
// tensor i into dst[i], which has its shape and any dtype and strides. For small
// tensors it is much faster than a ReadEntry for each: it reads tensors that lie
// side by side with one read.
func (c *Checkpoint) ReadEntries(ctx context.Context, entries []*meta.Entry, dst []*tensor.Tensor) error {
	if len(dst) != len(entries) {
		return wrap("read", c.store, fmt.Errorf("reading %d entries into %d tensors: %w", len(entries), len(dst), tensor.ErrShape))
	}
	md, state := &meta.Metadata{Entries: make([]meta.Entry, len(entries))}, make(plan.State, len(entries))
	for i, e := range entries {
		switch {
		case e.Tensor == nil:
			return wrap("read", c.store, fmt.Errorf("%q is a value, not a tensor: %w", e.FQN, ErrMismatch))
		case dst[i] == nil || !slices.Equal(dst[i].Shape(), e.Tensor.Shape):
			return wrap("read", c.store, fmt.Errorf("%q: reading a tensor of %v into %v: %w", e.FQN, e.Tensor.Shape, dst[i], tensor.ErrShape))
		}
		md.Entries[i], state[e.FQN] = *e, dst[i]
	}
	if len(state) != len(entries) {
		return wrap("read", c.store, fmt.Errorf("%d entries have only %d different names: %w", len(entries), len(state), ErrMismatch))
	}
	slices.SortFunc(md.Entries, func(x, y meta.Entry) int { return strings.Compare(x.FQN, y.FQN) })
	return c.read(ctx, md, &plan.DefaultLoad{}, state)
}

// ReadValue reads a value that is not a tensor. Tensors that the value refers to by a
// value.Ref are not read: ReadTensor reads them by their names.
func (c *Checkpoint) ReadValue(ctx context.Context, fqn string) (any, error) {
	e, err := c.Entry(ctx, fqn)
	if err != nil {
		return nil, err
	}
	codec, data, err := c.ReadBytes(ctx, e)
	if err != nil {
		return nil, err
	}
	v, err := value.Decode(codec, data)
	if err != nil {
		return nil, wrap("read", c.store, plan.Named(fqn, err))
	}
	return v, nil
}

// ReadBytes reads the encoded bytes of a value and their codec.
func (c *Checkpoint) ReadBytes(ctx context.Context, e *meta.Entry) (codec string, data []byte, err error) {
	if e.Bytes == nil {
		return "", nil, wrap("read", c.store, fmt.Errorf("%q is a tensor, not a value: %w", e.FQN, ErrMismatch))
	}
	codec, data, err = storage.ReadValue(ctx, c.c, e)
	return codec, data, wrap("read", c.store, plan.Named(e.FQN, err))
}

// only returns metadata that has the entry e alone.
func only(e *meta.Entry) *meta.Metadata { return &meta.Metadata{Entries: []meta.Entry{*e}} }

// read loads everything that md describes into s, with the planner p.
func (c *Checkpoint) read(ctx context.Context, md *meta.Metadata, p plan.LoadPlanner, s plan.State) error {
	return wrap("read", c.store, protocol.Read(ctx, storage.ReaderOf(c.c, storage.ReadOptions{}), md, p, s))
}

// Verify reads every byte of the checkpoint and checks it. The report has all
// problems, and the error wraps ErrCorrupt if there is a problem. progress, if not
// nil, receives the bytes that were read since its last call; they add up to
// TotalBytes.
func (c *Checkpoint) Verify(ctx context.Context, progress func(bytes int64)) (*storage.VerifyReport, error) {
	return c.VerifyTogether(ctx, nil, nil, progress)
}

// VerifyTogether is Verify by several ranks, each of which reads a part of the files. All
// ranks of g call it, and all of them return the same report. planned and progress, if not
// nil, receive the bytes of this rank only: planned all of them, before the first is read.
func (c *Checkpoint) VerifyTogether(ctx context.Context, g group.Group, planned, progress func(bytes int64)) (*storage.VerifyReport, error) {
	rep, err := protocol.Verify(ctx, protocol.RankVerify{Group: g, Checkpoint: c.c, Planned: planned, Progress: progress})
	if err == nil && len(rep.Problems) > 0 {
		p, name := rep.Problems[0], ""
		if p.FQN != "" {
			name = fmt.Sprintf("%q: ", p.FQN)
		}
		err = fmt.Errorf("%w: %d problems; the first: %s: %s%s", ErrCorrupt, len(rep.Problems), p.File, name, p.Text)
	}
	return rep, wrap("verify", c.store, err)
}

// TotalBytes returns the size of all files of the checkpoint.
func (c *Checkpoint) TotalBytes() int64 { return c.c.TotalBytes() }

// oneBox is a tensor of which only one box is wanted.
type oneBox struct {
	shape []int64
	box   tensor.Box
	dst   *tensor.Tensor
}

var _ plan.Checkpointable = (*oneBox)(nil)

func (o *oneBox) GlobalShape() []int64             { return o.shape }
func (o *oneBox) DType() tensor.DType              { return o.dst.DType() }
func (o *oneBox) Boxes() []tensor.Box              { return []tensor.Box{o.box} }
func (o *oneBox) Part(int) (*tensor.Tensor, error) { return o.dst, nil }
