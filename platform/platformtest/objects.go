package platformtest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

func testBarrier(e *env) {
	e.must(func(r rank) error {
		if err := r.Barrier(r, r.world); err != nil {
			return err
		}
		return platform.Async(func() error { return r.Barrier(r, r.world) }).Wait(r)
	})

	for late := range e.size() {
		e.heldBack(upTo(e.size()), late)
		e.heldBack(upTo(e.size())[late:], late)
	}

	e.must(func(r rank) error {
		ended, cancel := context.WithCancel(r)
		defer cancel()
		if r.me == 0 {
			cancel()
		}
		err := wraps("barrier that rank 0 has cancelled", r.Barrier(ended, r.world), context.Canceled)
		return errors.Join(err, r.Barrier(r, r.world))
	})
}

// tokens returns the tokens of n ranks.
func tokens(n int) [][]byte {
	out := make([][]byte, n)
	for r := range out {
		out[r] = token(r)
	}
	return out
}

// token returns the token of rank r, about r bytes.
func token(r int) []byte { return fmt.Appendf(nil, "%*d", r, r) }

func sameBytes(a, b [][]byte) bool {
	return slices.EqualFunc(a, b, func(x, y []byte) bool { return string(x) == string(y) })
}

func testAllGather(e *env) {
	e.must(func(r rank) error {
		got, err := r.AllGather(r, r.world, token(r.me))
		return check(err == nil && sameBytes(got, tokens(e.size())), "AllGather = %q, %v; want what each rank brought", got, err)
	})
}

func testRooted(e *env) {
	for root := range e.size() {
		e.must(func(r rank) error {
			var vs [][]byte
			if r.me == root {
				vs = tokens(e.size())
			}

			all, err1 := r.Gather(r, r.world, root, token(r.me))
			mine, err2 := r.Scatter(r, r.world, root, vs)
			sent, err3 := r.Broadcast(r, r.world, root, token(r.me))
			return errors.Join(err1, err2, err3,
				check(sameBytes(all, vs) && (all == nil) == (vs == nil), "Gather to %d = %q", root, all),
				check(string(mine) == string(token(r.me)), "Scatter from %d = %q", root, mine),
				check(string(sent) == string(token(root)), "Broadcast from %d = %q", root, sent))
		})
	}

	e.fails("a root out of range", group.ErrInvalid, func(r rank) error {
		_, err := r.Broadcast(r, r.world, e.size(), nil)
		return err
	})
	e.fails("a scatter of too few", group.ErrInvalid, func(r rank) error {
		_, err := r.Scatter(r, r.world, 0, nil)
		return err
	})
}

// point is a value that is sent between ranks.
type point struct{ X, Y int }

func testValues(e *env) {
	c, last := group.JSON[point](), e.size()-1
	e.must(func(r rank) error {
		all, err1 := platform.AllGather(r, r, r.world, c, point{r.me, -r.me})
		got, err2 := platform.Gather(r, r, r.world, last, c, point{r.me, r.me})
		mine, err3 := platform.Scatter(r, r, r.world, last, c, got)
		first, err4 := platform.Broadcast(r, r, r.world, last, c, mine)
		return errors.Join(err1, err2, err3, err4,
			check(len(all) == e.size() && all[last] == point{last, -last}, "AllGather = %v", all),
			check((r.me == last) == (len(got) == e.size()), "Gather = %v", got),
			check(mine == point{r.me, r.me}, "Scatter = %v; want what was gathered", mine),
			check(first == point{last, last}, "Broadcast = %v; want the value of rank %d", first, last))
	})
}

var errUnencodable = errors.New("cannot be encoded")

// stubborn does not encode zero.
var stubborn = group.Func[int]{
	EncodeFunc: func(v int) ([]byte, error) {
		if v == 0 {
			return nil, fmt.Errorf("%w: %w", errUnencodable, context.DeadlineExceeded)
		}
		return []byte{byte(v)}, nil
	},
	DecodeFunc: func(b []byte) (int, error) { return int(b[0]), nil },
}

