package platform_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

func TestAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		w := platform.Async(func() error {
			<-gate
			return io.ErrUnexpectedEOF
		})
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.Wait(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait with a context that has ended = %v; want its error", err)
		}
		select {
		case <-w.Done():
			t.Error("work is done before its function")
		default:
		}
		close(gate)
		<-w.Done()
		if err := w.Wait(ended); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("Wait for what is done = %v; want the function's error", err)
		}
	})
	if err := platform.Async(func() error { panic("no") }).Wait(t.Context()); !errors.Is(err, group.ErrPanic) {
		t.Errorf("Wait for a panic = %v; want ErrPanic", err)
	}
}
