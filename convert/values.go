package convert

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	// keepValue is up to which size an object is kept in memory from planning
	// on, and keepValues how much of them in all. Others are read twice.
	keepValue  = 64 << 10
	keepValues = 16 << 20
	// valueBatch is how many objects are read at once, and valueBytes how large
	// they are together, unless one alone is larger.
	valueBatch = 512
	valueBytes = 8 << 20
)

// readValues reads all objects, for only then their codecs and sizes in the
// target are known.
func (j *Job) readValues(ctx context.Context) error {
	var values []*entry
	for _, e := range j.entries {
		if e.src.Bytes != nil {
			values = append(values, e)
		}
	}
	left := int64(keepValues)
	for len(values) > 0 {
		n := nextValues(values)
		got, err := readObjects(ctx, j.src, j.md, values[:n], storage.ReadOptions{BufferBytes: j.opts.Memory / 4, Parallel: j.opts.Parallel})
		if err != nil {
			return err
		}
		for i, e := range values[:n] {
			if got[i], err = j.settle(ctx, e, got[i]); err != nil {
				return err
			}
			v := e.value
			e.info.Codec, v.size = got[i].codec, int64(len(got[i].data))
			if v.size <= keepValue && v.size <= left {
				v.bytes = got[i].data
				left -= v.size
				continue
			}
			sum := sha256.Sum256(got[i].data)
			v.sum = string(sum[:])
		}
		values = values[n:]
	}
	return nil
}

// nextValues returns how many of the values are read next.
func nextValues(values []*entry) int {
	n, total := 1, values[0].src.Bytes.Size
	for n < min(len(values), valueBatch) {
		if total += values[n].src.Bytes.Size; total > valueBytes {
			break
		}
		n++
	}
	return n
}

// object is the content of a value.
type object struct {
	codec string
	data  []byte
}

// readObjects reads the objects of entries.
func readObjects(ctx context.Context, src storage.Checkpoint, md *meta.Metadata, es []*entry, o storage.ReadOptions) ([]object, error) {
	to := &objectReceiver{got: make([]object, len(es))}
	p := &plan.LoadPlan{}
	for i, e := range es {
		p.Items = append(p.Items, plan.ReadItem{
			Kind: plan.KindBytes, Dest: meta.Index{FQN: e.src.FQN, Hint: int32(i)}, Source: meta.Index{FQN: e.src.FQN},
		})
	}
	if _, err := src.Read(ctx, md, p, to, o); err != nil {
		return nil, err
	}
	for i := range to.got {
		if to.got[i].data == nil {
			return nil, fmt.Errorf("%w: the source did not hand over %q", storage.ErrCorrupt, es[i].src.FQN)
		}
	}
	return to.got, nil
}

// objectReceiver takes objects.
type objectReceiver struct {
	mu  sync.Mutex
	got []object // guarded by mu
}

var _ storage.Receiver = (*objectReceiver)(nil)

func (r *objectReceiver) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got[it.Dest.Hint] = object{codec, append([]byte{}, data...)}
	return nil
}

func (r *objectReceiver) ResolveTensor(it *plan.ReadItem) (*tensor.Tensor, error) {
	return nil, fmt.Errorf("%w: %q is no tensor", plan.ErrMismatch, it.Dest.FQN)
}

func (r *objectReceiver) CommitTensor(*plan.ReadItem, *tensor.Tensor) error { return nil }

// content returns the bytes of an object.
func (j *Job) content(ctx context.Context, e *entry) ([]byte, error) {
	if e.value.bytes != nil {
		return e.value.bytes, nil
	}
	got, err := readObjects(ctx, j.src, j.md, []*entry{e}, storage.ReadOptions{BufferBytes: j.opts.Memory / 8, Parallel: 1})
	if err == nil {
		got[0], err = j.settle(ctx, e, got[0])
	}
	if err != nil {
		return nil, err
	}
	if int64(len(got[0].data)) != e.value.size {
		return nil, fmt.Errorf("%w: %q had %d bytes and has %d now", storage.ErrChanged, e.src.FQN, e.value.size, len(got[0].data))
	}
	return got[0].data, nil
}
