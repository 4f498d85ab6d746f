package meta_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Keys are equal if and only if their indexes are equal.
func TestIndexKeys(t *testing.T) {
	all := []meta.Index{
		{FQN: "a"}, {FQN: "a", Hint: 3}, {FQN: "b"}, {FQN: "a", Offset: []int64{}}, {FQN: "a", Offset: []int64{0}},
		{FQN: "a", Offset: []int64{0}, Hint: 1}, {FQN: "a", Offset: []int64{0, 0}}, {FQN: "a", Offset: []int64{1 << 40}},
		{FQN: "a", Offset: []int64{1, 256}}, {FQN: "a", Offset: []int64{256, 1}},
	}
	for _, i := range all {
		for _, j := range all {
			if (i.Key() == j.Key()) != i.Equal(j) {
				t.Errorf("%v and %v: keys are equal: %v; indexes: %v", i, j, i.Key() == j.Key(), i.Equal(j))
			}
		}
	}
	seen := map[meta.IndexKey]int{}
	for _, i := range all {
		seen[i.Key()]++
	}
	if len(seen) != len(all)-2 {
		t.Errorf("%d indexes make %d keys; want %d", len(all), len(seen), len(all)-2)
	}
}

func TestLocationOfIndex(t *testing.T) {
	box := func(at int64) tensor.Box { return tensor.Box{Offsets: []int64{at}, Sizes: []int64{2}} }
	md := &meta.Metadata{Entries: []meta.Entry{
		{FQN: "planned", Tensor: &meta.Tensor{Shape: []int64{2}, Chunks: []tensor.Box{box(0)}}},
		{FQN: "v", Bytes: &meta.Bytes{Loc: meta.Location{File: "v"}}},
		{FQN: "w", Tensor: &meta.Tensor{
			Shape: []int64{4}, Chunks: []tensor.Box{box(0), box(2)}, Locs: []meta.Location{{File: "a"}, {File: "b"}},
		}},
		{FQN: "x"},
	}}
	for _, c := range []struct {
		index meta.Index
		file  string // empty: there is no location
	}{
		{meta.Index{FQN: "v"}, "v"},
		{meta.Index{FQN: "w", Offset: []int64{0}}, "a"},
		{meta.Index{FQN: "w", Offset: []int64{2}, Hint: 1}, "b"},
		{meta.Index{FQN: "w", Offset: []int64{2}}, "b"}, // a wrong hint
		{meta.Index{FQN: "w", Offset: []int64{1}}, ""},
		{meta.Index{FQN: "w"}, ""},
		{meta.Index{FQN: "v", Offset: []int64{0}}, ""},
		{meta.Index{FQN: "planned", Offset: []int64{0}}, ""},
		{meta.Index{FQN: "x"}, ""},
		{meta.Index{FQN: "none"}, ""},
	} {
		l, ok := md.Location(c.index)
		if ok != (c.file != "") || ok && l.File != c.file {
			t.Errorf("Location(%v) = %+v, %v; want %q", c.index, l, ok, c.file)
		}
	}
}

// Locations may share a Detail: setting the data of one leaves the other as it was.
func TestStorageDataOfSharedDetail(t *testing.T) {
	shared := &meta.Detail{Key: "k", StorageData: []byte("old")}
	a, b, c := meta.Location{Detail: shared}, meta.Location{Detail: shared}, meta.Location{}
	if c.StorageData() != nil {
		t.Errorf("StorageData of nothing = %q; want nil", c.StorageData())
	}
	a.SetStorageData([]byte("new"))
	c.SetStorageData([]byte("new"))
	if string(a.StorageData()) != "new" || a.Detail.Key != "k" || string(b.StorageData()) != "old" || string(c.StorageData()) != "new" {
		t.Errorf("a has %+v, b %+v, c %+v; want new with the key, old, new", a.Detail, b.Detail, c.Detail)
	}
}
