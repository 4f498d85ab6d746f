package reading

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

var _ storage.PartVerifier = (*Checkpoint)(nil)

// atOnce returns the number of goroutines that check files or entries.
func atOnce() int { return max(2, runtime.GOMAXPROCS(0)) }

// verifier is the state of one call of Verify.
type verifier struct {
	c        *Checkpoint
	progress func(bytes int64)
	md       *meta.Metadata       // nil if it is damaged
	held     map[string][]ChunkID // the chunks and values in each file
	mine     func(file string) bool
	rest     bool // this part also checks the entries that are in no file

	mu      sync.Mutex
	rep     storage.VerifyReport              // guarded by mu
	gone    map[string]storage.VerifyProblem  // files that do not exist; guarded by mu
	damaged map[string]*storage.VerifyProblem // files that cannot be read or are too short; guarded by mu
	known   map[*meta.Location]bool           // chunks that FileCheck.Found has reported; guarded by mu until all files are checked
}

// update calls change, which may change the fields that mu guards.
func (v *verifier) update(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change()
}

// problem adds a problem of a file, or of a name in it.
func (v *verifier) problem(file, fqn, text string) {
	v.update(func() {
		v.rep.Problems = append(v.rep.Problems, storage.VerifyProblem{File: file, FQN: fqn, Text: text})
	})
}

// report returns the report. If a file does not exist, the report has no other problem
// of that file. The problems are sorted by file, name and text, so that the report does
// not depend on the order of the checks.
func (v *verifier) report() *storage.VerifyReport {
	all := v.rep.Problems
	for _, p := range v.damaged {
		slices.Sort(p.FQNs)
		p.FQNs = slices.Compact(p.FQNs)
		all = append(all, *p)
	}

	all = slices.DeleteFunc(all, func(p storage.VerifyProblem) bool {
		_, gone := v.gone[p.File]
		return gone
	})
	all = slices.AppendSeq(all, maps.Values(v.gone))
	for i := range all {
		all[i].File = v.c.src.storedAs(all[i].File)
	}

	storage.SortProblems(all)
	v.rep.Problems, v.rep.Notes = all, v.c.Storage().Notes
	return &v.rep
}

// FileCheck is the check of one file by Verify. Its methods are safe for
// concurrent use, apart from Scan.
type FileCheck struct {
	File storage.File
	// Size is the current size of the file. Scan sets it.
	Size int64
	// Metadata describes the checkpoint. Nil: it is damaged.
	Metadata *meta.Metadata
	// Chunks are the chunks and values that the file holds.
	Chunks []ChunkID
	v      *verifier
}

// Scan reads the whole file. visit, if not nil, is called with consecutive pieces of it;
// at is the offset of p in the file.
func (f *FileCheck) Scan(ctx context.Context, visit func(p []byte, at int64)) (err error) {
	f.Size, err = Scan(ctx, f.v.c.store, f.File.Name, func(p []byte, at int64) {
		if visit != nil {
			visit(p, at)
		}
		if f.v.progress != nil {
			f.v.update(func() { f.v.progress(int64(len(p))) })
		}
	})
	return err
}

// Problem reports a problem with a name in the file, or with the file as a whole if fqn is
// empty.
func (f *FileCheck) Problem(fqn, text string) { f.v.problem(f.File.Name, fqn, text) }

// Add reports a problem.
func (f *FileCheck) Add(p storage.VerifyProblem) {
	f.v.update(func() { f.v.rep.Problems = append(f.v.rep.Problems, p) })
}

// Found reports the place of a chunk, so that Verify does not call Source.Place for it.
func (f *FileCheck) Found(id ChunkID, at Place) {
	// If the place is wrong, verifier.entry calls Source.Place and reports the error.
	if _, err := f.v.c.layout(id, at); err == nil {
		f.v.update(func() { f.v.known[id.Loc()] = true })
	}
}

