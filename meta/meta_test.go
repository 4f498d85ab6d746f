package meta_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

func box(offsets, sizes []int64) tensor.Box { return tensor.Box{Offsets: offsets, Sizes: sizes} }

// rows returns a tensor of shape [n, 4] with one chunk for each of the given
// numbers of rows.
func rows(sizes ...int64) *meta.Tensor {
	t := &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}}
	at := int64(0)
	for _, n := range sizes {
		t.Chunks = append(t.Chunks, box([]int64{at, 0}, []int64{n, 4}))
		at += n
	}
	t.Shape = []int64{at, 4}
	return t
}

func TestFind(t *testing.T) {
	md := &meta.Metadata{Entries: []meta.Entry{{FQN: "a"}, {FQN: "a.b"}, {FQN: "b"}}}
	for i, fqn := range []string{"a", "a.b", "b"} {
		if e, ok := md.Find(fqn); !ok || e != &md.Entries[i] {
			t.Errorf("Find(%q) = %v, %v; want entry %d itself", fqn, e, ok, i)
		}
	}
	for _, fqn := range []string{"", "a.", "aa", "c"} {
		if e, ok := md.Find(fqn); ok || e != nil {
			t.Errorf("Find(%q) = %v, %v; want nothing", fqn, e, ok)
		}
	}
	if _, ok := new(meta.Metadata).Find("a"); ok {
		t.Error("Find in nothing found something")
	}
	if d := cmp.Diff([]string{"a", "a.b", "b"}, md.Names()); d != "" {
		t.Errorf("Names: -want +got\n%s", d)
	}
}

func TestFindChunk(t *testing.T) {
	x := rows(2, 3, 1)
	scalar := &meta.Tensor{Chunks: []tensor.Box{box([]int64{}, []int64{})}}
	for name, c := range map[string]struct {
		t      *meta.Tensor
		offset []int64
		hint   int32
		want   int
		ok     bool
	}{
		"a good hint":              {x, []int64{2, 0}, 1, 1, true},
		"a bad hint":               {x, []int64{2, 0}, 0, 1, true},
		"a hint beyond the end":    {x, []int64{5, 0}, 99, 2, true},
		"a negative hint":          {x, []int64{0, 0}, -1, 0, true},
		"the most negative hint":   {x, []int64{0, 0}, math.MinInt32, 0, true},
		"inside a chunk":           {x, []int64{3, 0}, 1, -1, false},
		"other dimensions":         {x, []int64{2}, 1, -1, false},
		"no offset":                {x, nil, 0, -1, false},
		"the chunk of a 0-d":       {scalar, []int64{}, 0, 0, true},
		"a tensor without a chunk": {&meta.Tensor{}, []int64{0}, 0, -1, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := c.t.FindChunk(c.offset, c.hint); got != c.want || ok != c.ok {
				t.Errorf("FindChunk(%v, %d) = %d, %v; want %d, %v", c.offset, c.hint, got, ok, c.want, c.ok)
			}
		})
	}
}

func TestIndexEquality(t *testing.T) {
	at := meta.Index{FQN: "a", Offset: []int64{0, 2}, Hint: 1}
	for name, c := range map[string]struct {
		a, b meta.Index
		want bool
	}{
		"the hint does not count":         {at, meta.Index{FQN: "a", Offset: []int64{0, 2}, Hint: 7}, true},
		"another name":                    {at, meta.Index{FQN: "b", Offset: []int64{0, 2}}, false},
		"another offset":                  {at, meta.Index{FQN: "a", Offset: []int64{0, 3}}, false},
		"fewer dimensions":                {at, meta.Index{FQN: "a", Offset: []int64{0}}, false},
		"a value is no 0-d tensor":        {meta.Index{FQN: "a"}, meta.Index{FQN: "a", Offset: []int64{}}, false},
		"two values of one name":          {meta.Index{FQN: "a"}, meta.Index{FQN: "a", Hint: 1}, true},
		"two 0-d tensors, differently []": {meta.Index{FQN: "a", Offset: []int64{}}, meta.Index{FQN: "a", Offset: make([]int64, 0, 3)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.a.Equal(c.b); got != c.want {
				t.Errorf("%v.Equal(%v) = %v; want %v", c.a, c.b, got, c.want)
			}
			if got := c.b.Equal(c.a); got != c.want {
				t.Errorf("%v.Equal(%v) = %v; want %v", c.b, c.a, got, c.want)
			}
		})
	}
	for want, i := range map[string]meta.Index{`"a" at [0 2]`: at, `"a"`: {FQN: "a"}, `"a" at []`: {FQN: "a", Offset: []int64{}}} {
		if got := i.String(); got != want {
			t.Errorf("String() = %s; want %s", got, want)
		}
	}
}

