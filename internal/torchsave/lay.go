package torchsave

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/tensor"
)

// Slot is a tensor whose bytes are not known when a file is laid out. A slot
// that stands at several places of a value is written once, and is one tensor.
type Slot struct {
	DType        tensor.DType
	Shape        []int64
	RequiresGrad bool
	// Parameter makes it a torch.nn.Parameter.
	Parameter bool
	// Same, if not nil, is a slot of the same bytes, type and shape, with no Same
	// of its own. Both are then views of one storage, as tied weights are.
	Same *Slot
}

// Part is a run of bytes of a file. Exactly one of Literal, Slot and Tail says
// what they are. It becomes a part of package datafile one to one.
type Part struct {
	// Length is the number of bytes, known before any of them is. No part but
	// one of a slot without elements is empty.
	Length  int64
	Literal []byte
	// Slot is whose contiguous bytes they are.
	Slot *Slot
	// Tail makes the bytes once everything before them has passed. They are valid
	// until it is called again.
	Tail func() ([]byte, error)
	// Pass, if not nil, must be shown the bytes in order, in pieces of any size;
	// from is where p begins in the part.
	Pass func(p []byte, from int64)
}

// Layout is a file to be written: its parts in their order, without gaps. A
// file begins at its first byte wherever that lies in a larger file. A layout
// is written once at a time.
type Layout struct {
	Parts []Part
	// Size is the sum of the parts' lengths.
	Size int64
}

// LayOptions change how a file is written. Nil means the defaults.
type LayOptions struct {
	// Name is the folder inside the archive. Empty: "archive", as torch.save
	// calls it where it writes no file of its own.
	Name string
	// Allow says which classes beyond the plain ones may be written.
	Allow func(module, name string) bool
}

func (o *LayOptions) withDefaults() LayOptions {
	var out LayOptions
	if o != nil {
		out = *o
	}
	if out.Name == "" {
		out.Name = "archive"
	}
	return out
}

// Lay lays out the file that torch.save writes for root: the types of package
// value, in which a tensor is a *Slot or a *tensor.Tensor. Every byte has its
// place before one of a slot is known; tensors must not change until the file
// is written. A value that cannot be pickled is an error that wraps ErrValue and
// names what it is: also a storage, or a tensor of a type that is not known
// here, which the types of package value hold as records of how they are made.
func Lay(root any, o *LayOptions) (*Layout, error) {
	opts := o.withDefaults()
	if err := checkName(opts.Name + "/" + recordPickle); err != nil {
		return nil, fmt.Errorf("%w: folder %q", ErrValue, opts.Name)
	}
	w := newTensorWriter(opts.Allow)
	data, err := w.pickle(root)
	if err != nil {
		return nil, err
	}
	z := &zipLayout{folder: opts.Name}
	z.known(recordPickle, data)
	z.known(recordFormat, []byte("1"))
	z.known(recordAlignment, fmt.Append(nil, alignment))
	z.known(recordByteOrder, []byte("little"))
	for i, s := range w.storages {
		z.storage(fmt.Sprint(recordStorages, i), s)
	}
	z.known(recordVersion, []byte("3\n"))
	z.finish()
	return &Layout{Parts: z.parts, Size: z.at}, nil
}

// CheckValue returns the error that Lay would return for a value once each
// value.Ref in it is replaced by a tensor.
func CheckValue(v any, o *LayOptions) error {
	w := newTensorWriter(o.withDefaults().Allow)
	w.refs = true
	_, err := w.pickle(v)
	return err
}

// Marshal returns the bytes of the file that torch.save writes for v, which
// holds no Slot.
func Marshal(v any) ([]byte, error) {
	l, err := Lay(v, nil)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, l.Size)
	for _, p := range l.Parts {
		switch {
		case p.Slot != nil:
			return nil, fmt.Errorf("%w: a tensor without bytes", ErrValue)
		case p.Tail != nil:
			b, err := p.Tail()
			if err != nil {
				return nil, err
			}
			out = append(out, b...)
		default:
			out = append(out, p.Literal...)
		}
	}
	return out, nil
}