// Names returns the names of chunks and values, each once.
func Names(ids []ChunkID) []string {
	var out []string
	for _, id := range ids {
		out = append(out, id.Entry.FQN)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// file reads and checks one file.
func (v *verifier) file(ctx context.Context, file storage.File) (err error) {
	f := &FileCheck{File: file, Metadata: v.md, Chunks: v.held[file.Name], v: v}
	var unsummed int64
	if v.c.src.Check != nil {
		unsummed, err = v.c.src.Check(ctx, f)
	} else {
		err = f.Scan(ctx, nil)
		unsummed = f.Size
	}
	if errors.Is(err, fs.ErrNotExist) {
		text := "the file is gone"
		if len(v.c.src.Bases) > 0 && errors.Is(err, storage.ErrCorrupt) { // it names the base
			text = err.Error()
		}
		v.update(func() { v.gone[file.Name] = storage.VerifyProblem{File: file.Name, FQNs: Names(f.Chunks), Text: text} })
		return nil
	}
	if err != nil {
		return err
	}

	if file.Unsummed && f.Size != file.Size {
		f.Problem("", fmt.Sprintf("it has %d bytes, but had %d when the checkpoint was opened", f.Size, file.Size))
	}
	if err := v.c.checkRepeats(file.Name); err != nil {
		f.Problem("", err.Error())
	}

	v.update(func() {
		v.rep.Files++
		v.rep.Bytes += f.Size
		v.rep.Unsummed += unsummed
	})
	return nil
}

// entries checks the metadata of all entries. One goroutine checks several entries in a
// row, because most entries need little work.
func (v *verifier) entries(ctx context.Context) error {
	parts := slices.Collect(slices.Chunk(v.md.Entries, 64))
	return work.Each(ctx, len(parts), atOnce(), func(ctx context.Context, i int) error {
		for k := range parts[i] {
			if err := v.entry(ctx, &parts[i][k]); err != nil {
				return err
			}
		}
		return nil
	})
}

// entry checks the metadata of one entry: the boxes and the places of its chunks, or its
// value.
func (v *verifier) entry(ctx context.Context, e *meta.Entry) error {
	if e.Bytes != nil {
		return v.value(ctx, e)
	}

	if v.rest {
		v.update(func() { v.rep.Chunks += int64(len(e.Tensor.Chunks)) })
		for _, p := range plan.CheckCoverage(e.Tensor.Shape, e.Tensor.Chunks) {
			v.problem(v.describing(), e.FQN, fmt.Sprintf("%s: %s", p.Kind, p.Text))
		}
	}

	for i, box := range e.Tensor.Chunks {
		loc := &e.Tensor.Locs[i]
		if box.Empty() || !v.mine(loc.File) || v.known[loc] || v.beyond(e.FQN, loc) {
			continue
		}
		_, _, err := v.c.locate(ctx, ChunkID{e, i})
		if err := v.reportIfCorrupt(loc.File, e.FQN, err); err != nil {
			return err
		}
	}

	return nil
}

// value checks that a value can be decoded.
func (v *verifier) value(ctx context.Context, e *meta.Entry) (err error) {
	if e.Bytes.Loc.File != "" && v.rest {
		v.update(func() { v.rep.Chunks++ })
	}
	if !v.mine(e.Bytes.Loc.File) || e.Bytes.Inline != nil || v.beyond(e.FQN, &e.Bytes.Loc) {
		return nil
	}

	if v.c.src.Value != nil {
		_, _, err = v.c.src.Value(ctx, e)
	} else {
		_, _, err = v.c.locate(ctx, ChunkID{Entry: e})
	}
	return v.reportIfCorrupt(e.Bytes.Loc.File, e.FQN, err)
}

// reportIfCorrupt adds an error about the checkpoint to the report and returns nil. It
// returns any other error, such as one of the store. If the whole file is damaged, it
// adds the name to the problem of the file.
func (v *verifier) reportIfCorrupt(file, fqn string, err error) error {
	if errors.Is(err, errRepeats) { // the method file has reported it
		return nil
	}
	if !errors.Is(err, storage.ErrCorrupt) {
		return err
	}

	if f, ok := errors.AsType[*storage.FileError](err); ok && f.File == file {
		v.damage(file, fqn, f.Problem().Text)
	} else {
		v.problem(file, fqn, err.Error())
	}
	return nil
}

// damage records a name that cannot be read because its file is damaged. The report
// has one problem for the file, with all such names.
func (v *verifier) damage(file, fqn, text string) {
	v.update(func() {
		if v.damaged[file] == nil {
			v.damaged[file] = &storage.VerifyProblem{File: file, Text: text}
		}
		v.damaged[file].FQNs = append(v.damaged[file].FQNs, fqn)
	})
}

// beyond reports whether a location extends beyond the end of its file. If so, it
// records the file as damaged.
func (v *verifier) beyond(fqn string, l *meta.Location) bool {
	f, ok := v.c.files[l.File]
	if !ok || l.Offset <= f.Size && l.Length <= f.Size-l.Offset {
		return false
	}
	v.damage(l.File, fqn, fmt.Sprintf("it has %d bytes and ends before the end of its data", f.Size))
	return true
}

// describing returns the name of the file that describes the checkpoint.
func (v *verifier) describing() string {
	if len(v.c.src.Files) == 0 {
		return ""
	}
	return v.c.src.Files[0].Name
}

// Scan reads a whole file and returns its size. It calls visit with consecutive pieces
// of the file, one call at a time; at is the offset of p. It reads the next pieces while
// visit runs. visit must not keep p.
func Scan(ctx context.Context, s blob.Store, name string, visit func(p []byte, at int64)) (size int64, err error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return 0, err
	}
	defer r.Close()

	size = r.Size()
	pool := work.NewPool(maxBytes+2*blob.Align, 0, scanPieces)
	pieces := make(chan chan scanned, scanPieces)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(work.Guard(func() error {
		defer close(pieces)

		for at := int64(0); at < size; at += maxBytes {
			buf, err := pool.Get(gctx)
			if err != nil {
				return err
			}

			read := make(chan scanned, 1)
			pieces <- read // does not block: it has room for one element per buffer
			g.Go(work.Guard(func() error {
				p := scanned{buf: buf}
				defer func() { read <- p }()
				b, err := blob.ReadLarge(gctx, r, buf, at, min(maxBytes, size-at))
				if err == nil {
					p.bytes = b
				}
				return err
			}))
		}

		return nil
	}))

	at, whole := int64(0), true
	for read := range pieces {
		p := <-read
		if whole = whole && p.bytes != nil; whole {
			visit(p.bytes, at)
			at += int64(len(p.bytes))
		}
		pool.Put(p.buf)
	}

	return size, g.Wait()
}

// scanPieces is the number of pieces of a file that Scan holds in memory.
const scanPieces = 3

// scanned is a piece of a file. bytes is a part of buf, or nil if the read failed.
type scanned struct{ buf, bytes []byte }
