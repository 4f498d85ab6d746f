package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"
)

// lastWord is how long a reader that has stopped to read has for the last words
// of a command.
const lastWord = time.Second

// hasty is a writer that does not wait for a reader that takes nothing: such a
// write goes on by itself.
type hasty struct{ w io.Writer }

func (h *hasty) Write(b []byte) (int, error) {
	own, done := bytes.Clone(b), make(chan error, 1)
	go func() {
		_, err := h.w.Write(own)
		done <- err
	}()
	select {
	case err := <-done:
		return len(b), err
	case <-time.After(lastWord):
		return 0, fmt.Errorf("print: %w", os.ErrDeadlineExceeded)
	}
}
