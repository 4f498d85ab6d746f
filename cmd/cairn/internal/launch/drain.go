package launch

import (
	"context"
	"time"
)

// lastWrite is how long a reader may take nothing of the output of a job that
// was ended before the rest is given up.
const lastWrite = 2 * time.Second

// drain reads and writes what is left of the output. A reader of one that has
// ended by itself may take its time; where the job was ended, or is to end now, it
// must go on reading.
func (j *job) drain(ctx context.Context) {
	j.ending.Store(true)
	read := j.readAll()
	go func() {
		<-read
		j.printer.close()
	}()
	if j.isWritten(ctx) {
		return
	}
	j.lost = true
	if !j.stopping {
		j.cause = context.Cause(ctx)
	}
	j.printer.leave()
	select {
	case <-read: // into the logs
	case <-time.After(2 * lastWait):
	}
}

// readAll has all that processes have printed read, and returns what is closed
// after that.
func (j *job) readAll() <-chan struct{} {
	read := make(chan struct{})
	var reading []*stream
	for _, p := range j.procs {
		for _, s := range p.outputs {
			if s.done != nil {
				s.hurry()
				reading = append(reading, s)
			}
		}
	}
	go func() {
		defer close(read)
		for _, s := range reading {
			<-s.done
		}
	}()
	return read
}

// isWritten waits until everything is written, or nobody is to wait for that any
// longer, and reports which of both it is.
func (j *job) isWritten(ctx context.Context) bool {
	ended, asked := ctx.Done(), j.asked != nil
	var look <-chan time.Time
	if j.killed || asked || j.cause != nil {
		ended, look = nil, time.After(lastWrite)
	}
	moved := j.printer.moved.Load()
	for {
		select {
		case <-j.printer.written:
			return true
		case <-look:
			before := moved
			if moved = j.printer.moved.Load(); moved == before {
				return j.printer.isDone()
			}
			look = time.After(lastWrite)
		case <-ended:
			ended, look = nil, time.After(lastWrite)
		case s := <-j.Signals:
			if !ends(s) {
				continue
			}
			if asked {
				return false
			}
			asked, ended, look = true, nil, time.After(lastWrite)
		}
	}
}
