package guard_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/guard"
)

func TestFunc(t *testing.T) {
	if err := guard.Func(func() error { return nil })(); err != nil {
		t.Errorf("no panic, no error: got %v", err)
	}
	want := errors.New("mine")
	if err := guard.Func(func() error { return want })(); err != want {
		t.Errorf("got %v; want the function's own error", err)
	}
	err := guard.Func(func() error { panic("ouch") })()
	if err == nil || !strings.Contains(err.Error(), "ouch") || !strings.Contains(err.Error(), "guard_test.go") {
		t.Errorf("got %v; want what was panicked and where", err)
	}
}
