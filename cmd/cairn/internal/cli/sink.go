package cli

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// sink is a writer that remembers its first error, so that a result that could
// not be printed is never taken for one that was.
type sink struct {
	w   io.Writer
	err error
}

// Write implements [io.Writer]. After an error nothing more is written.
func (s *sink) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(p)
	if err != nil {
		s.err = fmt.Errorf("print: %w", err)
	}
	return n, s.err
}

// terminal returns the file behind w if it is a terminal.
func terminal(w io.Writer) (*os.File, bool) {
	if s, ok := w.(*sink); ok {
		w = s.w
	}
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

func isTerminal(w io.Writer) bool {
	_, ok := terminal(w)
	return ok
}

// terminalWidth returns how many columns w has, or zero if w is not a terminal
// or its width is unknown.
func terminalWidth(w io.Writer) int {
	f, ok := terminal(w)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}
