package web

import (
	"container/list"
	"context"
	"sync"
)

// turns bounds the number of questions that work at the same time.
type turns chan struct{}

// waiting is the progress text of a question while it waits for its turn.
const waiting = "waiting for other requests"

// take waits for a turn. The caller calls the function when it is done. m, which may be nil,
// says that the question waits.
func (t turns) take(ctx context.Context, m *meter) (func(), error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	default:
	}
	if m != nil {
		m.say(waiting)
		defer m.say("")
	}
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// answers keeps the answers to the last questions, so that the same question is not computed
// again.
type answers struct {
	mu    sync.Mutex
	order list.List // of *answer, the most recently used first; guarded by mu
	byKey map[string]*list.Element
	rows  int // guarded by mu
}

// answer is an answer that is kept. It is never changed.
type answer struct {
	key   string
	rows  int // about how large it is
	value any
}

// get returns an answer, or nil.
func (a *answers) get(key string) any {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.byKey[key]
	if e == nil {
		return nil
	}
	a.order.MoveToFront(e)
	return e.Value.(*answer).value
}

// put keeps an answer of about so many rows.
func (a *answers) put(key string, value any, rows int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byKey == nil {
		a.byKey = map[string]*list.Element{}
	}
	if e := a.byKey[key]; e != nil {
		a.remove(e)
	}
	if rows > maxKept {
		return
	}
	a.byKey[key] = a.order.PushFront(&answer{key, rows, value})
	a.rows += rows
	for a.order.Len() > maxAnswers || a.rows > maxKept {
		a.remove(a.order.Back())
	}
}

// remove forgets an answer. The caller holds mu.
func (a *answers) remove(e *list.Element) {
	x := a.order.Remove(e).(*answer)
	delete(a.byKey, x.key)
	a.rows -= x.rows
}
