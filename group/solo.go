package group

import "context"

// Solo returns a group of one rank, for use in a single process. It needs no
// goroutines and its calls never wait.
func Solo() Group { return solo{} }

type solo struct{}

var (
	_ Group  = solo{}
	_ Backed = solo{}
)

func (solo) Rank() int       { return 0 }
func (solo) Size() int       { return 1 }
func (solo) Ranks() []int    { return []int{0} }
func (solo) Backend() string { return "solo" }

// enter is what every collective call of a single rank comes to.
func (solo) enter(ctx context.Context, c Call) error {
	err := ContextError(ctx)
	if err == nil {
		err = c.Check(1)
	}
	return soloError(c.Op, err)
}

func soloError(op Op, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Ranks: []int{0}, Err: err}
}

func (s solo) Gather(ctx context.Context, root int, v []byte) ([][]byte, error) {
	if err := s.enter(ctx, Call{Op: OpGather, Root: root}); err != nil {
		return nil, err
	}
	return [][]byte{v}, nil
}

func (s solo) Scatter(ctx context.Context, root int, vs [][]byte) ([]byte, error) {
	if err := s.enter(ctx, Call{Op: OpScatter, Root: root}); err != nil {
		return nil, err
	}
	if err := CheckScatter(len(vs), 1); err != nil {
		return nil, soloError(OpScatter, err)
	}
	return vs[0], nil
}

func (s solo) Broadcast(ctx context.Context, root int, v []byte) ([]byte, error) {
	if err := s.enter(ctx, Call{Op: OpBroadcast, Root: root}); err != nil {
		return nil, err
	}
	return v, nil
}

func (s solo) AllGather(ctx context.Context, v []byte) ([][]byte, error) {
	if err := s.enter(ctx, Call{Op: OpAllGather}); err != nil {
		return nil, err
	}
	return [][]byte{v}, nil
}

func (s solo) Barrier(ctx context.Context) error {
	return s.enter(ctx, Call{Op: OpBarrier})
}

func (s solo) Sub(ctx context.Context, ranks []int) (Group, error) {
	if err := s.enter(ctx, Call{Op: OpSub, Ranks: ranks}); err != nil {
		return nil, err
	}
	return solo{}, nil
}
