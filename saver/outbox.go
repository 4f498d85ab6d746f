package saver

import (
	"net"
	"sync"
	"time"
)

// outbox sends the messages of a saver. A message waits there until the trainer has read
// those before it, so that a trainer that does not read holds up no save. Messages that
// only count are joined while they wait.
type outbox struct {
	conn net.Conn
	more chan struct{} // receives a value if there is something to send
	stop chan struct{} // closed when nothing more comes
	done chan struct{} // closed when run has ended

	mu       sync.Mutex
	closed   bool // nothing more is accepted
	queue    net.Buffers
	progress map[subject]*progressBody // not queued yet
	released map[uint64][]int          // items by generation, not queued yet
}

// lastMessages bounds how long a saver reads what a trainer has sent that does not read.
const lastMessages = time.Minute

func newOutbox(conn net.Conn) *outbox {
	o := &outbox{
		conn: conn, more: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		progress: map[subject]*progressBody{}, released: map[uint64][]int{},
	}
	go o.run()
	return o
}

// run sends what is queued.
func (o *outbox) run() {
	defer close(o.done)
	for last := false; !last; {
		select {
		case <-o.more:
		case <-o.stop:
			last = true
		}
		o.mu.Lock()
		o.queueCounts()
		queue := o.queue
		o.queue = nil
		o.mu.Unlock()
		if _, err := queue.WriteTo(o.conn); err != nil {
			o.refuseMore()
			// Without its messages the trainer cannot do its part: it is gone. What it
			// has sent before is still to be read.
			o.conn.SetReadDeadline(time.Now().Add(lastMessages))
			return
		}
	}
}

// send queues a message. It returns errTrainerGone if nothing is sent any more, which most
// callers ignore: the save goes on.
func (o *outbox) send(kind string, body any) error {
	b, err := appendFrame(nil, kind, body)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return errTrainerGone
	}
	o.queueCounts() // messages stay in order
	o.queue = append(o.queue, b)
	o.signal()
	return nil
}

// moved queues the progress of a save or a load.
func (o *outbox) moved(of subject, planned, moved int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.progress[of]
	if p == nil {
		p = &progressBody{subject: of}
		o.progress[of] = p
	}
	p.Planned += planned
	p.Moved += moved
	o.signal()
}

// release queues that an item is not needed any more.
func (o *outbox) release(generation uint64, item int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.released[generation] = append(o.released[generation], item)
	o.signal()
}

// queueCounts queues what was only counted so far. The caller holds mu.
func (o *outbox) queueCounts() {
	add := func(kind string, body any) {
		if b, err := appendFrame(nil, kind, body); err == nil && !o.closed {
			o.queue = append(o.queue, b)
		}
	}
	for _, p := range o.progress {
		add(typeProgress, p)
	}
	for g, items := range o.released {
		add(typeReleased, releasedBody{g, items})
	}
	clear(o.progress)
	clear(o.released)
}

func (o *outbox) signal() {
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// refuseMore lets send fail from now on.
func (o *outbox) refuseMore() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

// close waits until what is queued was sent, or could not be sent within a time.
func (o *outbox) close(within time.Duration) {
	o.refuseMore()
	o.conn.SetWriteDeadline(time.Now().Add(within))
	close(o.stop)
	<-o.done
}
