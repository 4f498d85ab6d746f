package plan

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Rebuild makes the state that a checkpoint describes, nested as it was saved,
// for [DefaultLoad] to fill: every tensor whole and zeroed, every value a
// placeholder, every map a map[string]any as [Place] makes it. Only the names for
// which want returns true are made; nil means all. Positions of a list that are
// not wanted are nil after the load. A tensor that stood inside of a value is a
// key of the state until [PutInside] puts it there.
//
// A name that its path does not spell, because a planner renamed it, becomes a
// key of the state as it is. Tensors whose chunks are not the whole of them are
// refused, with an error that wraps ErrMismatch.
func Rebuild(md *meta.Metadata, want func(fqn string) bool) (State, error) {
	if err := md.CheckWhole(want); err != nil {
		return nil, err
	}
	s := State{}
	p := placer{room: len(md.Entries) + maxGaps, pad: gap{}}
	inside := md.Inside()
	for i := range md.Entries {
		e := &md.Entries[i]
		if want != nil && !want(e.FQN) {
			continue
		}
		path := pathOf(e)
		if in, ok := inside[e.FQN]; ok && (want == nil || want(in)) {
			path = meta.Path{meta.Key(e.FQN)}
		}
		v, err := blank(e)
		if err == nil {
			err = p.place(s, path, v)
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", e.FQN, err)
		}
	}
	return s, nil
}

// pathOf returns where an entry belongs in a state, so that flattening gives it
// its name again.
func pathOf(e *meta.Entry) meta.Path {
	if e.Path.FQN() != e.FQN {
		return meta.Path{meta.Key(e.FQN)}
	}
	return e.Path
}

// blank returns what a load fills with e.
func blank(e *meta.Entry) (any, error) {
	if e.Tensor == nil {
		return unset{}, nil
	}
	// Chunks lie in files of a known size, a shape is only a claim: it must not
	// make us take memory that nothing will fill.
	if ps := CheckTiling(e.Tensor.Shape, e.Tensor.Chunks); len(ps) > 0 {
		return nil, fmt.Errorf("%w: %s", ErrMismatch, ps[0].Text)
	}
	return tensor.New(e.Tensor.DType, e.Tensor.Shape)
}

// unset stands for a value that is not loaded yet. Flattening sees a leaf in
// it, which a nil in a list without tensors would not be.
type unset struct{}

// gap stands for a position of a list that is not to be loaded.
type gap struct{}
