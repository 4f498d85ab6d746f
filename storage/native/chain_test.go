package native

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestBoundsOfAChain(t *testing.T) {
	needs := func(n int, bytes int64) (out []needed) {
		for i := range n {
			out = append(out, needed{fmt.Sprintf("step-%d", i), bytes})
		}
		return out
	}
	for claim, c := range map[string]struct {
		chain *chain
		own   int64 // bytes of the base, which would have 1000 if it stood alone
		want  bool
	}{
		"little was written":             {&chain{3, needs(3, 10)}, 10, true},
		"seven others are needed":        {&chain{7, needs(7, 10)}, 10, true},
		"eight others are needed":        {&chain{8, needs(8, 10)}, 10, false},
		"the 14th save that refers":      {&chain{14, needs(1, 10)}, 10, true},
		"the 15th save that refers":      {&chain{15, needs(1, 10)}, 10, false},
		"all has nearly twice the bytes": {&chain{2, needs(2, 600)}, 400, true},
		"all has more than twice":        {&chain{2, needs(2, 600)}, 401, false},
		"it needs the one that is saved": {&chain{1, []needed{{"own", 10}}}, 10, false},
		"it does not list its needs":     {nil, 10, false},
	} {
		r := &record{
			Files: []storage.File{{Name: "index"}, {Name: "x.delta", Size: c.own}},
			Coded: []storage.Coded{{File: storage.File{Name: "x.safetensors", Size: 1000}, Stored: "x.delta"}},
			Bases: []baseFolder{{Folder: "step-0"}}, Chain: c.chain,
		}
		if err := r.mayExtend("base", "own"); (err == nil) != c.want {
			t.Errorf("%s: mayExtend = %v; want a reference: %v", claim, err, c.want)
		}
	}
	alone := &record{Files: []storage.File{{Name: "index", Size: 1000}}}
	if err := alone.mayExtend("base", "own"); err != nil {
		t.Errorf("mayExtend of a checkpoint that stands alone = %v", err)
	}
}

func TestChainReadsAsWritten(t *testing.T) {
	r := recordWithReferences()
	r.Chain = &chain{Referring: 2, Needs: []needed{{"step-0", 1 << 40}, {"step-1", 11}}}
	got := must.Get(decodeRecord(must.Get(encodeRecord(r))(t)))(t)
	if d := cmp.Diff(r.Chain, got.Chain); d != "" {
		t.Errorf("decodeRecord(encodeRecord): -want +got\n%s", d)
	}
	if c := r.alone().Chain; c != nil {
		t.Errorf("the chain of a checkpoint that stands alone is %+v", c)
	}
}
