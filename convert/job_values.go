package convert

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

const (
	// keepValue bounds the size of an object that is kept in memory after planning,
	// and keepValues the size of all of them. Other objects are read twice.
	keepValue  = 64 << 10
	keepValues = 16 << 20
	// valueBatch bounds the number of objects that are read at once, and valueBytes
	// their size, unless one object is larger.
	valueBatch = 512
	valueBytes = 8 << 20
)

// readValues reads all objects to determine their codecs and sizes in the target.
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

// nextValues returns the number of values that are read next.
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
	p := &plan.LoadPlan{}
	for i, e := range es {
		p.Items = append(p.Items, plan.ReadItem{
			Kind: plan.KindBytes, Dest: meta.Index{FQN: e.src.FQN, Hint: int32(i)}, Source: meta.Index{FQN: e.src.FQN},
		})
	}
	got := make([]object, len(es)) // each element is written once, by one goroutine
	if _, err := src.Read(ctx, md, p, receiver{objects: got}, o); err != nil {
		return nil, err
	}
	for i := range got {
		if got[i].data == nil {
			return nil, fmt.Errorf("%w: the source did not return %q", storage.ErrCorrupt, es[i].src.FQN)
		}
	}
	return got, nil
}

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

// maxInline bounds the bytes of the tensors that are put into one object.
const maxInline = 256 << 20

// settle returns an object for the target: its references have the names in the target,
// or the tensors replace them if Inline accepts the object.
func (j *Job) settle(ctx context.Context, e *entry, o object) (object, error) {
	if o.codec != value.JSON || !bytes.Contains(o.data, []byte(`"$ref"`)) {
		return o, nil
	}
	v, err := value.Decode(o.codec, o.data)
	if err != nil {
		return o, plan.Named(e.src.FQN, err)
	}
	e.value.inline = j.opts.Inline != nil && j.fits(v) && j.opts.Inline(v)
	r := value.Replacer{With: func(_ []string, v any) (any, bool, error) {
		ref, ok := v.(value.Ref)
		if !ok {
			return nil, false, nil
		}
		if e.value.inline {
			t, err := j.read(ctx, ref.FQN)
			return t, true, err
		}
		if x := j.from(ref.FQN); x != nil {
			ref.FQN = x.info.FQN
		}
		return ref, true, nil
	}}
	if v, err = r.Replace(v); err == nil {
		o.codec, o.data, err = value.Encode(v)
	}
	if err != nil {
		return o, plan.Named(e.src.FQN, err)
	}
	return o, nil
}

// fits reports whether the tensors that v refers to have at most maxInline bytes. A
// tensor counts once for each reference.
func (j *Job) fits(v any) bool {
	var n int64
	count := value.Replacer{With: func(_ []string, v any) (any, bool, error) {
		ref, ok := v.(value.Ref)
		if !ok {
			return nil, false, nil
		}
		e, ok := j.md.Find(ref.FQN)
		if !ok || e.Tensor == nil || e.NumBytes() > maxInline-n {
			return nil, false, errTooLarge
		}
		n += e.NumBytes()
		return ref, true, nil
	}}
	_, err := count.Replace(v)
	return err == nil
}

// errTooLarge ends the count of fits.
var errTooLarge = errors.New("more than an object may hold")

// read returns a tensor of the source as the target receives it.
func (j *Job) read(ctx context.Context, name string) (*tensor.Tensor, error) {
	e := j.from(name)
	if e == nil { // it is not converted by itself
		src, _ := j.md.Find(name) // fits has found it
		alone := newEntry(src, &plan.Info{FQN: name, Properties: src.Tensor.Properties, Shape: src.Tensor.Shape})
		e = &alone
	}
	t, err := tensor.New(e.info.DType, e.info.Shape)
	if err != nil {
		return nil, err
	}
	s := newSource(ctx, j)
	defer s.close()
	c := newContent(s, e, tensor.Whole(e.info.Shape))
	return t, c.fill(ctx, t.Contents(), 0)
}

// dropInline removes the entries of tensors that are inside an object again.
func (j *Job) dropInline() {
	inside := j.md.Inside()
	j.entries = slices.DeleteFunc(j.entries, func(e *entry) bool {
		in := j.from(inside[e.src.FQN])
		return e.src.Tensor != nil && in != nil && in.value != nil && in.value.inline
	})
}
