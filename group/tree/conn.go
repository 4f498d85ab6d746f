package tree

import "context"

// Conn carries frames to and from one other rank, in order, each of them once,
// until it breaks. One goroutine writes and another one reads.
type Conn interface {
	// WriteFrame sends a frame, given in two parts, and returns once it needs
	// them no more.
	WriteFrame(head, body []byte) error
	// ReadFrame returns the next frame, which is the caller's.
	ReadFrame() ([]byte, error)
	// CloseWrite tells the other end that no more frames come.
	CloseWrite() error
	// Close ends both directions, and calls that wait.
	Close() error
}

// Network opens connections to other ranks.
type Network interface {
	// Dial opens a connection to rank, whose node gets the other end by
	// [Node.Accept]. It may wait until the rank is ready for it.
	Dial(ctx context.Context, rank int) (Conn, error)
}
