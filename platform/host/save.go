package host

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/tensor"
)

// align is where the data of a file begins: at a multiple of what any element
// needs.
const align = 64

// named is a tensor on its way to a file.
type named struct {
	name string
	t    *tensor.Tensor
}

// SaveTensors writes a safetensors file. The largest elements come first, so that
// all lie at multiples of their size; those of one size are in the order of their
// names. A dtype that the format lacks is an error that wraps [tensor.ErrDType],
// and nothing is written.
func (p *Platform) SaveTensors(w io.Writer, tensors iter.Seq2[string, *tensor.Tensor], words map[string]string) error {
	var all []named
	for name, t := range tensors {
		if t == nil {
			return fmt.Errorf("save %q: no tensor: %w", name, tensor.ErrDType)
		}
		all = append(all, named{name, t})
	}
	slices.SortFunc(all, func(a, b named) int {
		bySize := cmp.Compare(b.t.DType().Size(), a.t.DType().Size())
		return cmp.Or(bySize, cmp.Compare(a.name, b.name))
	})
	head, err := header(all, words)
	if err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return fmt.Errorf("save tensors: %w", err)
	}
	for _, n := range all {
		if _, err := n.t.WriteTo(w); err != nil {
			return fmt.Errorf("save %q: %w", n.name, err)
		}
	}
	return nil
}

// header returns the beginning of a file of tensors in that order.
func header(all []named, words map[string]string) ([]byte, error) {
	h := &safetensors.Header{Metadata: words}
	at := int64(0)
	for _, n := range all {
		d, ok := safetensors.DTypeName(n.t.DType())
		if !ok {
			return nil, fmt.Errorf("save %q: %v in a safetensors file: %w", n.name, n.t.DType(), tensor.ErrDType)
		}
		shape := append([]int64{}, n.t.Shape()...)
		h.Entries = append(h.Entries, safetensors.Entry{Name: n.name, DType: d, Shape: shape, Begin: at, End: at + n.t.NumBytes()})
		at += n.t.NumBytes()
	}
	b, err := safetensors.Encode(h, align)
	if err != nil {
		return nil, fmt.Errorf("save tensors: %w", err)
	}
	return b, nil
}
