// Package view shows a checkpoint in another form: its tensors are parts of the tensors of
// another checkpoint, in other places and under other names, as a recipe says. A read of a
// box reads only the elements that it needs, so conversions, loads by slice, comparisons
// and everything else work on a view as on any checkpoint. The contract is at Open.
package view

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// ErrCheck reports a source with contents that contradict the recipe: padding that is not
// zero, copies of a tensor that differ, or numbers to quantise that are infinite or NaN.
var ErrCheck = errors.New("the contents do not fit the recipe")

// Checkpoint is a checkpoint in another form. It implements storage.Checkpoint.
type Checkpoint struct {
	src     storage.Checkpoint
	srcMD   *meta.Metadata
	binding *recipe.Binding
	md      *meta.Metadata
	storage meta.Storage // of the source
	tensors map[string]*recipe.Tensor
	values  map[string]string // names of the source
	indexes sync.Map          // *meta.Entry of the source → *plan.ChunkIndex

	keptOnce  sync.Once
	keptNames map[string]string // see kept
}

var _ storage.Checkpoint = (*Checkpoint)(nil)

// Open returns the form of src that a recipe, bound to its metadata, describes. Each tensor
// has one chunk. Closing the view closes src.
func Open(ctx context.Context, src storage.Checkpoint, b *recipe.Binding) (*Checkpoint, error) {
	md, err := src.Metadata(ctx)
	if err != nil {
		return nil, err
	}

	c := &Checkpoint{src: src, srcMD: md, binding: b, tensors: map[string]*recipe.Tensor{}, values: map[string]string{}}
	// The step is often a value of the source, which the view may not have.
	if c.storage = src.Storage(); c.storage.Step == nil {
		c.storage.Step = inspect.StateStep(ctx, md, func(ctx context.Context, e *meta.Entry) (string, []byte, error) {
			return storage.ReadValue(ctx, src, e)
		})
	}

	c.md = &meta.Metadata{Storage: c.storage}
	places := map[string]int64{} // of tensors that are the same
	for i := range b.Tensors {
		t := &b.Tensors[i]
		bytes, err := tensor.NumBytes(t.DType, t.Shape)
		if err != nil {
			return nil, plan.Named(t.Name, err)
		}

		c.tensors[t.Name] = t

		// The place says which tensors are the same: it is not a place in a file.
		first := t.Name
		if t.Same != "" {
			first = t.Same
		}
		if _, ok := places[first]; !ok {
			places[first] = int64(i)
		}

		loc := meta.Location{File: c.fileOf(t), Offset: places[first], Length: bytes, Detail: &meta.Detail{Key: first}}
		c.md.Entries = append(c.md.Entries, meta.Entry{FQN: t.Name, Tensor: &meta.Tensor{
			Properties: t.Properties, Shape: t.Shape, Chunks: []tensor.Box{tensor.Whole(t.Shape)}, Locs: []meta.Location{loc},
			Scales: t.Scales,
		}})
	}

	for _, v := range b.Values {
		e, ok := md.Find(v.Source)
		if !ok || e.Bytes == nil {
			return nil, fmt.Errorf("%q is %w", v.Source, plan.ErrMissing)
		}
		c.values[v.Name] = v.Source
		c.md.Entries = append(c.md.Entries, meta.Entry{FQN: v.Name, Bytes: e.Bytes})
	}

	slices.SortFunc(c.md.Entries, func(x, y meta.Entry) int { return strings.Compare(x.FQN, y.FQN) })
	return c, c.md.Validate()
}

// fileOf returns the file that has the first element of a tensor.
func (c *Checkpoint) fileOf(t *recipe.Tensor) string {
	for _, p := range t.Parts {
		if e, ok := c.srcMD.Find(p.Source); ok && len(e.Tensor.Locs) > 0 {
			return e.Tensor.Locs[0].File
		}
	}
	if f := c.src.Files(); len(f) > 0 {
		return f[0].Name
	}
	return "view"
}

// Binding returns the recipe, bound to the source.
func (c *Checkpoint) Binding() *recipe.Binding { return c.binding }

// Source returns the checkpoint that the view shows.
func (c *Checkpoint) Source() storage.Checkpoint { return c.src }

// Storage describes the source. Its step is the step in the state of the source if the
// source does not record one.
func (c *Checkpoint) Storage() meta.Storage { return c.storage }

// Files returns the files of the source.
func (c *Checkpoint) Files() []storage.File { return c.src.Files() }

// TotalBytes returns the bytes of the source.
func (c *Checkpoint) TotalBytes() int64 { return c.src.TotalBytes() }

// Metadata describes the view.
func (c *Checkpoint) Metadata(ctx context.Context) (*meta.Metadata, error) {
	return c.md, context.Cause(ctx)
}

// Find returns an entry of the view.
func (c *Checkpoint) Find(ctx context.Context, fqn string) (*meta.Entry, bool, error) {
	e, ok := c.md.Find(fqn)
	return e, ok, context.Cause(ctx)
}

