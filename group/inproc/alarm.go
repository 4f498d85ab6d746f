package inproc

import "github.com/cairn-ckpt/cairn/group"

var _ group.Alarmer = (*Group)(nil)

// alarm is raised at most once.
type alarm struct {
	raised bool
	ch     chan struct{}
}

// alarm returns the alarm before the call of that number. The lock is held.
func (h *hub) alarm(number uint64) *alarm {
	a := h.alarms[number]
	if a == nil {
		a = &alarm{ch: make(chan struct{})}
		h.alarms[number] = a
	}
	return a
}

// Alarm tells the other ranks that this one has failed before its next call.
func (g *Group) Alarm() {
	g.hub.world.mu.Lock()
	defer g.hub.world.mu.Unlock()
	if a := g.hub.alarm(g.next); !a.raised {
		a.raised = true
		close(a.ch)
	}
}

// Alarmed returns a channel that is closed by the first Alarm before the rank's
// next call.
func (g *Group) Alarmed() <-chan struct{} {
	g.hub.world.mu.Lock()
	defer g.hub.world.mu.Unlock()
	return g.hub.alarm(g.next).ch
}
