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

func TestReshardBench(t *testing.T) {
	r := must.Get(Reshard(t.Context(), ReshardOptions{Dir: t.TempDir(), Bytes: 40 << 20}))(t)
	for _, c := range r.Cases {
		if c.Needed != r.Bytes {
			t.Errorf("%s: needed %d; the state has %d bytes", c.Case, c.Needed, r.Bytes)
		}
		// A rank reads at most the tiles that its part touches.
		if c.Read != c.Rounded || float64(c.Read) > 1.4*float64(c.Needed) {
			t.Errorf("%s: read %d, in tiles %d, needed %d", c.Case, c.Read, c.Rounded, c.Needed)
		}
	}
}

func TestOpenBench(t *testing.T) {
	r := must.Get(OpenBench(t.Context(), OpenOptions{Dir: t.TempDir(), Chunks: 10_000, Repeat: 1}))(t)
	if r.Chunks != 10_000 || r.Tensors != 100 || r.IndexBytes < 40_000 || r.Seconds <= 0 {
		t.Errorf("OpenBench = %+v; want 10,000 chunks of 100 tensors", r)
	}
	if r.LookupBytes <= 0 || r.LookupBytes > 256<<10 {
		t.Errorf("a look-up read %d bytes of the index; want 1 to 256 KiB", r.LookupBytes)
	}
}

func TestBenchmarksRefuseInvalidSizes(t *testing.T) {
	if _, err := Plan(t.Context(), PlanOptions{}); err == nil {
		t.Error("Plan without ranks succeeded")
	}
	if _, err := IO(t.Context(), IOOptions{Dir: t.TempDir()}); err == nil {
		t.Error("IO without ranks succeeded")
	}
	if _, err := OpenBench(t.Context(), OpenOptions{Dir: t.TempDir()}); err == nil {
		t.Error("OpenBench without chunks succeeded")
	}
}

func TestConvertBench(t *testing.T) {
	for _, pair := range [][2]string{{"torchdcp", "hf"}, {"native", "torchdcp"}, {"hf", "native"}} {
		r, err := Convert(t.Context(), ConvertOptions{Dir: t.TempDir(), Bytes: 8<<20 + 5000, From: pair[0], To: pair[1], Repeat: 1})
		if err != nil {
			t.Fatalf("%v: %v", pair, err)
		}
		if r.Copy <= 0 || r.Convert <= 0 || r.Ratio <= 0 || r.Bytes != 8<<20+5000 || r.Files < 1 {
			t.Errorf("%v: Convert = %+v; want figures", pair, r)
		}
	}
}

func TestPlanBench(t *testing.T) {
	r := must.Get(Plan(t.Context(), PlanOptions{Ranks: 16, Tensors: 20}))(t)
	if r.Items != 320 || r.IndexBytes == 0 || len(r.Phases) != 4 || r.RepeatSeconds <= 0 {
		t.Errorf("Plan = %+v; want 320 items, an index, four phases and a repeat", r)
	}
}
