package platformtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

func testBarrier(e *env) {
	e.must(func(ctx context.Context, p platform.Platform) error {
		if err := p.Barrier(ctx, p.World()); err != nil {
			return err
		}
		w := platform.Async(func() error { return p.Barrier(ctx, p.World()) })
		return w.Wait(ctx)
	})
	for late := range e.size() {
		e.heldBack(upTo(e.size()), late)
		e.heldBack(upTo(e.size())[late:], late)
	}
	e.must(func(ctx context.Context, p platform.Platform) error {
		ended, cancel := context.WithCancel(ctx)
		if p.World().Rank() == 0 {
			cancel()
		}
		defer cancel()
		if err := p.Barrier(ended, p.World()); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("barrier that rank 0 has cancelled = %v; want that on all", err)
		}
		return p.Barrier(ctx, p.World())
	})
}

// heldBack checks that a barrier holds all of its ranks back until the late rank
// comes, and that it needs no other rank.
func (e *env) heldBack(ranks []int, late int) {
	e.Helper()
	var came, passed atomic.Int32
	all := make(chan struct{}) // closed when all but the late one have come
	e.must(func(ctx context.Context, p platform.Platform) error {
		g, err := p.New(ctx, ranks)
		if err != nil || g == nil {
			return err
		}
		if p.World().Rank() == late && len(ranks) > 1 {
			select {
			case <-all:
			case <-ctx.Done():
				return fmt.Errorf("not all ranks came: %w", ctx.Err())
			}
			e.idle()
			if n := passed.Load(); n != 0 {
				return fmt.Errorf("%d of %d ranks passed the barrier of %v before rank %d had come", n, len(ranks), ranks, late)
			}
		}
		if came.Add(1) == int32(len(ranks))-1 {
			close(all)
		}
		err = p.Barrier(ctx, g)
		passed.Add(1)
		if n := came.Load(); int(n) != len(ranks) {
			return fmt.Errorf("passed the barrier of %v when %d had come", ranks, n)
		}
		return err
	})
}

// tokens returns what every rank brings: as many bytes as its rank.
func tokens(n int) [][]byte {
	out := make([][]byte, n)
	for r := range out {
		out[r] = token(r)
	}
	return out
}

func token(r int) []byte { return []byte(fmt.Sprintf("%*d", r, r)) }

func sameBytes(a, b [][]byte) bool {
	return slices.EqualFunc(a, b, func(x, y []byte) bool { return string(x) == string(y) })
}

func testAllGather(e *env) {
	e.must(func(ctx context.Context, p platform.Platform) error {
		got, err := p.AllGather(ctx, p.World(), token(p.World().Rank()))
		if err != nil || !sameBytes(got, tokens(e.size())) {
			return fmt.Errorf("AllGather = %q, %v; want what each rank brought", got, err)
		}
		return nil
	})
}

func testRooted(e *env) {
	for root := range e.size() {
		e.must(func(ctx context.Context, p platform.Platform) error {
			w, me := p.World(), p.World().Rank()
			all, err := p.Gather(ctx, w, root, token(me))
			if err != nil || me == root && !sameBytes(all, tokens(e.size())) || me != root && all != nil {
				return fmt.Errorf("call of Gather to %d = %q, %v", root, all, err)
			}
			var vs [][]byte
			if me == root {
				vs = tokens(e.size())
			}
			if got, err := p.Scatter(ctx, w, root, vs); err != nil || string(got) != string(token(me)) {
				return fmt.Errorf("call of Scatter from %d = %q, %v", root, got, err)
			}
			if got, err := p.Broadcast(ctx, w, root, token(me)); err != nil || string(got) != string(token(root)) {
				return fmt.Errorf("call of Broadcast from %d = %q, %v", root, got, err)
			}
			return nil
		})
	}
	e.fails("a root that is not there", group.ErrInvalid, func(ctx context.Context, p platform.Platform) error {
		_, err := p.Broadcast(ctx, p.World(), e.size(), nil)
		return err
	})
	e.fails("a scatter of too little", group.ErrInvalid, func(ctx context.Context, p platform.Platform) error {
		_, err := p.Scatter(ctx, p.World(), 0, nil)
		return err
	})
}

// point is a value that crosses between ranks.
type point struct{ X, Y int }

func testValues(e *env) {
	c, last := group.JSON[point](), e.size()-1
	e.must(func(ctx context.Context, p platform.Platform) error {
		w, me := p.World(), p.World().Rank()
		all, err := platform.AllGather(ctx, p, w, c, point{me, -me})
		if err != nil || len(all) != e.size() || all[last] != (point{last, -last}) {
			return fmt.Errorf("AllGather = %v, %v", all, err)
		}
		got, err := platform.Gather(ctx, p, w, last, c, point{me, me})
		if err != nil || (me == last) != (len(got) == e.size()) {
			return fmt.Errorf("call of Gather = %v, %v", got, err)
		}
		mine, err := platform.Scatter(ctx, p, w, last, c, got)
		if err != nil || mine != (point{me, me}) {
			return fmt.Errorf("call of Scatter = %v, %v; want what was gathered", mine, err)
		}
		first, err := platform.Broadcast(ctx, p, w, last, c, mine)
		if err != nil || first != (point{last, last}) {
			return fmt.Errorf("call of Broadcast = %v, %v; want that of rank %d", first, err, last)
		}
		return nil
	})
}

