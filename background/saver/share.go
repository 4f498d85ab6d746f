package saver

import (
	"fmt"
	"os"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
)

// sharedLoads is the number of shared loads that may be under way at the same time, so that
// one is planned while another reads.
const sharedLoads = 2

// shares are groups of the savers of all ranks, for loads that they run together. All ranks
// run the same loads in the same order. A group runs one load at a time.
type shares struct {
	mu     sync.Mutex
	groups []group.Group   // nil: the savers have not met
	last   []chan struct{} // by group: closed when its last load is over; nil: it has had none
	count  int             // loads so far
}

// set sets the groups, once the savers have met.
func (s *shares) set(groups []group.Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups, s.last = groups, make([]chan struct{}, len(groups))
}

// turn is the turn of a load to use a group.
type turn struct {
	group group.Group
	after chan struct{} // closed when the turn has come; nil: it has come
	done  func()        // ends the turn
}

// wait waits for the turn. A load that is cancelled waits too, because the other ranks run
// it, and the loads before it end.
func (t turn) wait() {
	if t.after != nil {
		<-t.after
	}
}

// next returns the turn of the next load.
func (s *shares) next() (turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups == nil {
		return turn{}, fmt.Errorf("%w: a load is shared before the savers have met", ErrMessage)
	}
	i := s.count % len(s.groups)
	s.count++
	over := make(chan struct{})
	t := turn{group: s.groups[i], after: s.last[i], done: func() { close(over) }}
	s.last[i] = over
	return t, nil
}

// hostID returns a name that the processes of a host share. Containers have host names of
// their own, so it is the identity of the running kernel, if there is one.
var hostID = sync.OnceValue(func() string {
	if b, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil && len(b) > 0 {
		return string(b)
	}
	name, _ := os.Hostname()
	return name
})
