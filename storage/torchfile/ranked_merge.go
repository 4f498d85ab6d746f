package torchfile

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// merger puts the files of all ranks together.
type merger struct {
	md      *rankedMetadata
	several map[string]bool        // the items that several ranks have
	held    map[string]*ranksValue // by the key of the path
	lost    reading.LostFiles      // files that are missing or damaged
	again   int64                  // the rest of maxAgain
	proof   bool                   // a value shows that the files are ranks of one checkpoint
	differ  *leaf                  // a value that differs from the value of a lower rank
	missing []meta.Missing
}

// ranksValue is the tensor or value of one path, as the ranks have it.
type ranksValue struct {
	path  meta.Path
	forms []*form // different ones, the form of the lowest rank first
	err   error   // why the part of a rank cannot be used
	lost  string  // a file that should have a part and cannot be read
}

// form is a tensor or value that some ranks agree on.
type form struct {
	key  string // equal keys mean equal forms
	rank int    // the lowest one
	leaf leaf
	seen map[string]bool // the boxes of a tensor in chunks
}

// merge returns the leaves of all files, with the item as the first step of their paths.
func (m *merger) merge(files []*rankFile) ([]leaf, error) {
	for i, f := range files {
		if i > 0 && files[i-1].item == f.item {
			m.several[f.item] = true
		}
	}

	for name, it := range m.md.items {
		for _, p := range it.paths {
			m.at(append(meta.Path{meta.Key(name)}, p...))
		}
	}

	for _, f := range files {
		if f.file == nil {
			m.lose(f, m.lost[f.name])
		} else if err := m.add(f); err != nil {
			return nil, err
		}
	}

	var out []leaf
	for _, key := range slices.Sorted(maps.Keys(m.held)) {
		out = append(out, m.leaves(m.held[key])...)
	}

	if d := m.differ; d != nil && len(m.md.items) == 0 && !m.proof {
		return nil, fmt.Errorf("%w: %q in %s differs from the value in the file of another rank, and nothing shows that the files are ranks of one checkpoint: name the file that is meant",
			storage.ErrNotFound, d.path.FQN(), d.file.Name)
	}
	return out, nil
}

// at returns the value of a path.
func (m *merger) at(p meta.Path) *ranksValue {
	key := pathKey(p)
	v := m.held[key]
	if v == nil {
		v = &ranksValue{path: p}
		m.held[key] = v
	}
	return v
}

// lose notes which tensors are in a file that cannot be read, and that it may hold other
// values of its item.
func (m *merger) lose(f *rankFile, why error) {
	m.missing = append(m.missing, meta.Missing{FQN: possible(f.item), Below: true, File: f.name, Err: why})
	it := m.md.items[f.item]
	if it == nil {
		return
	}

	for key, p := range it.paths {
		if _, _, ok := it.record(key, f.rank); ok {
			m.at(append(meta.Path{meta.Key(f.item)}, p...)).lost = f.name
		}
	}
}

// add adds the content of a file.
func (m *merger) add(f *rankFile) error {
	leaves, err := flatten(f.file, meta.Path{meta.Key(f.item)}, f.file.Root)
	if err != nil {
		return err
	}

	it := m.md.items[f.item]
	if it == nil {
		it = &rankedItem{}
	}
	if _, ok := asDict(f.file.Root); !ok && f.kind == kindTorch {
		m.proof = true // other programs save dicts
	}

	for _, l := range leaves {
		if f.kind == kindTensor { // the steps of the path are joined by dots
			if p, ok := it.names[l.path[1].Key]; ok {
				l.path = append(l.path[:1:1], p...)
			}
		}
		if err := m.addLeaf(f, it, l); err != nil {
			return fmt.Errorf("%s: %q: %w", f.name, l.path.FQN(), err)
		}
	}

	return nil
}

func (m *merger) addLeaf(f *rankFile, it *rankedItem, l leaf) error {
	v := m.at(l.path)
	r, place, recorded := it.record(pathKey(l.path[1:]), f.rank)
	t, isTensor := l.value.(*torchsave.Tensor)
	if d := asDTensor(f.file, l.value, f.rank, nil); d != nil {
		m.proof = true
		if t = d.local; !recorded {
			r, place = &holding{dtype: t.DType, shape: d.shape, layout: d.layout, key: fmt.Sprint(d.layout)}, d.place
		}
		if !recorded && d.err != nil {
			v.err = reading.Damaged(f.name, "the DTensor %q: %w", l.path.FQN(), d.err)
			return nil
		}
	} else if isTensor && f.kind == kindTensor && m.several[f.item] && !recorded {
		v.err = reading.Damaged(f.name, "%q: without %s nothing says how the tensors of several ranks belong together", l.path.FQN(), rankedRecord)
		return nil
	} else if !isTensor || !recorded || t.Sum != nil && slices.Equal(t.Shape, r.shape) {
		// A tensor with a checksum that is whole on this rank is compared with the other
		// ranks: torch_checkpointing records every plain tensor as replicated.
		key, err := m.fingerprint(f, l.value)
		if err == nil {
			v.form(key, f.rank, l)
		}
		return err
	}

	if err := v.addParts(f, l, r, place, t); err != nil {
		v.err = reading.Damaged(f.name, "%q: %w", l.path.FQN(), err)
	}
	return nil
}

