package torchsave

import "github.com/cairn-ckpt/cairn/tensor"

// Slot is a tensor whose bytes are not known when a file is laid out. A slot
// that stands at several places of a value is written once.
type Slot struct {
	DType        tensor.DType
	Shape        []int64
	RequiresGrad bool
	// Parameter makes it a torch.nn.Parameter.
	Parameter bool
}

// Part is a run of bytes of a file. Exactly one of Literal, Slot and Tail says
// what they are. It becomes a part of package datafile one to one.
type Part struct {
	Length  int64
	Literal []byte
	// Slot is whose contiguous bytes they are.
	Slot *Slot
	// Tail makes the bytes once everything before them has passed.
	Tail func() ([]byte, error)
	// Pass, if not nil, must be shown the bytes in order, in pieces of any size;
	// from is where p begins in the part.
	Pass func(p []byte, from int64)
}

// Layout is a file to be written: its parts in their order, without gaps. A
// file begins at its first byte wherever that lies in a larger file.
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

// Lay lays out the file that torch.save writes for root: the types of package
// value, in which a tensor is a *Slot or a *tensor.Tensor. Every byte has its
// place before one of a tensor is known. A value that cannot be pickled is an
// error that wraps ErrValue and names what it is.
func Lay(root any, o *LayOptions) (*Layout, error) { return nil, nil }

// Marshal returns the bytes of the file that torch.save writes for v, which
// holds no Slot.
func Marshal(v any) ([]byte, error) { return nil, nil }
