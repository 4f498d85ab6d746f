package hf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// commit is the content of cairn-save.json: the save, and what it consists of. The
// headers of the files cannot tell: each describes only its own chunks, so without
// this list a lost file looks like a smaller tensor.
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

// compareFiles returns an error that names every difference between the files and
// those that the commit lists.
func (c *commit) compareFiles(files []*dataFile) error {
	var errs []error
	problem := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %w: %w", storage.ErrCorrupt, ErrSharding, fmt.Errorf(format, args...)))
	}
	have := map[string]bool{}
	for _, f := range files {
		have[f.name] = true
		if size, ok := c.Files[f.name]; !ok {
			problem("%s is not one of the files that %s lists", f.name, commitName)
		} else if size != f.size {
			problem("%s has %d bytes, and %d in %s", f.name, f.size, size, commitName)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		if !have[name] {
			problem("%s is missing: %s lists it", name, commitName)
		}
	}
	return errors.Join(errs...)
}

// compareTensors returns an error that names every tensor that differs from what
// the commit lists.
func (c *commit) compareTensors(entries []meta.Entry) error {
	var errs []error
	problem := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %w: %w", storage.ErrCorrupt, ErrSharding, fmt.Errorf(format, args...)))
	}
	for i := range entries {
		t := entries[i].Tensor
		d, _ := safetensors.DTypeName(t.DType)
		if want, ok := c.Tensors[entries[i].FQN]; !ok || want.DType != d || !slices.Equal(want.Shape, t.Shape) {
			problem("%q is %s %v in the files, and %s %v in %s", entries[i].FQN, d, t.Shape, want.DType, want.Shape, commitName)
		}
	}
	if len(errs) == 0 && len(entries) != len(c.Tensors) {
		problem("the files have %d tensors, %s lists %d", len(entries), commitName, len(c.Tensors))
	}
	return errors.Join(errs...)
}

// readCommitFile reads the commit of the distributed form.
func readCommitFile(ctx context.Context, store blob.Store) (*commit, error) {
	b, err := blob.ReadAll(ctx, store, commitName, maxIndex)
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, commitName, err)
	}
	if err != nil {
		return nil, err
	}
	c := &commit{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, commitName, err)
	}
	return c, nil
}
