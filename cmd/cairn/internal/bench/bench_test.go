package bench

import (
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestIOBench(t *testing.T) {
	for _, ranks := range []int{1, 3} {
		r := must.Get(IO(t.Context(), IOOptions{Dir: t.TempDir(), Bytes: 8<<20 + 5000, Ranks: ranks, Repeat: 1}))(t)
		for name, v := range map[string]float64{
			"floor_save": r.FloorSave, "save": r.Save, "save_ratio": r.SaveRatio,
			"floor_load_cold": r.FloorLoadCold, "load_cold": r.LoadCold, "load_cold_ratio": r.LoadColdRatio,
			"floor_load_warm": r.FloorLoadWarm, "load_warm": r.LoadWarm, "load_warm_ratio": r.LoadWarmRatio,
		} {
			if v <= 0 {
				t.Errorf("%d ranks: %s = %v; want a figure", ranks, name, v)
			}
		}
		if r.Bytes != 8<<20+5000 || r.Ranks != ranks {
			t.Errorf("IO = %+v; want 8 MiB and 5000 bytes from %d ranks", r, ranks)
		}
	}
}

func TestTransformerHasTheSizeThatIsAskedFor(t *testing.T) {
	for _, want := range []int64{1, 4095, 1 << 20, 1<<20 + 1, 100 << 20, 1<<32 + 7} {
		got, names := int64(0), map[string]bool{}
		for w := range transformer(want) {
			if w.bytes() <= 0 || names[w.name] {
				t.Errorf("%d bytes: %q has %d bytes, or is there twice", want, w.name, w.bytes())
			}
			got += w.bytes()
			names[w.name] = true
		}
		if got != want {
			t.Errorf("the tensors have %d bytes; want %d", got, want)
		}
	}
}

func TestBenchmarksRefuseInvalidSizes(t *testing.T) {
	if _, err := IO(t.Context(), IOOptions{Dir: t.TempDir()}); err == nil {
		t.Error("IO without ranks succeeded")
	}
}