// CheckHeld checks the files of all tensors that e is made of.
func (c *Checkpoint) CheckHeld(ctx context.Context, e *meta.Entry) error {
	t := c.tensors[e.FQN]
	if t == nil {
		return nil // a value; its bytes are checked when they are read
	}

	return storage.CheckHeld(ctx, c.src, func(yield func(*meta.Entry) bool) {
		for _, p := range t.Parts {
			for _, name := range []string{p.Source, p.Scales} {
				if src, ok := c.srcMD.Find(name); ok && !yield(src) {
					return
				}
			}
		}
	})
}

// CheckFiles checks the files of the source.
func (c *Checkpoint) CheckFiles(ctx context.Context) error { return c.src.CheckFiles(ctx) }

// Verify verifies the source and the contents that the recipe relies on.
func (c *Checkpoint) Verify(ctx context.Context, progress func(bytes int64)) (*storage.VerifyReport, error) {
	rep, err := c.src.Verify(ctx, progress)
	if err != nil || len(rep.Problems) > 0 {
		return rep, err
	}

	if err := c.Check(ctx); errors.Is(err, ErrCheck) {
		rep.Problems = append(rep.Problems, storage.VerifyProblem{Text: err.Error()})
	} else if err != nil {
		return nil, err
	}
	return rep, nil
}

// Close closes the source.
func (c *Checkpoint) Close() error { return c.src.Close() }

// index returns the chunks of a tensor of the source.
func (c *Checkpoint) index(e *meta.Entry) (*plan.ChunkIndex, error) {
	if x, ok := c.indexes.Load(e); ok {
		return x.(*plan.ChunkIndex), nil
	}
	x, err := plan.NewChunkIndex(e, len(e.Tensor.Chunks))
	if err == nil {
		c.indexes.Store(e, x)
	}
	return x, err
}

// Quantized reports whether a name is a tensor that the recipe quantises, or its scales.
func (c *Checkpoint) Quantized(fqn string) bool {
	t := c.tensors[fqn]
	return t != nil && t.Quantized != nil
}

// Describe returns the sources of a name, how it is made of them, and the line of its rule
// in the recipe.
func (c *Checkpoint) Describe(fqn string) (sources []string, operations string, rule int) {
	if source, ok := c.values[fqn]; ok {
		return []string{source}, "same", 0
	}

	t := c.tensors[fqn]
	if t == nil {
		return nil, "", 0
	}

	operations = t.Operations(func(source string) []int64 {
		if e, ok := c.srcMD.Find(source); ok {
			return e.Tensor.Shape
		}
		return nil
	})
	return t.Sources(), operations, t.Rule
}

// refer returns a value of the source, with the names of the view in its references to
// tensors. The error wraps storage.ErrNotRepresentable if the view does not have one of these
// tensors as it is in the source.
func (c *Checkpoint) refer(codec string, data []byte) (string, []byte, error) {
	if codec != value.JSON || !bytes.Contains(data, []byte(`"$ref"`)) {
		return codec, data, nil
	}

	v, err := value.Decode(codec, data)
	if err != nil {
		return "", nil, err
	}

	names := c.kept()
	r := value.Replacer{With: func(_ []string, v any) (any, bool, error) {
		ref, ok := v.(value.Ref)
		if !ok {
			return nil, false, nil
		}

		name, ok := names[ref.FQN]
		if !ok {
			return nil, false, fmt.Errorf("%w: it has the tensor %q inside, which the recipe changes or leaves out: drop the value", storage.ErrNotRepresentable, ref.FQN)
		}

		ref.FQN = name
		return ref, true, nil
	}}
	if v, err = r.Replace(v); err != nil {
		return "", nil, err
	}
	return value.Encode(v)
}

// kept returns the names in the view of the tensors that are the same in the source, by
// their names in the source.
func (c *Checkpoint) kept() map[string]string {
	c.keptOnce.Do(func() {
		c.keptNames = map[string]string{}
		for i := range c.binding.Tensors {
			t := &c.binding.Tensors[i]
			if t.Same != "" || t.Arithmetic() || len(t.Parts) != 1 {
				continue
			}
			e, ok := c.srcMD.Find(t.Parts[0].Source)
			if ok && e.Tensor != nil && e.Tensor.DType == t.DType && slices.Equal(e.Tensor.Shape, t.Shape) && isIdentity(&t.Parts[0]) {
				c.keptNames[e.FQN] = t.Name
			}
		}
	})
	return c.keptNames
}

// isIdentity reports whether a part has each of its elements at the place that it has in the
// source.
func isIdentity(p *recipe.Part) bool {
	if !slices.Equal(p.Map.To, p.Map.From) {
		return false
	}
	for _, a := range p.Map.Axes {
		if a.To != a.From || a.ToStep != a.FromStep {
			return false
		}
	}
	return true
}
