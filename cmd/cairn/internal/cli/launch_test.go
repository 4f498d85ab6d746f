package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"testing/synctest"
)

func TestDeadlineWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if n, err := (&deadlineWriter{&out}).Write([]byte("words")); n != 5 || err != nil || out.String() != "words" {
			t.Errorf("Write = %d, %v, wrote %q; want all", n, err, &out)
		}
		r, w := io.Pipe()
		if n, err := (&deadlineWriter{w}).Write([]byte("words")); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Write without a reader = %d, %v; want os.ErrDeadlineExceeded", n, err)
		}
		r.Close()
	})
}
