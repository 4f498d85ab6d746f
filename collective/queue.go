package collective

import (
	"context"
	"slices"
	"sync"
)

// route is one direction of the messages with one tag between this rank and
// another.
type route struct {
	peer, tag int
	out       bool
}

// queues lets the messages of a route go one after the other, in the order in
// which they were asked for.
type queues struct {
	mu     sync.Mutex
	lines  map[route][]chan struct{} // who has the route, and who waits; guarded by mu
	broken map[route]error           // routes that cannot be used any more; guarded by mu
}

// join returns a place in the line of a route: a channel that is closed when it
// is its turn.
func (q *queues) join(r route) chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	turn := make(chan struct{})
	if q.lines == nil {
		q.lines = make(map[route][]chan struct{})
	}
	q.lines[r] = append(q.lines[r], turn)
	if len(q.lines[r]) == 1 {
		close(turn)
	}
	return turn
}

// leave gives up a place, or the route.
func (q *queues) leave(r route, turn chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.lines[r]
	i := slices.Index(line, turn)
	line = slices.Delete(line, i, i+1)
	if len(line) == 0 {
		delete(q.lines, r)
		return
	}
	q.lines[r] = line
	if i == 0 {
		close(line[0])
	}
}

// wait returns once it is the turn of a place, unless the route is broken.
func (q *queues) wait(ctx context.Context, r route, turn chan struct{}) error {
	select {
	case <-turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.broken[r]
}

// spoil makes a route unusable.
func (q *queues) spoil(r route, why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.broken == nil {
		q.broken = make(map[route]error)
	}
	q.broken[r] = why
}
