package saver

import (
	"bufio"
	"errors"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/protocol"
)

// refuseTime bounds how long a saver waits until a trainer that sends nonsense has
// read why it is refused.
const refuseTime = 5 * time.Second

// link is the connection to the trainer. It hands each message to its handler, one after
// another, in the order in which they arrive. Its outbox sends the answers.
type link struct {
	*outbox
	handlers map[string]func(*frame) error
}

// register sets the handler of a type of messages. Unknown fields of a body are an error if
// strict is set. An error of the handler ends the conversation.
func register[T any](l *link, kind string, strict bool, handle func(*T) error) {
	l.handlers[kind] = func(f *frame) error { return on(f, strict, handle) }
}

// listen handles messages until the trainer has gone, or sends a message that makes no sense.
func (l *link) listen() error {
	r := bufio.NewReaderSize(l.conn, 64<<10)
	for greeted := false; ; greeted = true {
		f, err := readFrame(r)
		if err != nil {
			return err
		}
		if greeted == (f.Type == typeHello) {
			return fmt.Errorf("%w: the first message is %q, and only the first: not %q", ErrMessage, typeHello, f.Type)
		}

		if err := l.handle(f); err != nil {
			if !errors.Is(err, ErrMessage) {
				err = fmt.Errorf("%w: %s: %w", ErrMessage, f.Type, err)
			}
			return err
		}
	}
}

// handle handles one message.
func (l *link) handle(f *frame) error {
	if h := l.handlers[f.Type]; h != nil {
		return h(f)
	}
	return fmt.Errorf("%w: type %q", ErrMessage, f.Type)
}

// refuse sends the trainer the reason for the end of the conversation.
func (l *link) refuse(err error) {
	l.send(typeRefused, refusedBody{newErrorBody(err)})
	l.close(refuseTime)
}

// observer sends the progress of a save or load to the trainer.
func (l *link) observer(of subject) *protocol.Observer {
	return &protocol.Observer{
		Planned: func(n int64) { l.moved(of, n, 0) },
		Moved:   func(n int64) { l.moved(of, 0, n) },
		Warned:  func(err error) { l.send(typeWarning, warningBody{of, err.Error()}) },
		Phase: func(p meta.Phase) {
			if p.Name != meta.PhaseStage { // which the trainer notes itself
				l.phase(of, p)
			}
		},
	}
}
