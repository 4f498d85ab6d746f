package must_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// ended is a test that notes why it ended.
type ended struct{ why []any }

func (e *ended) Helper()           {}
func (e *ended) Fatal(args ...any) { e.why = args }

func TestMust(t *testing.T) {
	fine, broken := new(ended), new(ended)
	err := errors.New("broken")
	must.Do(fine, nil)
	if got := must.Get(7, nil)(fine); got != 7 || fine.why != nil {
		t.Errorf("Get = %d, and the test ended with %v; want 7, and no end", got, fine.why)
	}
	must.Get(7, err)(broken)
	if len(broken.why) != 1 || broken.why[0] != err {
		t.Errorf("the test ended with %v; want %v", broken.why, err)
	}
}
