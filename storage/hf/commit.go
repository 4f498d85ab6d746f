package hf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// commit is the content of cairn-save.json: the save, its files and its tensors. The
// header of each file describes only the chunks of that file, so without this list
// a lost file would look like a smaller tensor.
type commit struct {
	saved
	// Files maps the names of all data files to their sizes.
	Files map[string]int64 `json:"files"`
	// Tensors maps the names of all tensors to their types and global shapes.
	Tensors map[string]wholeTensor `json:"tensors"`
}

type wholeTensor struct {
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
}

// noteNoList is the note about files of the distributed form without a list of
// them: those of PyTorch, and of cairn before cairn-save.json had the list.
const noteNoList = "nothing lists the files of this save, so it cannot be checked whether one is missing"

// commitOf returns the commit of a save.
func commitOf(s meta.Storage, entries []meta.Entry, results []*storage.WriteResults) *commit {
	c := &commit{saved: savedOf(s), Files: map[string]int64{}, Tensors: make(map[string]wholeTensor, len(entries))}
	for _, r := range results {
		for _, f := range r.Files {
			c.Files[f.Name] = f.Size
		}
	}
	for i := range entries {
		t := entries[i].Tensor
		d, _ := safetensors.DTypeName(t.DType)
		c.Tensors[entries[i].FQN] = wholeTensor{d, append([]int64{}, t.Shape...)}
	}
	return c
}

// lists reports whether the commit lists the files of its save. Older versions of
// cairn wrote no list.
func (c *commit) lists() bool { return c != nil && len(c.Files) > 0 }

// compareSizes returns the files that have the sizes that the commit lists, and
// adds the others to l.
func (c *commit) compareSizes(files []*dataFile, l reading.Lost) []*dataFile {
	return slices.DeleteFunc(files, func(f *dataFile) bool {
		if f.size == c.Files[f.name] {
			return false
		}
		l[f.name] = reading.Damaged(f.name, "it has %d bytes, and %d in %s", f.size, c.Files[f.name], commitName)
		return true
	})
}

// gatherListed fills in the tensors that the commit lists, with their global
// shapes. If files are lost, those that lack a piece are missing.
func (s *source) gatherListed(files []*dataFile, c *commit, l reading.Lost) error {
	g, err := gather(files)
	if err != nil {
		return err
	}
	var errs []error
	var missing []meta.Missing
	in, why := reason(l)
	for _, name := range slices.Sorted(maps.Keys(c.Tensors)) {
		t, err := g.whole(name, c.Tensors[name])
		switch {
		case err == nil:
			s.md.Entries = append(s.md.Entries, meta.Entry{FQN: name, Tensor: t})
		case len(l) == 0:
			errs = append(errs, reading.Damaged(commitName, "%w: %q: %w", ErrSharding, name, err))
		default:
			missing = append(missing, meta.Missing{FQN: name, File: in, Err: why})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.tensors)) {
		if _, ok := c.Tensors[name]; !ok {
			errs = append(errs, reading.Damaged(commitName, "%w: it does not list %q", ErrSharding, name))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return s.lose(missing, l)
}

// whole returns the tensor of that name. It must agree with the commit.
func (g *gathering) whole(name string, want wholeTensor) (*meta.Tensor, error) {
	t := g.tensors[name]
	if t == nil {
		return nil, errors.New("no piece of it is there")
	}
	if d, _ := safetensors.DTypeName(t.DType); d != want.DType || len(t.Shape) != len(want.Shape) {
		return nil, fmt.Errorf("it is %s %v in the files, and %s %v in %s", d, t.Shape, want.DType, want.Shape, commitName)
	}
	t.Shape = want.Shape
	return t, checkTiles(t)
}

// readCommitFile reads the commit of the distributed form.
func readCommitFile(ctx context.Context, store blob.Store) (*commit, error) {
	b, err := blob.ReadAll(ctx, store, commitName, maxIndex)
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, reading.Damaged(commitName, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	return decodeCommit(b)
}

func decodeCommit(b []byte) (*commit, error) {
	c := &commit{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, reading.Damaged(commitName, "%w", err)
	}
	for name := range c.Files {
		if err := blob.CheckName(name); err != nil || strings.Contains(name, "/") {
			return nil, reading.Damaged(commitName, "the file %q leaves the folder", name)
		}
	}
	return c, nil
}
