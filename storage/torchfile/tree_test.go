package torchfile

import (
	"errors"
	"math"
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/value"
)

type dict = map[string]any

func pairs(all ...any) *value.Dict {
	d := &value.Dict{}
	for i := 0; i < len(all); i += 2 {
		d.Pairs = append(d.Pairs, value.Pair{Key: all[i], Value: all[i+1]})
	}
	return d
}

func TestTree(t *testing.T) {
	a, huge := meta.Key("a"), new(big.Int).Lsh(big.NewInt(1), 64)
	for claim, c := range map[string]struct {
		paths []meta.Path
		want  any // the number of the path that leads there
	}{
		"nothing":                           {nil, dict{}},
		"keys":                              {[]meta.Path{{a, a}, {a, meta.Key("b")}}, dict{"a": dict{"a": 0, "b": 1}}},
		"lists, padded":                     {[]meta.Path{{a, meta.Pos(2)}, {a, meta.Pos(0), meta.Key("b")}}, dict{"a": []any{dict{"b": 1}, nil, 0}}},
		"integers, by their size":           {[]meta.Path{{a, meta.IntKey(10)}, {a, meta.IntKey(9)}, {a, meta.IntKey(-1)}}, dict{"a": pairs(int64(-1), 2, int64(9), 1, int64(10), 0)}},
		"integers at the outermost":         {[]meta.Path{{meta.IntKey(0), a}}, pairs(int64(0), dict{"a": 0})},
		"integers before text":              {[]meta.Path{{a}, {meta.IntKey(7)}, {meta.Key("")}}, pairs(int64(7), 1, "", 2, "a", 0)},
		"an integer and its text":           {[]meta.Path{{a, meta.Key("1"), a}, {a, meta.IntKey(1), a}}, dict{"a": pairs(int64(1), dict{"a": 1}, "1", dict{"a": 0})}},
		"more than 64 bits":                 {[]meta.Path{{{Key: huge.String(), Int: true}}}, pairs(huge, 0)},
		"unused fields of lists and keys":   {[]meta.Path{{a, {List: true, Key: "x"}}, {{Key: "b", Pos: 3}}, {{Key: "b", Pos: 4}}}, nil},
		"a value below a value":             {[]meta.Path{{a}, {a, a}}, nil},
		"a value above values":              {[]meta.Path{{a, a}, {a}}, nil},
		"a list that is a dict":             {[]meta.Path{{a, a}, {a, meta.Pos(0)}}, nil},
		"no path":                           {[]meta.Path{{}}, nil},
		"a position at the outermost":       {[]meta.Path{{meta.Pos(0)}}, nil},
		"a key that is not an integer":      {[]meta.Path{{{Key: "x", Int: true}}}, nil},
		"a position beyond all bounds":      {[]meta.Path{{a, meta.Pos(math.MaxInt)}}, nil},
		"positions that are too far in all": {[]meta.Path{{a, meta.Pos(maxGaps / 2)}, {meta.Key("b"), meta.Pos(maxGaps/2 + 9)}}, nil},
		"too many steps":                    {[]meta.Path{make(meta.Path, plan.MaxDepth+1)}, nil},
	} {
		var tr tree
		var errs []error
		for i, p := range c.paths {
			errs = append(errs, tr.put(p, i))
		}
		got, err := tr.state()
		err = errors.Join(append(errs, err)...)
		if c.want == nil {
			if !errors.Is(err, plan.ErrState) {
				t.Errorf("%s: %v; want %v", claim, err, plan.ErrState)
			}
			continue
		}
		same := cmp.Comparer(func(x, y *big.Int) bool { return x.Cmp(y) == 0 })
		if d := cmp.Diff(c.want, got, same); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", claim, err, d)
		}
	}
}
