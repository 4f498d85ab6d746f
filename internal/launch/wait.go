package launch

import (
	"context"
	"fmt"
	"os"
	"time"
)

// wait waits for all processes, and for what they have started, and ends them
// where need be.
func (j *job) wait(ctx context.Context) (*Report, error) {
	left := len(j.procs)
	done := ctx.Done()
	var late, look <-chan time.Time
	for left > 0 || j.leftovers() {
		if left == 0 {
			j.endLeftovers()
			look = time.After(lookAgain)
		}
		select {
		case e := <-j.exits:
			left--
			j.ended(e, left)
		case s := <-j.Signals:
			j.passOn(s)
		case <-done:
			// A context that ends by a signal does so beside it, and the signal
			// says more than that it is time to end.
			done, late = nil, time.After(afterContext)
		case <-late:
			late = nil
			j.contextEnded(ctx)
		case <-j.kill:
			j.killAll()
		case <-look:
		}
		if j.killed && left == 0 {
			break
		}
	}
	j.drain()
	return j.result()
}

const (
	lookAgain    = 10 * time.Millisecond
	afterContext = 50 * time.Millisecond
)

// drain reads what is left of the output.
func (j *job) drain() {
	j.ending.Store(true)
	var reading []*stream
	for _, p := range j.procs {
		for _, s := range p.outputs {
			if s.done != nil {
				s.hurry()
				reading = append(reading, s)
			}
		}
	}
	for _, s := range reading {
		<-s.done
	}
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
	case j.KeepGoing && !j.stopping:
		j.tell("rank %d %s", e.Rank, &e)
		return
	case !j.stopping && left > 0:
		j.tell("rank %d %s: ending the others", e.Rank, &e)
	}
	j.stop()
}

func (j *job) tell(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Tell(fmt.Sprintf(format, args...))
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

// contextEnded ends the processes, unless something else does so already.
func (j *job) contextEnded(ctx context.Context) {
	if j.stopping {
		return
	}
	j.cause = context.Cause(ctx)
	j.tell("%v: ending all", j.cause)
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
	j.killed, j.kill = true, nil
	for _, p := range j.procs {
		if p.alive() {
			if !p.ended {
				j.tell("rank %d is still there: killed", p.rank)
			}
			p.signal(kill)
		}
	}
}

// signal sends a signal to all processes that are still there, and to what they
// have started.
func (j *job) signal(s os.Signal) {
	for _, p := range j.procs {
		if p.alive() {
			p.signal(s)
		}
	}
}

// leftovers reports whether something is there that the processes have started.
func (j *job) leftovers() bool {
	for _, p := range j.procs {
		if p.alive() {
			return true
		}
	}
	return false
}

// endLeftovers ends what the processes have started and left behind.
func (j *job) endLeftovers() {
	if !j.stopping {
		j.tell("all ranks have ended, but not all that they have started: ending that")
	}
	j.stop()
}
