package inproc

import "github.com/cairn-ckpt/cairn/group"

var _ group.Alarmer = (*Group)(nil)

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

// alarm returns the alarm before the call of that number. The lock is held.
func (h *hub) alarm(number uint64) *alarm {
	a := h.alarms[number]
	if a == nil {
		a = &alarm{ch: make(chan struct{})}
		h.alarms[number] = a
		h.world.alarms[h] = struct{}{}
	}
	return a
}

// forget drops the alarm before a call that all ranks have come to. The lock is
// held.
func (h *hub) forget(number uint64) {
	delete(h.alarms, number)
	if len(h.alarms) == 0 {
		delete(h.world.alarms, h)
	}
}

// raise raises the alarms of all groups that have lost a rank. The lock is held.
func (w *world) raise() {
	for h := range w.alarms {
		if h.loss() == nil {
			continue
		}
		for _, a := range h.alarms {
			a.raise()
		}
	}
}

// Alarm tells the other ranks that this one has failed before its next call.
func (g *Group) Alarm() {
	g.hub.world.mu.Lock()
	defer g.hub.world.mu.Unlock()
	g.hub.alarm(g.next).raise()
}

// Alarmed returns a channel that is closed by the first Alarm before the rank's
// next call, and where a rank is gone.
func (g *Group) Alarmed() <-chan struct{} {
	g.hub.world.mu.Lock()
	defer g.hub.world.mu.Unlock()
	a := g.hub.alarm(g.next)
	if g.hub.loss() != nil {
		a.raise()
	}
	return a.ch
}
