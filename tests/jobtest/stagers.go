package jobtest

import (
	"context"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// Stager returns a Stager that is closed at the end of the test.
func Stager(t *testing.T, o *cairn.StagerOptions) *cairn.Stager {
	t.Helper()
	s := must.Get(cairn.NewStager(o))(t)
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Modes are the ways to run background saves.
var Modes = map[string]func(ceiling int64) *cairn.StagerOptions{
	"goroutine": func(c int64) *cairn.StagerOptions { return &cairn.StagerOptions{Ceiling: c} },
}

// Pause and resume stop saver processes and let them go on, if the system has them.
var (
	Pause  = func(*testing.T) {}
	Resume = func(*testing.T) {}
	// WaitSavers waits until no saver process is left.
	WaitSavers = func(*testing.T) {}
)
