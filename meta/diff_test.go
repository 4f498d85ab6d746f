package meta_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestDiff(t *testing.T) {
	entry := func(fqn string, t *meta.Tensor) meta.Entry { return meta.Entry{FQN: fqn, Tensor: t} }
	reversed := rows(2, 3)
	slices.Reverse(reversed.Chunks)
	reversed.Locs = make([]meta.Location, 2)
	half, grad, other := rows(2, 3), rows(2, 3), rows(2, 4)
	half.DType, grad.RequiresGrad, other.DType = tensor.Float16, true, tensor.Float64
	a := &meta.Metadata{Entries: []meta.Entry{
		entry("chunks", rows(2, 3)), entry("dtype", rows(2, 3)), entry("gone", rows(1)), entry("grad", rows(2, 3)),
		entry("kind", rows(1)), entry("many", rows(2, 3)), entry("order", rows(2, 3)), {FQN: "path", Tensor: rows(1)},
		{FQN: "path.0", Tensor: rows(1), Path: meta.Path{meta.Key("path"), meta.Key("0")}},
		{FQN: "same", Tensor: rows(1), Path: meta.Path{meta.Key("same")}},
		{FQN: "value", Bytes: &meta.Bytes{Codec: "raw", Size: 3, Inline: []byte("abc")}},
	}}
	b := &meta.Metadata{Entries: []meta.Entry{
		entry("chunks", rows(3, 2)), entry("dtype", half), entry("grad", grad),
		{FQN: "kind", Bytes: &meta.Bytes{}}, entry("many", other), entry("new", rows(1)), entry("order", reversed),
		{FQN: "path", Tensor: rows(1), Path: meta.Path{meta.Key("p"), meta.Key("q")}},
		{FQN: "path.0", Tensor: rows(1), Path: meta.Path{meta.Key("path"), meta.IntKey(0)}}, {FQN: "same", Tensor: rows(1)},
		{FQN: "value", Bytes: &meta.Bytes{Codec: "json", Size: 4}}, entry("zz", rows(1)),
	}}
	want := meta.Delta{
		Added: []string{"new", "zz"}, Removed: []string{"gone"},
		Changed: []meta.Change{
			{FQN: "chunks", What: []meta.Aspect{meta.AspectChunks}},
			{FQN: "dtype", What: []meta.Aspect{meta.AspectDType}},
			{FQN: "grad", What: []meta.Aspect{meta.AspectProperties}},
			{FQN: "kind", What: []meta.Aspect{meta.AspectKind}},
			{FQN: "many", What: []meta.Aspect{meta.AspectDType, meta.AspectShape, meta.AspectChunks}},
			{FQN: "path", What: []meta.Aspect{meta.AspectPath}},
			{FQN: "path.0", What: []meta.Aspect{meta.AspectPath}},
			{FQN: "value", What: []meta.Aspect{meta.AspectCodec, meta.AspectSize}},
		},
	}
	if d := cmp.Diff(want, meta.Diff(a, b)); d != "" {
		t.Errorf("Diff: -want +got\n%s", d)
	}
	if got := meta.Diff(a, a); !got.Empty() {
		t.Errorf("Diff of a checkpoint with itself = %+v", got)
	}
	if got := meta.Diff(a, b); got.Empty() {
		t.Error("Empty where much differs")
	}
}

// What is added one way is removed the other way, what is in neither list is in
// both checkpoints, and what changes does so both ways.
func TestDiffIsSymmetric(t *testing.T) {
	draw := func(t *rapid.T, label string) *meta.Metadata {
		m := &meta.Metadata{}
		for i := range 8 {
			if n := rapid.Int64Range(0, 3).Draw(t, label); n > 0 {
				m.Entries = append(m.Entries, meta.Entry{FQN: fmt.Sprint(i), Tensor: rows(n, 1)})
			}
		}
		return m
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		there, back := meta.Diff(a, b), meta.Diff(b, a)
		want := meta.Delta{Added: there.Removed, Removed: there.Added, Changed: there.Changed}
		if d := cmp.Diff(want, back); d != "" {
			t.Fatalf("Diff the other way: -want +got\n%s", d)
		}
		for _, e := range a.Entries {
			f, both := b.Find(e.FQN)
			changed := slices.ContainsFunc(there.Changed, func(c meta.Change) bool { return c.FQN == e.FQN })
			if slices.Contains(there.Removed, e.FQN) == both || changed != (both && !slices.Equal(e.Tensor.Shape, f.Tensor.Shape)) {
				t.Fatalf("%q: Diff = %+v", e.FQN, there)
			}
		}
	})
}
