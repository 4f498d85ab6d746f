package saver

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
)

func TestStagedMessageHasThePhaseOfStaging(t *testing.T) {
	b := &stagedBody{All: true, StageNS: int64(2 * time.Second), StageBytes: 5}
	got, err := b.phase(3 * time.Second)
	if want := (meta.Phase{Name: "stage", Start: time.Second, End: 3 * time.Second, Bytes: 5}); err != nil || got != want {
		t.Errorf("phase = %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []stagedBody{{StageNS: -1}, {StageNS: math.MaxInt64}, {StageNS: math.MinInt64}, {StageNS: 1, StageBytes: -1}} {
		if _, err := bad.phase(time.Second); !errors.Is(err, ErrMessage) {
			t.Errorf("phase of %+v = %v; want ErrMessage", bad, err)
		}
	}
}