// A value that cannot be encoded is an error on its rank, and no rank waits for it.
func testUnencodable(e *env) {
	// All ranks recognise DeadlineExceeded, which has a code.
	e.fails("all-gather", context.DeadlineExceeded, func(r rank) error {
		_, err := platform.AllGather(r, r, r.world, stubborn, r.me)
		return err
	})
	e.fails("broadcast", context.DeadlineExceeded, func(r rank) error {
		_, err := platform.Broadcast(r, r, r.world, 0, stubborn, 0)
		return err
	})

	e.must(func(r rank) error {
		root := e.size() - 1
		want := r.me == 0 || r.me == root
		_, err1 := platform.Gather(r, r, r.world, root, stubborn, r.me)
		_, err2 := platform.Scatter(r, r, r.world, root, stubborn, upTo(e.size()))
		return errors.Join(
			check((err1 != nil) == want, "Gather = %v; want an error: %v", err1, want),
			check((err2 != nil) == want, "Scatter = %v; want an error: %v", err2, want))
	})
}

func testMessages(e *env) {
	if e.size() < 2 {
		return
	}

	c := group.JSON[point]()
	e.must(func(r rank) error {
		to, from := (r.me+1)%e.size(), (r.me+e.size()-1)%e.size()
		err := errors.Join(r.Send(r, r.world, to, 7, token(r.me)), platform.Send(r, r, r.world, to, 8, c, point{r.me, to}))
		if errors.Is(err, errors.ErrUnsupported) {
			return nil
		}

		unencodable := platform.Send(r, r, r.world, to, 9, stubborn, 0)
		v, err2 := platform.Recv(r, r, r.world, from, 8, c) // before the earlier message, with tag 7
		b, err3 := r.Recv(r, r.world, from, 7)
		_, undecodable := platform.Recv(r, r, r.world, from, 9, stubborn)
		err = errors.Join(err, err2, err3,
			check(v == point{from, r.me} && string(b) == string(token(from)), "received %v and %q", v, b),
			wraps("Send of a value that cannot be encoded", unencodable, errUnencodable),
			wraps("Recv of a value that could not be encoded", undecodable, context.DeadlineExceeded))
		for _, bad := range [][2]int{{e.size(), 0}, {-1, 0}, {to, -1}} {
			what := fmt.Sprintf("Send to rank %d with tag %d", bad[0], bad[1])
			err = errors.Join(err, wraps(what, r.Send(r, r.world, bad[0], bad[1], nil), group.ErrInvalid))
		}

		return errors.Join(err, r.Barrier(r, r.world))
	})
}

// Roots are numbers in the group, and calls of different groups are independent.
func testSubGroup(e *env) {
	parts := [][]int{upTo(e.size())[e.size()/2:]}
	if e.size() > 1 {
		parts = append(parts, upTo(e.size()/2))
	}

	e.must(func(r rank) error {
		g, err := r.Split(r, r.world, parts)
		if err != nil {
			return err
		}
		got, err := r.Broadcast(r, g, g.Size()-1, token(r.me))
		last := g.Ranks()[g.Size()-1]
		return errors.Join(err, check(string(got) == string(token(last)), "Broadcast from the last of %v = %q", g.Ranks(), got))
	})
}

// A platform's group can be used as a group of package group.
func testComm(e *env) {
	e.must(func(r rank) error {
		g, err := platform.Comm(r.world)
		if err != nil {
			return err
		}
		got, err := group.Decide(r, g, "last", group.JSON[int](), group.JSON[int](),
			func(context.Context) (int, error) { return g.Rank(), nil },
			func(_ context.Context, all []int) (int, error) { return all[len(all)-1], nil })
		return errors.Join(err, check(got == e.size()-1 && g.Size() == e.size(), "a step = %d", got))
	})
}
