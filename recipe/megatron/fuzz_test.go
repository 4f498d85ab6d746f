package megatron_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/megatron"
	"github.com/cairn-ckpt/cairn/tensor"
)

// textOf writes metadata as lines for metadataOf.
func textOf(md *meta.Metadata) string {
	var b strings.Builder
	list := func(v []int64) string { return strings.ReplaceAll(strings.Trim(fmt.Sprint(v), "[]"), " ", ",") }
	for _, e := range md.Entries {
		fmt.Fprintf(&b, "%s\t%s\t%s", e.FQN, e.Tensor.DType, list(e.Tensor.Shape))
		for i, c := range e.Tensor.Chunks {
			fmt.Fprintf(&b, "\t%s:%s:%s", list(c.Offsets), list(c.Sizes), e.Tensor.Locs[i].File)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// metadataOf reads metadata from lines with a name, a dtype, a shape and chunks: offsets, sizes
// and a file. It returns nil if no reader would accept it.
func metadataOf(text string) *meta.Metadata {
	list := func(text string) (out []int64) {
		for word := range strings.SplitSeq(text, ",") {
			if n, err := strconv.ParseInt(word, 10, 64); err == nil {
				out = append(out, n)
			}
		}
		return out
	}

	md := &meta.Metadata{}
	for line := range strings.Lines(text) {
		words := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(words) < 3 {
			continue
		}
		d, err := tensor.ParseDType(words[1])
		if err != nil {
			return nil
		}
		x := &meta.Tensor{Properties: meta.Properties{DType: d}, Shape: list(words[2])}
		for _, w := range words[3:] {
			parts := strings.SplitN(w, ":", 3)
			if len(parts) < 3 {
				return nil
			}
			x.Chunks = append(x.Chunks, tensor.Box{Offsets: list(parts[0]), Sizes: list(parts[1])})
			x.Locs = append(x.Locs, meta.Location{File: parts[2]})
		}
		md.Entries = append(md.Entries, meta.Entry{FQN: words[0], Tensor: x})
	}
	slices.SortFunc(md.Entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	if md.Validate() != nil {
		return nil
	}
	return md
}

// FuzzBind checks that no metadata makes Bind panic or go on without end, and that all elements of a
// binding are within their sources. Values fit if a sum of the numbers of the check has a bit that match
// has.
func FuzzBind(f *testing.F) {
	for _, j := range []job{
		{tp: 2, pp: 1, dp: 2, vpp: 1, layers: 2, bucket: 200},
		{tp: 1, pp: 2, dp: 1, vpp: 2, layers: 4, tied: true},
		{tp: 1, pp: 1, dp: 1, vpp: 1, layers: 1, ep: 2},
	} {
		text := textOf(j.save(f).md)
		f.Add(text, uint64(1<<63-1), false)
		f.Add(text, uint64(0), true)
	}
	f.Add("w\tfloat32\t4,2\t0,0:2,2:__0_0.distcp\t2,0:2,2:__1_0.distcp\noptimizer.state.exp_avg.w\tfloat32\t2,1,4\t0,0,0:2,1,4:x\noptimizer.state.fp32_param.w\tfloat32\t2,1,4\t0,0,0:2,1,4:x\n", uint64(1), false)
	f.Add("model.module.w\tfloat32\t4\t0:4:x\noptimizer.state.module.w.exp_avg\tfloat32\t4\t0:4:x\n", uint64(1), false)
	f.Add("optimizer.distributed.dp_group_idx_999999999.gbuf_idx_0.dtype_(torch.float32, torch.float32).bucket_idx_0.param\tfloat32\t4611686018427387904\t0:4611686018427387904:x\n", uint64(1), true)
	f.Fuzz(func(t *testing.T, text string, match uint64, unproven bool) {
		md := metadataOf(text)
		if md == nil {
			return
		}
		sum := uint64(0)
		b, _, err := megatron.Bind(md, megatron.Options{Unproven: unproven, Match: func(k recipe.Check) (bool, error) {
			sum = sum*31 + uint64(k.Map.From[0]) + uint64(len(k.Other))
			return match>>(sum%64)&1 == 1, nil
		}})
		if err != nil {
			if !errors.Is(err, recipe.ErrIncomplete) {
				t.Errorf("Bind = %v; want %v", err, recipe.ErrIncomplete)
			}
			return
		}
		for _, x := range b.Tensors {
			for _, p := range x.Parts {
				e, ok := md.Find(p.Source)
				if !ok || p.Map.FromBox().Check(e.Tensor.Shape) != nil || p.Map.ToBox().Check(x.Shape) != nil {
					t.Errorf("%s: %+v is not inside of %q", x.Name, p.Map, p.Source)
				}
			}
		}
	})
}
