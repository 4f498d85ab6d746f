package recipe

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// quantization says how the tensors of one side of a rule are quantised: each has a second
// tensor, with a scale for each of its blocks.
type quantization struct {
	dtype  tensor.DType
	blocks tensor.Blocks
	suffix string // of the names of the scales, after the name of the tensor
}

const (
	// maxBlock bounds the elements of a block: a part of a tensor needs whole blocks, which
	// are in memory at once.
	maxBlock = 1 << 16
	// maxSuffix bounds the characters after the name of a tensor in the name of its scales.
	maxSuffix = 64
)

// Quantized says how a tensor of the result is quantised.
type Quantized struct {
	// Blocks is the size of the blocks, DType the type of the numbers, and Shape their
	// shape.
	Blocks tensor.Blocks
	DType  tensor.DType
	Shape  []int64
	// Scales means that the tensor has the scales instead of the numbers.
	Scales bool
}

// quantize reads the key quantize of a rule.
func (p *recipeParser) quantize(r *rule, v any) error {
	sides, ok := v.(map[string]any)
	if !ok || len(sides) != 1 {
		return fmt.Errorf(`want a table for one side, such as { %s = { dtype = "float8_e4m3fn", block = [128, 128], scale = "_scale_inv" } }`, p.r.Sides[1])
	}
	for side, v := range sides {
		i := slices.Index(p.r.Sides[:], side)
		if i < 0 {
			return fmt.Errorf("unknown side %q", side)
		}
		t, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: want a table", side)
		}
		q, err := parseQuantization(t)
		if err != nil {
			return fmt.Errorf("%s: %w", side, err)
		}
		r.quant[i] = q
	}
	return nil
}

func parseQuantization(t map[string]any) (*quantization, error) {
	q := &quantization{blocks: tensor.Blocks{Rows: 128, Columns: 128}, suffix: "_scale_inv"}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		switch v := t[key]; key {
		case "dtype":
			text, _ := v.(string)
			var err error
			if q.dtype, err = tensor.LookupDType(text); err != nil {
				return nil, err
			}
		case "block":
			size, _ := v.([]any)
			if len(size) != 2 {
				return nil, errors.New("block: want two numbers, such as [128, 128]")
			}
			rows, ok := size[0].(int64)
			columns, also := size[1].(int64)
			if !ok || !also || rows < 1 || columns < 1 || rows > maxBlock || columns > maxBlock/rows {
				return nil, fmt.Errorf("block: want two numbers, with at most %d elements in a block", maxBlock)
			}
			q.blocks = tensor.Blocks{Rows: rows, Columns: columns}
		case "scale":
			text, _ := v.(string)
			if text == "" || len(text) > maxSuffix || strings.ContainsAny(text, "{}[]|*? \t\n") {
				return nil, fmt.Errorf("scale: want what follows the name of a tensor in the name of its scales, such as \"_scale_inv\": at most %d characters, without holes and layouts", maxSuffix)
			}
			q.suffix = text
		default:
			return nil, fmt.Errorf("unknown key %q; known are dtype, block, scale", key)
		}
	}
	if _, ok := tensor.MaxFloat8(q.dtype); !ok {
		return nil, fmt.Errorf("dtype: want float8_e4m3fn, float8_e5m2, float8_e4m3fnuz or float8_e5m2fnuz")
	}
	return q, nil
}

// checkQuantized checks that the other keys of a rule fit quantize.
func (p *recipeParser) checkQuantized(r *rule) error {
	for i, q := range r.quant {
		switch {
		case q == nil:
		case r.tied:
			return errors.New("quantize: the tensors of the rule cannot be tied")
		case r.add != 0:
			return errors.New("quantize: the rule cannot add a constant")
		case r.cast[i].Valid():
			return fmt.Errorf("quantize: %s has its dtype already: cast can only have the dtype of %s", p.r.Sides[i], p.r.Sides[1-i])
		}
	}
	return nil
}

// quantizedType returns the type of the elements of the result if a side of the rule is
// quantised.
func (b *binder) quantizedType(r *rule, from []held) (tensor.DType, error) {
	to, want := r.cast[1-b.src], r.quant[b.src]
	if want == nil {
		to = r.quant[1-b.src].dtype
	} else if !to.Valid() {
		to = tensor.BFloat16
	}
	for _, h := range from {
		d := h.entry.Tensor.DType
		switch {
		case want != nil && d != want.dtype:
			return 0, fmt.Errorf("%w: %q is %v, the rule has quantised tensors of %v", ErrIncomplete, h.name, d, want.dtype)
		case want == nil && (!d.IsFloat() || d.Size() == 1):
			return 0, fmt.Errorf("%w: %q is %v: only floating-point numbers of 16 bits or more can be quantised", ErrIncomplete, h.name, d)
		}
	}
	if want != nil && (!to.IsFloat() || to.Size() == 1) {
		return 0, fmt.Errorf("%w: cast has %v: quantised tensors become floating-point numbers of 16 bits or more", ErrIncomplete, to)
	}
	return to, nil
}

// useScales finds the scales of a quantised source.
func (b *binder) useScales(r *rule, h *held) error {
	q := r.quant[b.src]
	name := h.name + q.suffix
	e := b.index[name]
	if e == nil || e.Tensor == nil {
		return fmt.Errorf("%w: the checkpoint has no tensor %q, the scales of %q", ErrIncomplete, name, h.name)
	}
	if line, twice := b.used[name]; twice {
		return fmt.Errorf("%w: %q, the scales of %q, is also used by the rule in line %d", ErrIncomplete, name, h.name, line)
	}
	want, err := q.blocks.Factors(h.shape)
	if err != nil {
		return fmt.Errorf("%w: %q: %w", ErrIncomplete, h.name, err)
	}
	if t := e.Tensor; !slices.Equal(t.Shape, want) || !t.DType.IsFloat() {
		return fmt.Errorf("%w: %q is %v of %v: want floating-point numbers of %v, the scales of the blocks of %v of %q, whose shape is %v", ErrIncomplete, name, t.Shape, t.DType, want, q.blocks, h.name, h.shape)
	}
	b.used[name] = r.line
	h.scales = name
	return nil
}

// makeScales returns the scales of tensors of the result, and notes that these tensors are
// quantised.
func (b *binder) makeScales(r *rule, target []Tensor) ([]Tensor, error) {
	q := r.quant[1-b.src]
	var out []Tensor
	for i := range target {
		t := &target[i]
		shape, err := q.blocks.Factors(t.Shape)
		if err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrIncomplete, t.Name, err)
		}
		s := Tensor{Name: t.Name + q.suffix, Properties: meta.Properties{DType: tensor.Float32}, Shape: shape, Parts: t.Parts, Rule: r.line}
		if err := b.make(r, s.Name); err != nil {
			return nil, err
		}
		t.Scales = s.Name
		t.Quantized = &Quantized{Blocks: q.blocks, DType: q.dtype, Shape: t.Shape}
		scales := *t.Quantized
		scales.Scales = true
		s.Quantized = &scales
		out = append(out, s)
	}
	return out, nil
}
