package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"
)

// writeTimeout is how long a deadlineWriter waits for a reader that has stopped
// reading.
const writeTimeout = time.Second

// deadlineWriter writes to w, but gives up waiting after writeTimeout. The write
// itself goes on in the background.
type deadlineWriter struct{ w io.Writer }

func (d *deadlineWriter) Write(b []byte) (int, error) {
	own, done := bytes.Clone(b), make(chan error, 1)
	go func() {
		_, err := d.w.Write(own)
		done <- err
	}()
	select {
	case err := <-done:
		return len(b), err
	case <-time.After(writeTimeout):
		return 0, fmt.Errorf("print: %w", os.ErrDeadlineExceeded)
	}
}
