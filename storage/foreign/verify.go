package foreign

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/internal/guard"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
	"github.com/cairn-ckpt/cairn/storage/verify"
)

// Verify reads every byte of the checkpoint and checks what can be checked: that
// the chunks tile their tensors and lie inside of their files, that values can be
// decoded, and what the format itself knows of its files. progress, if not nil,
// is told of the bytes that were read, one call at a time.
func (c *Checkpoint) Verify(ctx context.Context, progress func(bytes int64)) (*storage.VerifyReport, error) {
	v := &verifier{c: c, found: verify.New(progress), known: map[*meta.Location]bool{}}
	for _, p := range c.src.Problems {
		v.found.Add(p)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for _, f := range c.src.Files {
		g.Go(guard.Func(func() error { return v.file(gctx, f) }))
	}
	err := g.Wait()
	if err == nil {
		err = v.entries(ctx)
	}
	if err == nil {
		err = context.Cause(ctx) // cancelled is not done
	}
	v.wholeFiles()
	if err != nil {
		return nil, c.watch.explain(ctx, err)
	}
	rep := v.found.Report()
	if len(rep.Problems) > 0 && c.watch.changed(ctx) {
		return nil, fmt.Errorf("%w: %s", storage.ErrChanged, c.store)
	}
	rep.Notes = c.md.Storage.Notes
	return rep, nil
}

type verifier struct {
	c     *Checkpoint
	found *verify.Findings

	mu    sync.Mutex
	whole map[string]*damage      // files that cannot be read, or end too early; guarded by mu
	known map[*meta.Location]bool // the chunks that were found with their files; guarded by mu until all files are checked
}

// chunk notes that a chunk was found with its file. If it is not sound, entry
// reports why.
func (v *verifier) chunk(id ChunkID, at Chunk) {
	if _, err := v.c.layout(id.Entry, id.N, at); err != nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known[&id.Entry.Tensor.Locs[id.N]] = true
}

// someEntries is how many entries are checked by one goroutine: most need little
// work.
const someEntries = 64

// entries checks what the metadata says of all names.
func (v *verifier) entries(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for some := range slices.Chunk(v.c.md.Entries, someEntries) {
		if gctx.Err() != nil {
			break
		}
		g.Go(guard.Func(func() error {
			for i := range some {
				if err := v.entry(gctx, &some[i]); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	return g.Wait()
}

// damage is what is wrong with a file as a whole.
type damage struct {
	text  string
	names []string
}

// damaged notes a name that cannot be read because of its file: that is one problem,
// whatever the file holds.
func (v *verifier) damaged(file, fqn, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.whole == nil {
		v.whole = map[string]*damage{}
	}
	if v.whole[file] == nil {
		v.whole[file] = &damage{text: text}
	}
	v.whole[file].names = append(v.whole[file].names, fqn)
}

// beyond notes a name that lies beyond the end of its file, and reports whether it
// does.
func (v *verifier) beyond(fqn string, l *meta.Location) bool {
	size, ok := v.c.sizes[l.File]
	if !ok || l.Offset <= size && l.Length <= size-l.Offset {
		return false
	}
	v.damaged(l.File, fqn, fmt.Sprintf("it has %d bytes and ends before the end of its data", size))
	return true
}

// wholeFiles reports what is wrong with files as a whole.
func (v *verifier) wholeFiles() {
	for file, d := range v.whole {
		slices.Sort(d.names)
		v.found.Add(storage.VerifyProblem{File: file, FQNs: slices.Compact(d.names), Text: d.text})
	}
}

// file reads one file and has its format check it.
func (v *verifier) file(ctx context.Context, f storage.File) error {
	size, err := datafile.Scan(ctx, v.c.store, f.Name, func(p []byte, _ int64) { v.found.Tell(int64(len(p))) })
	if errors.Is(err, fs.ErrNotExist) {
		v.found.Gone(f.Name, v.c.namesIn(f.Name))
		return nil
	}
	if err != nil {
		return err
	}
	if size != f.Size {
		v.found.Problem(f.Name, "", fmt.Sprintf("it has %d bytes, and had %d when the checkpoint was opened", size, f.Size))
	}
	if err := v.c.claims(f.Name); err != nil {
		v.found.Problem(f.Name, "", err.Error())
	}
	unsummed := size
	if v.c.src.Check != nil {
		unsummed, err = v.c.src.Check(ctx, f.Name, func(fqn, text string) { v.found.Problem(f.Name, fqn, text) }, v.chunk)
		if err != nil {
			return err
		}
	}
	v.found.File(size, unsummed)
	return nil
}

// entry checks what the metadata says of one name.
func (v *verifier) entry(ctx context.Context, e *meta.Entry) error {
	if e.Bytes != nil {
		return v.value(ctx, e)
	}
	v.found.Chunks(len(e.Tensor.Chunks))
	for _, p := range plan.CheckTiling(e.Tensor.Shape, e.Tensor.Chunks) {
		v.found.Problem(v.describing(), e.FQN, fmt.Sprintf("%s: %s", p.Kind, p.Text))
	}
	for i, box := range e.Tensor.Chunks {
		if box.Empty() || v.known[&e.Tensor.Locs[i]] || v.beyond(e.FQN, &e.Tensor.Locs[i]) {
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
	v.found.Chunks(1)
	if e.Bytes.Inline != nil || v.c.src.Value == nil || v.beyond(e.FQN, &e.Bytes.Loc) {
		return nil
	}
	_, _, err := v.c.src.Value(ctx, e)
	return v.settle(e.Bytes.Loc.File, e.FQN, err)
}

// settle reports an error about the checkpoint as a problem. Errors about a whole
// file are reported with the file.
func (v *verifier) settle(file, fqn string, err error) error {
	if errors.Is(err, errClaims) {
		return nil
	}
	if !errors.Is(err, storage.ErrCorrupt) {
		return err
	}
	if f, ok := errors.AsType[*storage.FileError](err); ok && f.File == file {
		v.damaged(file, fqn, f.Problem().Text)
	} else {
		v.found.Problem(file, fqn, err.Error())
	}
	return nil
}

// describing returns the file that describes the checkpoint.
func (v *verifier) describing() string {
	if len(v.c.src.Files) == 0 {
		return ""
	}
	return v.c.src.Files[0].Name
}

// namesIn returns the names that a file holds, or has a part of.
func (c *Checkpoint) namesIn(file string) []string {
	var names []string
	for i := range c.md.Entries {
		e := &c.md.Entries[i]
		in := func(l meta.Location) bool { return l.File == file }
		if e.Bytes != nil && e.Bytes.Inline == nil && in(e.Bytes.Loc) || e.Tensor != nil && slices.ContainsFunc(e.Tensor.Locs, in) {
			names = append(names, e.FQN)
		}
	}
	return names
}
