package inspect_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ranks returns the ranks of the chunks of a tensor in these files; -1 is unknown.
func ranks(files ...string) (out []int) {
	t := tensorOf(tensor.Int8, int64(len(files)))
	t.Chunks = nil
	for i, f := range files {
		t.Chunks = append(t.Chunks, tensor.Box{Offsets: []int64{int64(i)}, Sizes: []int64{1}})
		t.Locs = append(t.Locs, meta.Location{File: f, Length: 1})
	}
	for c := range inspect.Chunks(&meta.Entry{FQN: "x", Tensor: t}) {
		if c.Rank == nil {
			out = append(out, -1)
			continue
		}
		out = append(out, *c.Rank)
	}
	return out
}

func TestRanksOfFiles(t *testing.T) {
	for file, want := range map[string]int{
		native.DataFileName("20261117t165932-a995d751", 3, 0):        3,
		native.DataFileName("s", 123_456, 12):                        123_456,
		"step-10/" + native.DataFileName("s", 3, 0):                  3,
		"20261117t165932-a995d751-r00003-0.delta":                    3,
		"20261117t165932-a995d751-index.cairn":                       -1,
		"__3_0.distcp":                                               3,
		"__0_7.distcp":                                               0,
		"__12_20261117t165932-a995d751_0.distcp":                     12,
		"__x_0.distcp":                                               -1,
		"_rank3_.safetensors":                                        3,
		"_rank0_20261117t165932-a995d751.2.safetensors":              0,
		"_rank11_.bytes":                                             11,
		"lr_scheduler_rank2.bytes":                                   2,
		"shard-00001-model-00001-of-00002.safetensors":               0,
		"shard-00004-20261117t1659-model-00001-of-00002.safetensors": 3,
		"shard-00000-model-00001-of-00002.safetensors":               -1,
		"model-00001-of-00002.safetensors":                           -1,
		"model.safetensors":                                          -1,
		"zero_pp_rank_5_mp_rank_00_optim_states.pt":                  5,
		"bf16_zero_pp_rank_5_mp_rank_00_optim_states.pt":             5,
		"zero_pp_rank_5_mp_rank_00_model_states.pt":                  5,
		"mp_rank_00_model_states.pt":                                 0,
		"mp_rank_01_model_states.pt":                                 -1,
		"zero_pp_rank_5_mp_rank_01_optim_states.pt":                  -1,
		"zero/layers.0.weight/fp32.pt":                               -1,
		"model_3.pt":                                                 -1,
		"":                                                           -1,
	} {
		if got := ranks(file); got[0] != want {
			t.Errorf("rank of %s = %d; want %d", file, got[0], want)
		}
	}
	for _, c := range []struct {
		files []string
		want  []int
	}{
		{[]string{"model_0.pt", "model_1.pt", "model_1.pt"}, []int{0, 1, 1}},
		{[]string{"model_1.pt", "model_1.pt"}, []int{-1, -1}},
		{[]string{"model_1.pt", "optimizer_2.pt"}, []int{-1, -1}},
		{[]string{"__3_0.distcp", "model_1.pt"}, []int{3, -1}},
	} {
		if got := ranks(c.files...); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("ranks of %v = %v; want %v", c.files, got, c.want)
		}
	}
}

func TestNumbersAsJSON(t *testing.T) {
	for _, n := range []inspect.Number{0, 1, -1.5, 1e-300, math.MaxFloat64, inspect.Number(math.Inf(1)), inspect.Number(math.Inf(-1)), inspect.Number(math.NaN())} {
		var got inspect.Number
		if err := json.Unmarshal(must.Get(json.Marshal(n))(t), &got); err != nil || !same(n, got) {
			t.Errorf("%v became %v, %v", n, got, err)
		}
	}
	for _, text := range []string{`"x"`, `"nan"`, `true`, `[]`, `1e999`} {
		var n inspect.Number
		if err := json.Unmarshal([]byte(text), &n); err == nil {
			t.Errorf("%s became %v; want an error", text, n)
		}
	}
}
