package saver

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
)

// outbox sends the messages of a saver or of a trainer. A message waits there until the
// other process has read the messages before it, so that a process that does not read
// does not block the sender. Messages that only report progress are joined while they wait.
type outbox struct {
	conn net.Conn
	gone error         // the error of send after the outbox is closed
	more chan struct{} // receives a value if there is something to send
	stop chan struct{} // closed by close
	done chan struct{} // closed when run has ended

	mu       sync.Mutex
	closed   bool // send returns gone
	queue    net.Buffers
	flushed  chan struct{}             // closed when everything that was queued has been sent
	progress map[subject]*progressBody // not queued yet
	released map[uint64][]int          // items by generation, not queued yet
}

// lastMessages bounds how long a process reads the last messages of a process that has
// stopped reading.
const lastMessages = time.Minute

// newOutbox returns an outbox, to be closed. After that, or after a failed write,
// send returns gone.
func newOutbox(conn net.Conn, gone error) *outbox {
	o := &outbox{
		conn: conn, gone: gone, more: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		flushed: make(chan struct{}), progress: map[subject]*progressBody{}, released: map[uint64][]int{},
	}
	close(o.flushed)
	go o.run()
	return o
}

// run sends the queued messages.
func (o *outbox) run() {
	defer close(o.done)
	for last := false; !last; {
		select {
		case <-o.more:
		case <-o.stop:
			last = true
		}
		for queue := o.take(); len(queue) > 0; queue = o.take() {
			if _, err := queue.WriteTo(o.conn); err != nil {
				o.refuseMore()
				// Without its messages the other process cannot do its part: it is gone.
				// Its last messages are still to be read.
				o.conn.SetReadDeadline(time.Now().Add(lastMessages))
				return
			}
		}
	}
}

// take returns the queued bytes. If there are none, all messages were sent.
func (o *outbox) take() net.Buffers {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queueCounts()
	queue := o.queue
	o.queue = nil
	if len(queue) == 0 {
		select {
		case <-o.flushed:
		default:
			close(o.flushed)
		}
	}
	return queue
}

// send queues a message. A closed outbox returns an error, which most callers ignore:
// the end of the conversation tells them the same.
func (o *outbox) send(kind string, body any) error {
	b, err := appendFrame(nil, kind, body)
	if err != nil {
		return err
	}
	return o.sendFrame(b)
}

// sendFrame queues a message that appendFrame has made.
func (o *outbox) sendFrame(b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return o.gone
	}
	o.queueCounts() // messages stay in order
	o.push(b)
	o.signal()
	return nil
}

// push appends a message to the queue. The caller holds mu.
func (o *outbox) push(b []byte) {
	select {
	case <-o.flushed:
		o.flushed = make(chan struct{})
	default:
	}
	o.queue = append(o.queue, b)
}

// moved queues the progress of a save or a load.
func (o *outbox) moved(of subject, planned, moved int64) {
	o.report(of, func(p *progressBody) {
		p.Planned += planned
		p.Moved += moved
	})
}

// phase queues a phase that has ended.
func (o *outbox) phase(of subject, ended meta.Phase) {
	o.report(of, func(p *progressBody) { p.Phases = append(p.Phases, ended) })
}

// report lets add change the progress that is sent next.
func (o *outbox) report(of subject, add func(*progressBody)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.progress[of]
	if p == nil {
		p = &progressBody{subject: of}
		o.progress[of] = p
	}
	add(p)
	o.signal()
}

// release queues that an item is not needed any more.
func (o *outbox) release(generation uint64, item int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.released[generation] = append(o.released[generation], item)
	o.signal()
}

// queueCounts queues the progress so far. The caller holds mu.
func (o *outbox) queueCounts() {
	add := func(kind string, body any) {
		if b, err := appendFrame(nil, kind, body); err == nil && !o.closed {
			o.push(b)
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

// flush waits until the system has everything that was queued: the other process can read
// it even if this one ends. If the outbox cannot send any more, or ctx ends, it returns earlier.
func (o *outbox) flush(ctx context.Context) {
	o.mu.Lock()
	flushed := o.flushed
	o.mu.Unlock()
	select {
	case <-flushed:
	case <-o.done:
	case <-ctx.Done():
	}
}

// refuseMore lets send fail from now on.
func (o *outbox) refuseMore() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

// close waits until the queued messages were sent, or a time is over.
func (o *outbox) close(within time.Duration) {
	o.refuseMore()
	o.conn.SetWriteDeadline(time.Now().Add(within))
	close(o.stop)
	<-o.done
}
