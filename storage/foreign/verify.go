package foreign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/internal/guard"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
)

// Verify reads every byte of the checkpoint and checks what can be checked: that
// the chunks tile their tensors and lie inside of their files, that values can be
// decoded, and what the format itself knows of its files. progress, if not nil,
// is told of the bytes that were read, one call at a time.
func (c *Checkpoint) Verify(ctx context.Context, progress func(bytes int64)) (*storage.VerifyReport, error) {
	v := &verifier{c: c, progress: progress}
	v.rep.Problems = []storage.VerifyProblem{}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for _, f := range c.src.Files {
		g.Go(guard.Func(func() error { return v.file(gctx, f) }))
	}
	for i := range c.md.Entries {
		if gctx.Err() != nil {
			break
		}
		g.Go(guard.Func(func() error { return v.entry(gctx, &c.md.Entries[i]) }))
	}
	err := g.Wait()
	if err == nil {
		err = context.Cause(ctx) // cancelled is not done
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(v.rep.Problems, func(a, b storage.VerifyProblem) int {
		return cmp.Or(strings.Compare(a.File, b.File), strings.Compare(a.FQN, b.FQN), strings.Compare(a.Text, b.Text))
	})
	return &v.rep, nil
}

type verifier struct {
	c        *Checkpoint
	progress func(int64)

	mu  sync.Mutex
	rep storage.VerifyReport // guarded by mu
}

// tell passes progress on, from whichever file it comes.
func (v *verifier) tell(n int64) {
	if v.progress == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.progress(n)
}

func (v *verifier) problem(file, fqn, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rep.Problems = append(v.rep.Problems, storage.VerifyProblem{File: file, FQN: fqn, Text: text})
}

// file reads one file and has its format check it.
func (v *verifier) file(ctx context.Context, f storage.File) error {
	size, err := datafile.Scan(ctx, v.c.store, f.Name, func(p []byte, _ int64) { v.tell(int64(len(p))) })
	if errors.Is(err, fs.ErrNotExist) {
		v.problem(f.Name, "", "the file is gone")
		return nil
	}
	if err != nil {
		return err
	}
	if size != f.Size {
		v.problem(f.Name, "", fmt.Sprintf("it has %d bytes, and had %d when the checkpoint was opened", size, f.Size))
	}
	var summed int64
	if v.c.src.Check != nil {
		summed, err = v.c.src.Check(ctx, f.Name, func(fqn, text string) { v.problem(f.Name, fqn, text) })
		if err != nil {
			return err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rep.Files++
	v.rep.Bytes += size
	v.rep.Unsummed += max(0, size-summed)
	return nil
}

// entry checks what the metadata says of one name.
func (v *verifier) entry(ctx context.Context, e *meta.Entry) error {
	if e.Bytes != nil {
		return v.value(ctx, e)
	}
	v.count(len(e.Tensor.Chunks))
	for _, p := range plan.CheckTiling(e.Tensor.Shape, e.Tensor.Chunks) {
		v.problem(v.describing(), e.FQN, fmt.Sprintf("%s: %s", p.Kind, p.Text))
	}
	for i, box := range e.Tensor.Chunks {
		if box.Empty() {
			continue
		}
		_, _, err := v.c.locate(ctx, e, i)
		if err := v.settle(e.Tensor.Locs[i].File, e.FQN, err); err != nil {
			return err
		}
	}
	return nil
}

// value checks that a value can be decoded.
func (v *verifier) value(ctx context.Context, e *meta.Entry) error {
	v.count(1)
	if e.Bytes.Inline != nil || v.c.src.Value == nil {
		return nil
	}
	_, _, err := v.c.src.Value(ctx, e)
	return v.settle(e.Bytes.Loc.File, e.FQN, err)
}

// settle makes a problem of an error that is one of the checkpoint.
func (v *verifier) settle(file, fqn string, err error) error {
	if errors.Is(err, storage.ErrCorrupt) {
		v.problem(file, fqn, err.Error())
		return nil
	}
	return err
}

func (v *verifier) count(chunks int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rep.Chunks += int64(chunks)
}

// describing returns the file that describes the checkpoint.
func (v *verifier) describing() string {
	if len(v.c.src.Files) == 0 {
		return ""
	}
	return v.c.src.Files[0].Name
}
