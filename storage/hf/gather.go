package hf

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// gathering puts the tensors of several files together.
type gathering struct {
	tensors map[string]*meta.Tensor
}

// gatherIndexed fills in the tensors of files by an index: tensors that the index
// does not name are not part of the checkpoint, and those that it names and that
// are not in their files are missing.
func (s *source) gatherIndexed(files []*dataFile, where weightMap, l reading.Lost) error {
	g := gathering{map[string]*meta.Tensor{}}
	var errs []error
	for _, f := range files {
		for i := range f.header.Entries {
			e := &f.header.Entries[i]
			in, ok := where[e.Name]
			if !ok {
				continue
			}
			if in != f.name {
				errs = append(errs, reading.Damaged(f.name, "%w: it has %q, which the index has in %s", ErrIndex, e.Name, in))
			} else if err := g.add(f, e); err != nil {
				errs = append(errs, err)
			} else if !atOrigin(g.tensors[e.Name].Chunks[0]) {
				errs = append(errs, reading.Damaged(f.name, "%w: %q is only a shard", ErrSharding, e.Name))
			}
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	var missing []meta.Missing
	for name, file := range where {
		if g.tensors[name] != nil {
			continue
		}
		err := l[file]
		if err == nil {
			err = reading.Damaged(file, "%w: the index has %q in it, and it is not there", ErrIndex, name)
		}
		missing = append(missing, meta.Missing{FQN: name, File: file, Err: err})
	}
	var err error
	if s.md.Entries, err = g.entries(); err != nil {
		return err
	}
	return s.lose(missing, l)
}

// gatherAll returns the entries of all tensors of files: of a single one, or of
// several that all say where their chunks lie.
func gatherAll(files []*dataFile) ([]meta.Entry, error) {
	g, err := gather(files)
	if err != nil {
		return nil, err
	}
	return g.entries()
}

// gather puts all tensors of files together.
func gather(files []*dataFile) (*gathering, error) {
	if err := checkTogether(files); err != nil {
		return nil, err
	}
	n := 0
	for _, f := range files {
		n = max(n, len(f.header.Entries))
	}
	g := &gathering{make(map[string]*meta.Tensor, n)}
	var errs []error
	for _, f := range files {
		for i := range f.header.Entries {
			if err := g.add(f, &f.header.Entries[i]); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return g, errors.Join(errs...)
}

// checkTogether refuses files that are no distributed save.
func checkTogether(files []*dataFile) error {
	if len(files) < 2 {
		return nil
	}
	with := slices.IndexFunc(files, func(f *dataFile) bool { return f.sharding != nil })
	without := slices.IndexFunc(files, func(f *dataFile) bool { return f.sharding == nil })
	switch {
	case with >= 0 && without >= 0:
		return fmt.Errorf("%w: %w: %s says where its chunks lie, %s does not", storage.ErrCorrupt, ErrSharding, files[with].name, files[without].name)
	case with < 0:
		return fmt.Errorf("%w: %s and %s, and no index", ErrAmbiguous, files[0].name, files[1].name)
	}
	return nil
}

// add adds one entry of a file.
func (g *gathering) add(f *dataFile, e *safetensors.Entry) error {
	fail := func(err error) error {
		return reading.Damaged(f.name, "%w: %w", ErrSharding, err)
	}
	d, ok := safetensors.TensorDType(e.DType)
	if !ok {
		return fmt.Errorf("%w: %s: %q has the unknown element type %s", storage.ErrVersion, f.name, e.Name, e.DType)
	}
	if err := meta.CheckFQN(e.Name); err != nil {
		return reading.Damaged(f.name, "%w", err)
	}
	box, err := f.boxOf(e)
	if err != nil {
		return fail(err)
	}
	t := g.tensors[e.Name]
	if t == nil {
		t = &meta.Tensor{Properties: meta.Properties{DType: d}, Shape: make([]int64, box.Dims())}
		g.tensors[e.Name] = t
	}
	if t.DType != d || len(t.Shape) != box.Dims() {
		return fail(fmt.Errorf("%q is %v of %d dimensions, and %v of %d in another file", e.Name, d, box.Dims(), t.DType, len(t.Shape)))
	}
	for i := range t.Shape {
		t.Shape[i] = max(t.Shape[i], box.End(i))
	}
	t.Chunks = append(t.Chunks, box)
	t.Locs = append(t.Locs, meta.Location{File: f.name, Offset: f.header.Size + e.Begin, Length: e.End - e.Begin})
	return nil
}

// entries returns what was gathered, in order, if it makes whole tensors.
func (g *gathering) entries() ([]meta.Entry, error) {
	out := make([]meta.Entry, 0, len(g.tensors))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(g.tensors)) {
		t := g.tensors[name]
		if err := checkTiles(t); err != nil {
			errs = append(errs, reading.Damaged(t.Locs[0].File, "%w: %q: %w", ErrSharding, name, err))
		}
		out = append(out, meta.Entry{FQN: name, Tensor: t})
	}
	return out, errors.Join(errs...)
}

// checkTiles orders the chunks of a tensor, and returns an error unless they are
// all of it.
func checkTiles(t *meta.Tensor) error {
	if _, err := tensor.NumBytes(t.DType, t.Shape); err != nil {
		return err
	}
	order(t)
	if p := plan.CheckTiling(t.Shape, t.Chunks); len(p) > 0 {
		return fmt.Errorf("%s: %s", p[0].Kind, p[0].Text)
	}
	return nil
}

// order sorts the chunks of a tensor by their offsets. Those without elements,
// which ranks without a share write, are left out, but for one of a tensor
// without any.
func order(t *meta.Tensor) {
	if len(t.Chunks) == 1 {
		return
	}
	n := make([]int, len(t.Chunks))
	for i := range n {
		n[i] = i
	}
	slices.SortStableFunc(n, func(a, b int) int {
		if e := t.Chunks[a].Empty(); e != t.Chunks[b].Empty() {
			return map[bool]int{false: -1, true: 1}[e]
		}
		return slices.Compare(t.Chunks[a].Offsets, t.Chunks[b].Offsets)
	})
	full := len(n)
	for full > 1 && t.Chunks[n[full-1]].Empty() {
		full--
	}
	chunks, locs := make([]tensor.Box, full), make([]meta.Location, full)
	for to, from := range n[:full] {
		chunks[to], locs[to] = t.Chunks[from], t.Locs[from]
	}
	t.Chunks, t.Locs = chunks, locs
}
