package slime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// kept bounds the bytes of tensors that a checkpoint keeps in memory, unless a single one
// is larger. A checksum covers a whole tensor, so each read of a part makes all of it.
const kept = 256 << 20

// tensors makes the tensors of a checkpoint. It keeps those that were used last.
type tensors struct {
	full storage.Checkpoint
	most int64 // kept, or less in tests

	mu    sync.Mutex
	held  map[string]*held // guarded by mu
	order []*held          // guarded by mu; those that are not in use, the oldest first
	bytes int64            // guarded by mu; of held
	freed chan struct{}    // guarded by mu; closed when a tensor is not in use any more
}

// held is a tensor in memory.
type held struct {
	name  string
	users int // guarded by tensors.mu
	ready chan struct{}
	spare []byte // memory of a tensor that was dropped, or nil
	p     []byte // set before ready is closed
	err   error  // set before ready is closed
}

func newTensors(full storage.Checkpoint) *tensors {
	return &tensors{full: full, most: kept, held: map[string]*held{}, freed: make(chan struct{})}
}

// get returns the bytes of a tensor in its newest state, which were verified, and the
// number of bytes that it has read. The caller calls done, and does not change the bytes.
func (t *tensors) get(ctx context.Context, h *history) (p []byte, read int64, done func(), err error) {
	for {
		x, mine, err := t.hold(ctx, h)
		if err != nil {
			return nil, read, nil, err
		}

		if mine {
			x.p, read, x.err = t.build(ctx, h, x.spare)
			x.spare = nil
			close(x.ready)
		}

		done = func() { t.release(x, h.bytes) }
		select {
		case <-x.ready:
			err = x.err
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err == nil {
			return x.p, read, done, nil
		}

		done()
		if mine || ctx.Err() != nil || errors.Is(err, storage.ErrCorrupt) {
			return nil, read, nil, err
		}
		// The context of another caller may have ended: try again.
	}
}

// hold returns the place of a tensor in memory. mine means that the caller fills it. It
// waits until there is room.
func (t *tensors) hold(ctx context.Context, h *history) (x *held, mine bool, err error) {
	for {
		t.mu.Lock()
		if x := t.held[h.base.FQN]; x != nil {
			if x.users++; x.users == 1 {
				t.order = slices.DeleteFunc(t.order, func(y *held) bool { return x == y })
			}
			t.mu.Unlock()
			return x, false, nil
		}

		var spare []byte
		for len(t.order) > 0 && t.bytes+h.bytes > t.most {
			if p := t.drop(t.order[0]); int64(cap(p)) >= h.bytes {
				spare = p[:h.bytes]
			}
			t.order = t.order[1:]
		}

		if t.bytes == 0 || t.bytes+h.bytes <= t.most {
			x := &held{name: h.base.FQN, users: 1, ready: make(chan struct{}), spare: spare}
			t.held[x.name], t.bytes = x, t.bytes+h.bytes
			t.mu.Unlock()
			return x, true, nil
		}

		freed := t.freed
		t.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// drop forgets a tensor that is not in use, and returns its memory. The caller holds t.mu.
func (t *tensors) drop(x *held) []byte {
	delete(t.held, x.name)
	t.bytes -= int64(len(x.p))
	return x.p
}

// release ends one use of a tensor of n bytes. A tensor that could not be made is forgotten.
func (t *tensors) release(x *held, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if x.users--; x.users > 0 {
		return
	}

	if x.err != nil {
		delete(t.held, x.name)
		t.bytes -= n
	} else {
		t.order = append(t.order, x)
	}

	close(t.freed)
	t.freed = make(chan struct{})
}

// build makes a tensor: the bytes of the full version, changed by each difference, and
// compares it with the checksum of its newest state. It uses the memory of spare, unless
// that is nil.
func (t *tensors) build(ctx context.Context, h *history, spare []byte) ([]byte, int64, error) {
	if spare == nil {
		spare = make([]byte, h.bytes)
	}

	p, read, err := t.replay(ctx, h, spare, false)
	if !errors.Is(err, errSum) {
		return p, read, err
	}

	// Find the first version with a wrong state.
	if _, _, first := t.replay(ctx, h, spare, true); first != nil {
		err = first
	}
	return nil, read, err
}

// errSum reports a tensor that differs from its checksum.
var errSum = errors.New("its bytes differ from the checksum")

// replay makes a tensor in p. If each is set, it compares every state with
// its checksum, otherwise only the newest.
func (t *tensors) replay(ctx context.Context, h *history, p []byte, each bool) (_ []byte, read int64, err error) {
	flat, err := tensor.FromBytes(h.base.Tensor.DType, h.base.Tensor.Shape, p)
	if err != nil {
		return nil, 0, err
	}

	if read, err = readBox(ctx, t.full, h.base, tensor.Whole(h.base.Tensor.Shape), flat, 0); err != nil {
		return nil, read, err
	}

	for i, d := range h.deltas {
		read += d.length
		if err := d.apply(ctx, p); err != nil {
			return nil, read, err
		}

		if i < len(h.deltas)-1 && !each {
			continue
		}

		if got := sums[d.v.index.Metadata.Checksum](p); got != d.sum {
			why := "a difference is damaged, or the version before it is not the one that it was made from"
			if i == 0 {
				why = "the difference is damaged, or the full version is not the one that it was made from"
			}
			return nil, read, fmt.Errorf("%w: %s: %w %s of %s, they have %s: %s",
				ErrChain, d.v.name, errSum, d.v.index.Metadata.Checksum, d.sum, got, why)
		}
	}

	return p, read, nil
}

// apply changes p, the old state of the tensor, to the new one.
func (d *delta) apply(ctx context.Context, p []byte) error {
	return d.each(ctx, func(frame source) error { return apply(d.v.index.Metadata.Encoding, p, frame) })
}

// check returns an error if the difference is malformed.
func (d *delta) check(ctx context.Context) error {
	return d.each(ctx, func(frame source) error { return check(d.v.index.Metadata.Encoding, frame) })
}

// each calls use with the compressed difference. Errors name the version and the file.
func (d *delta) each(ctx context.Context, use func(frame source) error) error {
	r, err := d.v.store.Open(ctx, d.file)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if err == nil {
		defer r.Close()
		err = use(section(ctx, r, d.off, d.length))
	}
	if errors.Is(err, storage.ErrCorrupt) {
		return fmt.Errorf("%w: %s: %s: %w", ErrChain, d.v.name, d.file, err)
	}
	return err
}

// decoder reads a tensor; it implements reading.Decoder.
type decoder struct {
	t *tensors
	h *history
}

// Cut returns the box: a checksum covers the whole tensor.
func (d *decoder) Cut(box tensor.Box, _ int64) []tensor.Box { return []tensor.Box{box} }

// Decode implements reading.Decoder.
func (d *decoder) Decode(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
	if len(d.h.deltas) == 0 {
		return readBox(ctx, d.t.full, d.h.base, box, dst, budget)
	}

	p, read, done, err := d.t.get(ctx, d.h)
	if err != nil {
		return read, err
	}
	defer done()

	whole, err := tensor.FromBytes(d.h.base.Tensor.DType, d.h.base.Tensor.Shape, p)
	if err != nil {
		return read, err
	}

	part, err := whole.Narrow(box)
	if err != nil {
		return read, err
	}
	return read, tensor.Convert(dst, part, tensor.CastInRange)
}

var _ reading.Decoder = (*decoder)(nil)

// readBox reads a box of a tensor of a checkpoint into dst.
func readBox(ctx context.Context, c storage.Checkpoint, e *meta.Entry, box tensor.Box, dst *tensor.Tensor, budget int64) (read int64, err error) {
	x, err := plan.NewChunkIndex(e, 1)
	if err != nil {
		return 0, err
	}

	items, err := x.Reads(nil, meta.Index{FQN: e.FQN}, box)
	if err != nil {
		return 0, err
	}

	md := &meta.Metadata{Entries: []meta.Entry{*e}}
	st, err := c.Read(ctx, md, &plan.LoadPlan{Items: items}, receiver{dst}, storage.ReadOptions{BufferBytes: budget, Parallel: 1})
	return st.Read, err
}

// receiver receives the parts of one box.
type receiver struct{ dst *tensor.Tensor }

var _ storage.Receiver = receiver{}

// ResolveTensor returns the memory of a part.
func (r receiver) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	return r.dst.Narrow(it.DestBox())
}

// CommitTensor has no effect.
func (receiver) CommitTensor(*plan.ReadItem, *tensor.Tensor) error { return nil }

// LoadBytes returns an error: there are no values among the items.
func (receiver) LoadBytes(it *plan.ReadItem, _ string, _ []byte) error {
	return fmt.Errorf("%w: %q is a value", plan.ErrProtocol, it.Source.FQN)
}
