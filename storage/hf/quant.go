package hf

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// schemes are the kinds of quantisation that can be decoded, by quant_method. An empty name is a
// configuration without one. Each has one rule.
var schemes = map[string]struct {
	check func(c *quantConfig) error // refuses forms of the kind; nil: there is only one
	rule  func(z *quantiser, e *meta.Entry) (*decoded, error)
	// parts are ends of names of tensors that a weight needs, each with the ends that the name of
	// the weight has instead.
	parts map[string][]string
}{
	"":                   {nil, blocksOrGroups, nil},
	"fp8":                {nil, blocksOrGroups, nil},
	"mxfp4":              {nil, blocksOrGroups, nil},
	"compressed-tensors": {checkCompressed, compressed, map[string][]string{scaleEnd: {weightEnd, packedEnd}}},
	"bitsandbytes":       {nil, bitsAndBytes, map[string][]string{maximaEnd: {""}, rowsEnd: {weightEnd}}},
	"gptq":               {checkGPTQ, gptq, map[string][]string{".scales": {wordsEnd}}},
	"awq":                {checkAWQ, awq, map[string][]string{".scales": {wordsEnd}}},
}

// decoded is a quantised weight as the numbers that it represents.
type decoded struct {
	name  string
	shape []int64
	dtype tensor.DType // of the numbers, unless the caller wants another
	form  numbers      // nil: there is no weight, only parts
	parts []string     // the tensors that are needed to decode it; they are left out
}

// quantiser finds the quantised weights among the tensors of a checkpoint.
type quantiser struct {
	*source
	ctx  context.Context
	conf *quantConfig
}

// dequantize replaces the quantised weights among the entries by the numbers that they
// represent, and drops their scales. to is the type of the numbers. Invalid: the type of the
// kind.
func (s *source) dequantize(ctx context.Context, dir *folder, to tensor.DType) error {
	if err := s.md.CheckWhole(nil); err != nil { // a scale may be missing
		return err
	}

	text := []byte("{}")
	if size, ok := dir.other[configName]; ok {
		var err error
		if text, err = blob.ReadAll(ctx, s.store, configName, maxConfig); err != nil {
			return err
		}
		s.add(configName, size)
	}

	conf, err := decodeConfig(text)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrQuantized, configName, err)
	}

	z := &quantiser{s, ctx, conf}
	s.quantized = map[string]*quantized{}
	left := map[string]bool{} // names that are left out
	var out []meta.Entry
	for i := range s.md.Entries {
		e := &s.md.Entries[i]
		d, err := schemes[conf.Method].rule(z, e)
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrQuantized, e.FQN, err)
		}
		if err := z.checkWeight(e); err != nil {
			return err
		}
		if d == nil {
			out = append(out, *e)
			continue
		}

		if _, twice := s.md.Find(d.name); twice && d.name != e.FQN || s.quantized[d.name] != nil {
			return fmt.Errorf("%w: %q: the checkpoint has %q too", ErrQuantized, e.FQN, d.name)
		}
		for _, name := range d.parts {
			left[name] = true
		}
		if d.form == nil {
			continue
		}

		t := *e.Tensor
		t.DType, t.Shape, t.Chunks = cmp.Or(to, d.dtype), d.shape, []tensor.Box{tensor.Whole(d.shape)}
		if _, err := tensor.NumBytes(t.DType, t.Shape); err != nil {
			return fmt.Errorf("%w: %q: %w", ErrQuantized, e.FQN, err)
		}
		s.quantized[d.name] = &quantized{store: s.store, dtype: t.DType, shape: d.shape, form: d.form}
		out = append(out, meta.Entry{FQN: d.name, Tensor: &t})
	}

	s.md.Entries = slices.DeleteFunc(out, func(e meta.Entry) bool { return left[e.FQN] })
	slices.SortFunc(s.md.Entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	return nil
}

// checkWeight returns an error if e is a part of a weight that the checkpoint does not have.
func (z *quantiser) checkWeight(e *meta.Entry) error {
	for part, ends := range schemes[z.conf.Method].parts {
		module, ok := strings.CutSuffix(e.FQN, part)
		if ok && !slices.ContainsFunc(ends, func(end string) bool { return z.has(module + end) }) {
			return fmt.Errorf("%w: the checkpoint has %q, and no %q", ErrQuantized, e.FQN, module+ends[0])
		}
	}
	return nil
}

// part returns a tensor that a weight needs.
func (z *quantiser) part(name string) (*meta.Entry, error) {
	e, ok := z.md.Find(name)
	if !ok {
		return nil, fmt.Errorf("the checkpoint has no %q", name)
	}
	if n := len(e.Tensor.Chunks); n != 1 {
		return nil, fmt.Errorf("%q is cut into %d chunks", e.FQN, n)
	}
	return e, nil
}

// has reports whether the checkpoint has a tensor of that name.
func (z *quantiser) has(name string) bool {
	_, ok := z.md.Find(name)
	return ok
}

// whole returns the elements of a small tensor.
func (z *quantiser) whole(e *meta.Entry, d tensor.DType) (*tensor.Tensor, error) {
	x, err := tensor.New(d, e.Tensor.Shape)
	if err != nil {
		return nil, err
	}
	_, err = reading.ReadBox(z.ctx, z.store, regionOf(e, 0), e.Tensor.Shape, tensor.Whole(e.Tensor.Shape), x, partElements)
	return x, err
}

// numbers is the stored form of a quantised weight.
type numbers interface {
	// cut divides a box of the weight into parts of about most elements to decode.
	cut(box tensor.Box, most int64) []tensor.Box
	// decode returns the numbers of a box, as float32.
	decode(box tensor.Box, read readFunc) (*tensor.Tensor, error)
}

// readFunc reads a box of a stored tensor and converts it to the type d.
type readFunc func(r *reading.Region, d tensor.DType, sizes []int64, box tensor.Box) (*tensor.Tensor, error)

// quantized decodes a quantised weight.
type quantized struct {
	store blob.Store
	dtype tensor.DType // the numbers are rounded to it
	shape []int64      // of the decoded weight
	form  numbers
}

var _ reading.Decoder = (*quantized)(nil)

// partElements bounds the numbers that are decoded at once: enough to hide the cost
// of a request.
const partElements = 4 << 20

// Cut divides a box into parts. A number that is being decoded takes four bytes, and its stored
// form, its words and its factors at most as many each.
func (q *quantized) Cut(box tensor.Box, budget int64) []tensor.Box {
	return q.form.cut(box, max(1, min(partElements, budget/16)))
}

// Decode reads the stored form of a box. The numbers are rounded to the type of the weight,
// whatever the type of dst.
func (q *quantized) Decode(ctx context.Context, box tensor.Box, dst *tensor.Tensor, budget int64) (int64, error) {
	if box.Empty() {
		return 0, nil
	}

	var read int64
	x, err := q.form.decode(box, func(r *reading.Region, d tensor.DType, sizes []int64, at tensor.Box) (*tensor.Tensor, error) {
		x, err := tensor.New(d, at.Sizes)
		if err != nil {
			return nil, err
		}
		n, err := reading.ReadBox(ctx, q.store, r, sizes, at, x, budget)
		read += n
		return x, err
	})
	if err == nil && dst.DType() != q.dtype {
		x, err = tensor.Cast(x, q.dtype)
	}
	if err == nil {
		err = tensor.Convert(dst, x, tensor.CastInRange)
	}
	return read, err
}
