package platform

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
)

// A codec that panics is a rank's error, not the end of the process.
func TestCodecPanicsAreErrors(t *testing.T) {
	wild := group.Func[int]{
		EncodeFunc: func(int) ([]byte, error) { panic("no") },
		DecodeFunc: func([]byte) (int, error) { panic("no") },
	}
	if _, err := seal(wild, 1); !errors.Is(err, group.ErrPanic) {
		t.Errorf("seal = %v; want ErrPanic", err)
	}
	if v, err := decode(wild, nil); !errors.Is(err, group.ErrPanic) {
		t.Errorf("decode = %d, %v; want ErrPanic", v, err)
	}
}
