package launch

import (
	"os"
	"testing"
)

// numbers are the groups of a system by their numbers.
type numbers map[int]*struct{ live, sent int }

func (n numbers) group(id int) *group {
	return &group{
		id:   id,
		look: func(id int) bool { return n[id].live > 0 },
		held: func(id int) bool { return n[id].live > 0 },
		send: func(id int, _ os.Signal) { n[id].sent++ },
	}
}

// A number that was free once is never looked at, nor sent a signal, again.
func TestReusedGroupNumbersAreNotSignalled(t *testing.T) {
	for claim, c := range map[string]struct {
		left int // processes that the leader leaves behind
		note func(g *group)
	}{
		"when the leader was the last":       {left: 0, note: func(*group) {}},
		"when the last was seen to end":      {left: 1, note: func(g *group) { g.watch() }},
		"when it was seen by whoever waits":  {left: 1, note: func(g *group) { g.alive() }},
		"when it was looked for more often":  {left: 2, note: func(g *group) { g.watch(); g.watch(); g.alive() }},
		"when a signal was to be sent to it": {left: 0, note: func(g *group) { g.signal(terminate) }},
	} {
		all := numbers{7: {live: 1}}
		g := all.group(7)
		if g.watch(); !g.alive() {
			t.Fatalf("%s: a leader that was not waited for is gone", claim)
		}
		all[7].live = c.left
		g.leaderEnded()
		if again := g.watch(); again != (c.left > 0) || g.alive() != (c.left > 0) {
			t.Errorf("%s: the group is alive: %v; it leaves %d behind", claim, !again, c.left)
		}
		all[7].live = 0
		c.note(g)
		all[7].live = 1 // of another program
		if g.watch() || g.alive() {
			t.Errorf("%s: the process of another counts as the group's", claim)
		}
		if g.signal(terminate); all[7].sent > 0 {
			t.Errorf("%s: the process of another got a signal", claim)
		}
	}
}

func TestSignalsReachTheGroup(t *testing.T) {
	all := numbers{7: {live: 2}}
	g := all.group(7)
	g.signal(terminate)
	all[7].live = 1
	g.leaderEnded()
	if g.signal(terminate); all[7].sent != 2 {
		t.Errorf("%d signals arrived; want both: before the leader ended and after", all[7].sent)
	}
}
