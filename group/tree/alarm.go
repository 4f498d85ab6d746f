package tree

import (
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

var _ group.Alarmer = (*Group)(nil)

// maxPassed is how many alarms a node remembers in order not to pass them on
// again, should many ranks raise the same.
const maxPassed = 64

// alarm is raised at most once.
type alarm struct {
	raised bool
	ch     chan struct{}
}

func (a *alarm) raise() {
	if !a.raised {
		a.raised = true
		close(a.ch)
	}
}

// alarm returns the alarm before the call of that number.
func (t *team) alarm(number uint64) *alarm {
	a := t.alarms[number]
	if a == nil {
		a = &alarm{ch: make(chan struct{})}
		t.alarms[number] = a
	}
	return a
}

// alarmed raises an alarm here, unless the call has begun, and passes it on to
// all neighbours but the one that it came from.
func (t *team) alarmed(number uint64, from int) {
	if slices.Contains(t.passed, number) {
		return
	}
	t.passed = append(t.passed, number)
	if len(t.passed) > maxPassed {
		t.passed = t.passed[1:]
	}
	if number >= t.next {
		t.alarm(number).raise()
	}
	f := frame{kind: kindAlarm, id: t.id, number: number}
	b := f.encode()
	for _, ln := range t.lanes() {
		if ln.rank != from {
			ln.send(b)
		}
	}
}

// Alarm tells the other ranks that this one has failed before its next call.
func (g *Group) Alarm() {
	g.team.node.mu.Lock()
	defer g.team.node.mu.Unlock()
	g.team.alarmed(g.team.next, g.team.me)
}

// Alarmed returns a channel that is closed by the first Alarm before the rank's
// next call, and where a rank is gone.
func (g *Group) Alarmed() <-chan struct{} {
	g.team.node.mu.Lock()
	defer g.team.node.mu.Unlock()
	a := g.team.alarm(g.team.next)
	if g.team.lost != nil {
		a.raise()
	}
	return a.ch
}
