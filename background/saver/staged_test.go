package saver

import (
	"errors"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
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

// A tensor that a checkpoint stores once under several names has one alias.
func TestDescribedTiesHaveAliases(t *testing.T) {
	md := &meta.Metadata{Entries: []meta.Entry{tiedEntry("a", "b", 0), tiedEntry("b", "", 0), tiedEntry("c", "", 16), tiedEntry("d", "b", 0)}}
	got := map[string]int{}
	for _, e := range newDescribed(1, md).Entries {
		got[e.Name] = e.Alias
	}
	if want := (map[string]int{"a": 1, "b": 1, "c": 0, "d": 1}); !maps.Equal(got, want) {
		t.Errorf("aliases = %v; want %v", got, want)
	}
}

func tiedEntry(fqn, key string, offset int64) meta.Entry {
	x := &meta.Tensor{Shape: []int64{4}, Chunks: []tensor.Box{tensor.Whole([]int64{4})}, Locs: []meta.Location{{File: "f", Offset: offset, Length: 16}}}
	x.DType = tensor.Float32
	if key != "" {
		x.Locs[0].Detail = &meta.Detail{Key: key}
	}
	return meta.Entry{FQN: fqn, Tensor: x}
}