func TestPath(t *testing.T) {
	p := meta.Path{meta.Key("layers"), meta.Pos(12), meta.Key("w.x"), meta.Key("")}
	if got := p.FQN(); got != "layers.12.w.x." {
		t.Errorf("FQN = %q", got)
	}
	if !p.Equal(slices.Clone(p)) || p.Equal(p[:3]) || p.Equal(meta.Path{meta.Key("layers"), meta.Key("12"), meta.Key("w.x"), meta.Key("")}) {
		t.Error("Equal: a path equals its copy, not its beginning, and a key is no position")
	}
	if got := meta.Path(nil).FQN(); got != "" {
		t.Errorf("FQN of nil = %q", got)
	}
}

func TestCheckFQN(t *testing.T) {
	for fqn, ok := range map[string]bool{
		"a": true, "model.layers.0.weight": true, ".": true, "spaces and\nlines": true, "žluť": true, "a\x00": true,
		strings.Repeat("x", meta.MaxFQN): true, strings.Repeat("x", meta.MaxFQN+1): false, "": false, "\xff": false,
	} {
		if err := meta.CheckFQN(fqn); (err == nil) != ok || err != nil && !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("CheckFQN(%.20q) = %v; want an error: %v", fqn, err, !ok)
		}
	}
}

func TestNumBytes(t *testing.T) {
	for name, c := range map[string]struct {
		e    meta.Entry
		want int64
	}{
		"a tensor":      {meta.Entry{Tensor: rows(2, 3)}, 80},
		"a value":       {meta.Entry{Bytes: &meta.Bytes{Size: 7}}, 7},
		"neither":       {meta.Entry{}, 0},
		"no such shape": {meta.Entry{Tensor: &meta.Tensor{Properties: meta.Properties{DType: tensor.Bool}, Shape: []int64{-1}}}, 0},
	} {
		if got := c.e.NumBytes(); got != c.want {
			t.Errorf("%s: NumBytes = %d; want %d", name, got, c.want)
		}
	}
}

// FindMissing finds missing names, and files that may hold a name. A name of the
// checkpoint is not missing.
func TestFindMissing(t *testing.T) {
	bad := errors.New("damaged")
	md := &meta.Metadata{
		Entries: []meta.Entry{{FQN: "model.here", Bytes: &meta.Bytes{}}, {FQN: "step", Bytes: &meta.Bytes{}}},
		Missing: []meta.Missing{
			{FQN: "model", Below: true, File: "model_1.pt", Err: bad}, {FQN: "model.gone", File: "model_2.pt", Err: bad},
			{FQN: "rng", Below: true, File: "rng_0.pt", Err: bad}, {FQN: "w", File: "w.pt", Err: bad},
		},
	}
	for name, file := range map[string]string{
		"model.gone": "model_2.pt", "model.other": "model_1.pt", "model": "model_1.pt", "model.gone.deeper": "model_1.pt",
		"rng": "rng_0.pt", "rng.a.b.c": "rng_0.pt", "w": "w.pt", "w.x": "", "model.here": "", "step": "", "modelx": "", "": "",
	} {
		x, ok := md.FindMissing(name)
		if ok != (file != "") || ok && x.File != file {
			t.Errorf("FindMissing(%q) = %v, %v; want the file %q", name, x, ok, file)
		}
	}

	none := func(string) bool { return false }
	err := md.CheckWhole(none)
	if !errors.Is(err, bad) || !strings.Contains(err.Error(), `"model.*", "rng.*"`) || strings.Contains(err.Error(), `"w"`) {
		t.Errorf("CheckWhole of no name = %v; want the files with names that are not known", err)
	}
	if err := md.WithoutMissing(func(x *meta.Missing) bool { return x.Below }).CheckWhole(none); err != nil {
		t.Errorf("CheckWhole of no name without such files = %v", err)
	}
	md.Missing = append([]meta.Missing{{Below: true, File: "x.pt", Err: bad}}, md.Missing...)
	if x, ok := md.FindMissing("anything"); !ok || x.File != "x.pt" || x.String() != "*" {
		t.Errorf("FindMissing = %v, %v; want x.pt", x, ok)
	}
}
