package launch

import (
	"os"
	"sync"
)

// group is a process and what it has started. Once the process was waited for and
// nothing else is there, the number may become somebody else's: from then on the
// group is gone, and its number is neither looked at nor sent a signal.
type group struct {
	id   int
	look func(id int) bool // whether anything of the group has not ended
	held func(id int) bool // whether the number is still the group's; quicker
	send func(id int, s os.Signal)

	mu     sync.Mutex
	reaped bool // the leader was waited for; guarded by mu
	gone   bool // guarded by mu
}

func newGroup() *group { return &group{look: groupAlive, held: groupHeld, send: signalGroup} }

// leaderEnded is to be called as soon as the leader was waited for: what it has
// started is all that keeps the number from others now.
func (g *group) leaderEnded() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reaped, g.gone = true, !g.look(g.id)
}

// alive reports whether the leader was not waited for yet, or something that it
// has started is there.
func (g *group) alive() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped && !g.gone {
		g.gone = !g.look(g.id)
	}
	return !g.gone
}

// watch notes whether the group is gone and reports whether that is still to be
// watched for: others get a number that is free sooner or later.
func (g *group) watch() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reaped && !g.gone {
		g.gone = !g.held(g.id)
	}
	return g.reaped && !g.gone
}

// signal sends a signal to all that is there. One that is stopped is let go on,
// so that it can end.
func (g *group) signal(s os.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone {
		g.send(g.id, s)
	}
}