var errUnencodable = errors.New("no words for it")

// stubborn refuses to encode and to decode one value.
var stubborn = group.Func[int]{
	EncodeFunc: func(v int) ([]byte, error) {
		if v == 0 {
			return nil, fmt.Errorf("%w: %w", errUnencodable, context.DeadlineExceeded)
		}
		return []byte{byte(v)}, nil
	},
	DecodeFunc: func(b []byte) (int, error) { return int(b[0]), nil },
}

// A value that cannot be encoded is an error on the rank that asked, and no rank
// waits for it.
func testUnencodable(e *env) {
	// Of the two errors inside, the one that all ranks know by a code is found
	// everywhere.
	e.fails("all-gather", context.DeadlineExceeded, func(ctx context.Context, p platform.Platform) error {
		_, err := platform.AllGather(ctx, p, p.World(), stubborn, p.World().Rank())
		return err
	})
	e.fails("broadcast", context.DeadlineExceeded, func(ctx context.Context, p platform.Platform) error {
		_, err := platform.Broadcast(ctx, p, p.World(), 0, stubborn, 0)
		return err
	})
	e.must(func(ctx context.Context, p platform.Platform) error {
		w, root := p.World(), e.size()-1
		_, err := platform.Gather(ctx, p, w, root, stubborn, w.Rank())
		if want := w.Rank() == 0 || w.Rank() == root; (err != nil) != want {
			return fmt.Errorf("call of Gather = %v; want an error: %v", err, want)
		}
		_, err = platform.Scatter(ctx, p, w, root, stubborn, upTo(e.size()))
		if want := w.Rank() == 0 || w.Rank() == root; (err != nil) != want {
			return fmt.Errorf("call of Scatter = %v; want an error: %v", err, want)
		}
		return nil
	})
}

func testMessages(e *env) {
	if e.size() < 2 {
		return // no other rank
	}
	c := group.JSON[point]()
	e.must(func(ctx context.Context, p platform.Platform) error {
		w, me := p.World(), p.World().Rank()
		to, from := (me+1)%e.size(), (me+e.size()-1)%e.size()
		err := errors.Join(
			p.Send(ctx, w, to, 7, token(me)),
			platform.Send(ctx, p, w, to, 8, c, point{me, to}),
		)
		if errors.Is(err, errors.ErrUnsupported) {
			return nil
		}
		if err := platform.Send(ctx, p, w, to, 9, stubborn, 0); !errors.Is(err, errUnencodable) {
			return fmt.Errorf("call of Send of what cannot be encoded = %v", err)
		}
		// Tags are apart: the later one is received first.
		v, err2 := platform.Recv(ctx, p, w, from, 8, c)
		b, err3 := p.Recv(ctx, w, from, 7)
		if err := errors.Join(err, err2, err3); err != nil || v != (point{from, me}) || string(b) != string(token(from)) {
			return fmt.Errorf("received %v and %q, %v", v, b, err)
		}
		if _, err := platform.Recv(ctx, p, w, from, 9, stubborn); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("call of Recv of what could not be encoded = %v", err)
		}
		for _, bad := range [][2]int{{e.size(), 0}, {-1, 0}, {to, -1}} {
			if err := p.Send(ctx, w, bad[0], bad[1], nil); !errors.Is(err, group.ErrInvalid) {
				return fmt.Errorf("call of Send to rank %d with tag %d = %v; want ErrInvalid", bad[0], bad[1], err)
			}
		}
		return p.Barrier(ctx, w)
	})
}

// Roots are numbers in the group, and calls of different groups are apart.
func testSubGroup(e *env) {
	parts := [][]int{upTo(e.size())[e.size()/2:]}
	if e.size() > 1 {
		parts = append(parts, upTo(e.size()/2))
	}
	e.must(func(ctx context.Context, p platform.Platform) error {
		g, err := p.Split(ctx, p.World(), parts)
		if err != nil {
			return err
		}
		got, err := p.Broadcast(ctx, g, g.Size()-1, token(p.World().Rank()))
		last := g.Ranks()[g.Size()-1]
		if err != nil || string(got) != string(token(last)) {
			return fmt.Errorf("call of Broadcast from the last of %v = %q, %v", g.Ranks(), got, err)
		}
		return nil
	})
}

// A platform's group serves as a group of package group.
func testComm(e *env) {
	e.must(func(ctx context.Context, p platform.Platform) error {
		g, err := platform.Comm(p.World())
		if err != nil {
			return err
		}
		got, err := group.AllReduce(ctx, g, "last", group.JSON[int](), group.JSON[int](),
			func(context.Context) (int, error) { return g.Rank(), nil },
			func(_ context.Context, all []int) (int, error) { return all[len(all)-1], nil })
		if err != nil || got != e.size()-1 || g.Size() != e.size() {
			return fmt.Errorf("a step = %d, %v", got, err)
		}
		return nil
	})
}
