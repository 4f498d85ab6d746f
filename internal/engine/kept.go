package engine

import "github.com/cairn-ckpt/cairn/group"

// kept returns c for a group of several ranks. In a group of one, values do not
// leave the rank: the codec returns the value that it was given last, if check
// accepts it as c would.
func kept[T any](g group.Group, c group.Codec[T], check func(T) error) group.Codec[T] {
	if g.Size() > 1 {
		return c
	}
	var last T
	return group.Func[T]{
		EncodeFunc: func(v T) ([]byte, error) {
			last = v
			return nil, check(v)
		},
		DecodeFunc: func([]byte) (T, error) { return last, nil },
	}
}
