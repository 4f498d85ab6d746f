package launch

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// wait waits for all processes, and for what they have started, and ends them
// where need be.
func (j *job) wait(ctx context.Context) (*Report, error) {
	left := len(j.procs)
	done, broken := ctx.Done(), j.printer.broken
	var late, look <-chan time.Time
	for left > 0 || j.leftovers() {
		if left == 0 {
			j.endLeftovers()
		}
		if left == 0 || j.watch() {
			look = time.After(lookAgain)
		}
		select {
		case e := <-j.exits:
			for _, e := range j.causesFirst(e) {
				left--
				j.ended(e, left)
			}
		case s := <-j.Signals:
			j.passOn(s)
		case <-done:
			// A context that ends by a signal does so beside it, and the signal
			// says more than that it is time to end.
			done, late = nil, time.After(afterContext)
		case <-broken:
			broken = nil
			j.endBy(ErrReader)
		case <-late:
			late = nil
			j.endBy(context.Cause(ctx))
		case <-j.kill:
			j.killAll()
		case <-look:
		}
		if j.killed && left == 0 {
			break
		}
	}
	j.drain(ctx)
	return j.result()
}

const (
	lookAgain    = 10 * time.Millisecond
	afterContext = 50 * time.Millisecond
	// maxEnding bounds how long the launcher waits for a process that is ending.
	maxEnding = time.Second
)

// causesFirst returns an exit. If it may be the first failure, causesFirst also
// returns the exits of all processes that are ending or have ended by now, the one
// that made the others fail first: the launcher does not notice processes in the
// order in which they end.
func (j *job) causesFirst(e Exit) []Exit {
	exits := []Exit{e}
	if !e.failed() || e.isCause() || j.first != nil || j.stopping {
		return exits
	}
	awaited := make(map[int]bool)
	for _, p := range j.procs {
		if !p.ended && p.rank != e.Rank && isEnding(p.cmd.Process.Pid) {
			awaited[p.rank] = true
		}
	}
	late := time.After(maxEnding)
	for len(awaited) > 0 {
		select {
		case o := <-j.exits:
			exits = append(exits, o)
			delete(awaited, o.Rank)
		case <-late:
			clear(awaited)
		}
	}
	slices.SortStableFunc(exits, compareCauses)
	return exits
}

// compareCauses orders exits by how likely they caused the other ones: those that
// have no cause in another rank first, and then by time.
func compareCauses(a, b Exit) int {
	if a.isCause() != b.isCause() {
		if a.isCause() {
			return -1
		}
		return 1
	}
	return a.at.Compare(b.at)
}

// ended notes how a process ended.
func (j *job) ended(e Exit, left int) {
	e.Stopped = j.stopping
	local := e.Rank - j.Node*j.N
	j.report.Ranks[local] = e
	j.procs[local].ended = true
	if !e.failed() || j.first != nil {
		return
	}
	j.first = &e
	switch {
	case j.stopping:
	case j.KeepGoing:
		j.told = j.tell("rank %d %s", e.Rank, &e)
	default:
		if left > 0 {
			j.told = j.tell("rank %d %s: ending the others", e.Rank, &e)
		}
		j.stop()
	}
}

// tell has the user told something, without waiting for it. Nil: nobody is told.
func (j *job) tell(format string, args ...any) *remark {
	if j.Tell == nil {
		return nil
	}
	text := fmt.Sprintf(format, args...)
	return j.printer.tell(func() { j.Tell(text) })
}

// passOn passes a signal on to all processes.
func (j *job) passOn(s os.Signal) {
	again := j.asked != nil
	if ends(s) && again {
		j.killAll()
		return
	}
	j.signal(s)
	if ends(s) {
		j.asked = s
		j.beginGrace()
	}
}

// endBy ends the processes for a cause, unless something else does so already.
func (j *job) endBy(cause error) {
	if j.stopping {
		return
	}
	j.cause = cause
	j.told = j.tell("%v: ending all", j.cause)
	j.stop()
}

// stop tells the processes to end, and begins to wait for that, once.
func (j *job) stop() {
	if j.stopping {
		return
	}
	j.signal(terminate)
	j.beginGrace()
}

func (j *job) beginGrace() {
	if !j.stopping {
		j.stopping = true
		j.kill = time.After(j.Grace)
	}
}

// killAll kills what is still there.
func (j *job) killAll() {
	again := j.killed
	j.killed, j.kill = true, nil
	j.signal(kill)
	for _, p := range j.procs {
		if !p.ended && !again {
			j.tell("rank %d is still there: killed", p.rank)
		}
	}
}

// signal sends a signal to all processes that are still there, and to what they
// have started.
func (j *job) signal(s os.Signal) {
	for _, p := range j.procs {
		if p.group.alive() {
			p.group.signal(s)
		}
	}
}

// leftovers reports whether something is there that the processes have started.
func (j *job) leftovers() bool {
	for _, p := range j.procs {
		if p.group.alive() {
			return true
		}
	}
	return false
}

// watch notes whose number may be somebody else's by now, and reports whether that
// is to be done again.
func (j *job) watch() bool {
	again := false
	for _, p := range j.procs {
		again = p.group.watch() || again
	}
	return again
}

// endLeftovers ends what the processes have started and left behind.
func (j *job) endLeftovers() {
	if !j.stopping {
		j.tell("all ranks have ended, but not all that they have started: ending that")
		j.stop()
	}
}