// form returns the form with that key, which it makes of l if need be.
func (v *ranksValue) form(key string, rank int, l leaf) *form {
	for _, f := range v.forms {
		if f.key == key {
			return f
		}
	}
	v.forms = append(v.forms, &form{key: key, rank: rank, leaf: l})
	return v.forms[len(v.forms)-1]
}

// addParts adds the chunks of a tensor that t, the part of a rank, holds. Of equal boxes
// the box of the lowest rank counts.
func (v *ranksValue) addParts(f *rankFile, l leaf, r *holding, place int, t *torchsave.Tensor) error {
	if t.DType != r.dtype {
		return fmt.Errorf("rank %d has %v, and the tensor is %v", f.rank, t.DType, r.dtype)
	}
	parts, err := partsOfLocal(r.layout, r.shape, place, t)
	if err != nil {
		return err
	}

	to := v.form(fmt.Sprint(r.dtype, r.shape, r.key), f.rank, leaf{l.path, &sharded{shape: r.shape}, l.file})
	if to.seen == nil {
		to.seen = map[string]bool{}
	}

	all := to.leaf.value.(*sharded)
	for _, p := range parts {
		at := p.Box.String()
		if to.seen[at] || p.Box.Empty() && !tensor.Whole(r.shape).Empty() {
			continue
		}
		to.seen[at] = true
		all.chunks, all.parts = append(all.chunks, p.Box), append(all.parts, Elements{File: f.file, Tensor: view(t, p)})
	}

	return nil
}

// view returns the part p of t.
func view(t *torchsave.Tensor, p shard.Part) *torchsave.Tensor {
	out := *t
	narrow(&out, &p)
	return &out
}

// narrow makes t the part p of it.
func narrow(t *torchsave.Tensor, p *shard.Part) {
	t.Shape = p.Box.Sizes
	if !p.Box.Empty() {
		for d, at := range p.Local {
			t.Offset += at * t.Strides[d] * int64(t.DType.Size())
		}
	}
}

// check returns an error unless f is complete: the chunks of a tensor cover it exactly.
func (f *form) check() error {
	s, ok := f.leaf.value.(*sharded)
	if !ok {
		return nil
	}
	if len(s.chunks) == 0 {
		return fmt.Errorf("%w: no file has a part of it", storage.ErrCorrupt)
	}

	if problems := plan.CheckCoverage(s.shape, s.chunks); len(problems) > 0 {
		return fmt.Errorf("%w: the files have %d chunks of a tensor of %v: %s", storage.ErrCorrupt, len(s.chunks), s.shape, problems[0].Text)
	}
	return nil
}

// copies reports whether f and g are the same tensor in other chunks.
func (f *form) copies(g *form) bool {
	s, ok := f.leaf.value.(*sharded)
	t, is := g.leaf.value.(*sharded)
	return ok && is && slices.Equal(s.shape, t.shape) && len(s.parts) > 0 && len(t.parts) > 0 && s.parts[0].DType == t.parts[0].DType
}

// leaves returns the leaves of a path: the form of the lowest rank under the path, and
// the other forms under names with their rank.
func (m *merger) leaves(v *ranksValue) []leaf {
	var first *form
	err := v.err
	for _, f := range v.forms {
		if formErr := f.check(); formErr == nil {
			first = f
			break
		} else if err == nil {
			err = formErr
		}
	}
	switch {
	case v.err == nil && first != nil:
		return m.ranks(v, first)
	case v.lost != "":
		err = reading.Damaged(v.lost, "the file is missing or damaged")
	case err == nil:
		err = fmt.Errorf("%w: no file has it", storage.ErrCorrupt)
	}

	m.missing = append(m.missing, meta.Missing{FQN: possible(v.path.FQN()), File: v.lost, Err: err})
	return nil
}

// ranks returns the leaves of a path; first is the form of the lowest rank.
func (m *merger) ranks(v *ranksValue, first *form) []leaf {
	out := []leaf{first.leaf}
	for _, f := range v.forms {
		if f == first || f.copies(first) {
			continue
		}

		name := fmt.Sprintf("%s#rank%d", v.path.FQN(), f.rank)
		if err := f.check(); err != nil {
			m.missing = append(m.missing, meta.Missing{FQN: possible(name), Err: err})
			continue
		}

		m.differ = &f.leaf
		out = append(out, leaf{meta.Path{meta.Key(name)}, f.leaf.value, f.leaf.file})
	}

	return out
}

// fingerprint returns a text that is equal for equal values. Tensors are compared by
// their checksums. A tensor without a checksum equals no other.
func (m *merger) fingerprint(f *rankFile, v any) (string, error) {
	inside := torchsave.Inside(func(_ []string, t *torchsave.Tensor) (any, error) {
		if t.Sum == nil {
			return value.Ref{FQN: fmt.Sprint(f.name, t.Offset, viewKey(t))}, nil
		}
		return value.Ref{FQN: fmt.Sprint(t.DType, t.Shape, t.Strides, t.Conj, t.Neg, t.Offset-t.Sum.Offset, t.Sum.End-t.Sum.Offset, t.Sum.CRC)}, nil
	})
	r := value.Replacer{Again: m.again, With: inside}
	v, err := r.Replace(v)
	if err != nil {
		return "", err
	}

	m.again = r.Again
	codec, data, err := value.Encode(v)
	if err != nil {
		return "", err
	}

	sum := sha256.Sum256(data)
	return codec + string(sum[:]), nil
}
