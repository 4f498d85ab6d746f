package convert

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// maxInline bounds the bytes of the tensors that are put into one object.
const maxInline = 256 << 20

// settle returns an object as the target receives it: its references have the names
// in the target, or the tensors replace them if Inline accepts the object.
func (j *Job) settle(ctx context.Context, e *entry, o object) (object, error) {
	if o.codec != value.JSON || !bytes.Contains(o.data, []byte(`"$ref"`)) {
		return o, nil
	}
	v, err := value.Decode(o.codec, o.data)
	if err != nil {
		return o, fmt.Errorf("%q: %w", e.src.FQN, err)
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
		return o, fmt.Errorf("%q: %w", e.src.FQN, err)
	}
	return o, nil
}

// fits reports whether the tensors that v refers to fit into it, each as often as
// v refers to it.
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

// dropInline leaves out the tensors that stood inside of an object which holds
// them again.
func (j *Job) dropInline() {
	inside := j.md.Inside()
	j.entries = slices.DeleteFunc(j.entries, func(e *entry) bool {
		in := j.from(inside[e.src.FQN])
		return e.src.Tensor != nil && in != nil && in.value != nil && in.value.inline
	})
}
