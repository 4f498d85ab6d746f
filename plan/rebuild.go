package plan

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Rebuild makes the state that a checkpoint describes, nested as it was saved:
// every tensor whole and zeroed, every value nil, to be filled by a load. Only
// the names for which want returns true are made; nil means all.
//
// Positions of a list that are not wanted stay nil.
func Rebuild(md *meta.Metadata, want func(fqn string) bool) (State, error) {
	s := State{}
	for i := range md.Entries {
		e := &md.Entries[i]
		if want != nil && !want(e.FQN) {
			continue
		}
		if err := rebuild(s, e); err != nil {
			return nil, fmt.Errorf("%q: %w", e.FQN, err)
		}
	}
	return s, nil
}

func rebuild(s State, e *meta.Entry) error {
	path := e.Path
	if path == nil {
		path = meta.Path{meta.Key(e.FQN)}
	}
	var v any = unset{}
	if e.Tensor != nil {
		t, err := tensor.New(e.Tensor.DType, e.Tensor.Shape)
		if err != nil {
			return err
		}
		v = t
	}
	return Place(s, path, v)
}

// unset stands for a value that is not loaded yet. Flattening sees a leaf in
// it, which a nil in a list without tensors would not be.
type unset struct{}
