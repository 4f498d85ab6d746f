package reading

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// Verify reads every byte of the checkpoint. It checks that the chunks tile their
// tensors and lie inside of their files, that values can be decoded, and what
// Source.Check checks, such as checksums. progress, if not nil, receives the number of
// bytes that were read since the last call. It is not called concurrently.
func (c *Checkpoint) Verify(ctx context.Context, progress func(bytes int64)) (*storage.VerifyReport, error) {
	v := &verifier{c: c, found: newFindings(progress), held: map[string][]ChunkID{}, whole: map[string]*damage{}, known: map[*meta.Location]bool{}}
	for _, p := range c.src.Problems {
		v.found.add(p)
	}
	md, err := c.Metadata(ctx)
	switch {
	case errors.Is(err, storage.ErrCorrupt):
		v.found.problem(v.describing(), "", err.Error())
	case err != nil:
		return nil, err
	default:
		v.md = md
		v.sortByFile()
	}
	err = work.Each(ctx, len(c.src.Files), atOnce(), func(ctx context.Context, i int) error { return v.file(ctx, c.src.Files[i]) })
	if err == nil && v.md != nil {
		err = v.entries(ctx)
	}
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	v.wholeFiles()
	rep := v.found.report()
	if len(rep.Problems) > 0 && c.changed(ctx) {
		return nil, fmt.Errorf("%w: %s", storage.ErrChanged, c.store)
	}
	rep.Notes = c.Storage().Notes
	return rep, nil
}

// atOnce returns the number of goroutines that check files or entries.
func atOnce() int { return max(2, runtime.GOMAXPROCS(0)) }

// verifier is the state of one call of Verify.
type verifier struct {
	c     *Checkpoint
	found *findings
	md    *meta.Metadata       // nil if it is damaged
	held  map[string][]ChunkID // the chunks and values in each file

	mu    sync.Mutex
	whole map[string]*damage      // files that cannot be read or are too short; guarded by mu
	known map[*meta.Location]bool // chunks that FileCheck.Found has reported; guarded by mu until all files are checked
}

// damage describes a file that is damaged as a whole. names are the names that cannot
// be read because of it.
type damage struct {
	text  string
	names []string
}

// sortByFile sets v.held: it groups the chunks and values by file.
func (v *verifier) sortByFile() {
	add := func(id ChunkID) { v.held[id.Loc().File] = append(v.held[id.Loc().File], id) }
	for k := range v.md.Entries {
		e := &v.md.Entries[k]
		switch {
		case e.Tensor != nil:
			for i := range e.Tensor.Locs {
				add(ChunkID{e, i})
			}
		case e.Bytes.Inline == nil:
			add(ChunkID{Entry: e})
		}
	}
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

// Scan reads the whole file. see, if not nil, is called with consecutive pieces of it;
// at is the offset of p in the file.
func (f *FileCheck) Scan(ctx context.Context, see func(p []byte, at int64)) (err error) {
	f.Size, err = Scan(ctx, f.v.c.store, f.File.Name, func(p []byte, at int64) {
		if see != nil {
			see(p, at)
		}
		f.v.found.tell(int64(len(p)))
	})
	return err
}

// Problem reports what is wrong with a name in the file, or with the file as a
// whole if fqn is empty.
func (f *FileCheck) Problem(fqn, text string) { f.v.found.problem(f.File.Name, fqn, text) }

// Add reports a problem.
func (f *FileCheck) Add(p storage.VerifyProblem) { f.v.found.add(p) }

// Found tells Verify the place of a chunk, so that Verify does not call Source.Chunk for
// it.
func (f *FileCheck) Found(id ChunkID, at Chunk) {
	if _, err := f.v.c.layout(id, at); err != nil {
		return // verifier.entry calls Source.Chunk and reports the error
	}
	f.v.mu.Lock()
	defer f.v.mu.Unlock()
	f.v.known[id.Loc()] = true
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
func (v *verifier) file(ctx context.Context, file storage.File) error {
	f := &FileCheck{File: file, Metadata: v.md, Chunks: v.held[file.Name], v: v}
	unsummed, err := v.check(ctx, f)
	if errors.Is(err, fs.ErrNotExist) {
		v.found.missing(file.Name, Names(f.Chunks))
		return nil
	}
	if err != nil {
		return err
	}
	if file.Unsummed && f.Size != file.Size {
		f.Problem("", fmt.Sprintf("it has %d bytes, and had %d when the checkpoint was opened", f.Size, file.Size))
	}
	if err := v.c.claims(file.Name); err != nil {
		f.Problem("", err.Error())
	}
	v.found.file(f.Size, unsummed)
	return nil
}

func (v *verifier) check(ctx context.Context, f *FileCheck) (unsummed int64, err error) {
	if v.c.src.Check != nil {
		return v.c.src.Check(ctx, f)
	}
	err = f.Scan(ctx, nil)
	return f.Size, err
}

// someEntries is the number of entries that one goroutine checks in a row: most entries
// need little work.
const someEntries = 64

// entries checks the metadata of all entries.
func (v *verifier) entries(ctx context.Context) error {
	all := v.md.Entries
	return work.Each(ctx, (len(all)+someEntries-1)/someEntries, atOnce(), func(ctx context.Context, i int) error {
		for k := i * someEntries; k < min((i+1)*someEntries, len(all)); k++ {
			if err := v.entry(ctx, &all[k]); err != nil {
				return err
			}
		}
		return nil
	})
}

// entry checks the metadata of one entry: the tiling and the places of its chunks, or
// its value.
func (v *verifier) entry(ctx context.Context, e *meta.Entry) error {
	if e.Bytes != nil {
		return v.value(ctx, e)
	}
	v.found.chunks(len(e.Tensor.Chunks))
	for _, p := range plan.CheckTiling(e.Tensor.Shape, e.Tensor.Chunks) {
		v.found.problem(v.describing(), e.FQN, fmt.Sprintf("%s: %s", p.Kind, p.Text))
	}
	for i, box := range e.Tensor.Chunks {
		loc := &e.Tensor.Locs[i]
		if box.Empty() || v.known[loc] || v.beyond(e.FQN, loc) {
			continue
		}
		_, _, err := v.c.locate(ctx, ChunkID{e, i})
		if err := v.settle(loc.File, e.FQN, err); err != nil {
			return err
		}
	}
	return nil
}

// value checks that a value can be decoded.
func (v *verifier) value(ctx context.Context, e *meta.Entry) (err error) {
	if e.Bytes.Loc.File != "" {
		v.found.chunks(1)
	}
	if e.Bytes.Inline != nil || v.beyond(e.FQN, &e.Bytes.Loc) {
		return nil
	}
	if v.c.src.Value != nil {
		_, _, err = v.c.src.Value(ctx, e)
	} else {
		_, _, err = v.c.locate(ctx, ChunkID{Entry: e})
	}
	return v.settle(e.Bytes.Loc.File, e.FQN, err)
}

// settle adds an error about the checkpoint to the report and returns nil. It returns
// any other error, such as one of the store. If the whole file is damaged, it adds the
// name to the problem of the file.
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
		v.found.problem(file, fqn, err.Error())
	}
	return nil
}

// damaged records a name that cannot be read because its file is damaged. The report
// has one problem for the file, with all such names.
func (v *verifier) damaged(file, fqn, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.whole[file] == nil {
		v.whole[file] = &damage{text: text}
	}
	v.whole[file].names = append(v.whole[file].names, fqn)
}

// beyond reports whether a location extends beyond the end of its file. If so, it
// records the file as damaged.
func (v *verifier) beyond(fqn string, l *meta.Location) bool {
	f, ok := v.c.files[l.File]
	if !ok || l.Offset <= f.Size && l.Length <= f.Size-l.Offset {
		return false
	}
	v.damaged(l.File, fqn, fmt.Sprintf("it has %d bytes and ends before the end of its data", f.Size))
	return true
}

// wholeFiles adds the files of v.whole to the report.
func (v *verifier) wholeFiles() {
	for file, d := range v.whole {
		slices.Sort(d.names)
		v.found.add(storage.VerifyProblem{File: file, FQNs: slices.Compact(d.names), Text: d.text})
	}
}

// describing returns the name of the file that describes the checkpoint.
func (v *verifier) describing() string {
	if len(v.c.src.Files) == 0 {
		return ""
	}
	return v.c.src.Files[0].Name
}

// findings collects a report. Its methods are safe for concurrent use.
type findings struct {
	progress func(bytes int64)

	mu   sync.Mutex
	rep  storage.VerifyReport             // guarded by mu
	gone map[string]storage.VerifyProblem // by file; guarded by mu
}

// newFindings returns an empty report. progress, if not nil, is not called
// concurrently.
func newFindings(progress func(bytes int64)) *findings {
	return &findings{progress: progress, rep: storage.VerifyReport{Problems: []storage.VerifyProblem{}}, gone: map[string]storage.VerifyProblem{}}
}

func (f *findings) tell(bytes int64) {
	if f.progress == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.progress(bytes)
}

// problem adds a problem of a file, or of a name in it.
func (f *findings) problem(file, fqn, text string) {
	f.add(storage.VerifyProblem{File: file, FQN: fqn, Text: text})
}

func (f *findings) add(p storage.VerifyProblem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rep.Problems = append(f.rep.Problems, p)
}

// missing records that a file does not exist. names are the names of which it held
// chunks or values. The report then has no other problem of the file.
func (f *findings) missing(file string, names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone[file] = storage.VerifyProblem{File: file, FQNs: names, Text: "the file is gone"}
}

// chunks counts chunks and values that were checked.
func (f *findings) chunks(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rep.Chunks += int64(n)
}

// file counts a file that was read, and the bytes of it that have no checksum.
func (f *findings) file(bytes, unsummed int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rep.Files++
	f.rep.Bytes += bytes
	f.rep.Unsummed += unsummed
}

// report returns the report. It sorts the problems by file, name and text, so that the
// report does not depend on the order of the checks. Nothing may be added later.
func (f *findings) report() *storage.VerifyReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rep.Problems = slices.DeleteFunc(f.rep.Problems, func(p storage.VerifyProblem) bool {
		_, gone := f.gone[p.File]
		return gone
	})
	f.rep.Problems = slices.AppendSeq(f.rep.Problems, maps.Values(f.gone))
	slices.SortFunc(f.rep.Problems, func(a, b storage.VerifyProblem) int {
		return cmp.Or(strings.Compare(a.File, b.File), strings.Compare(a.FQN, b.FQN), strings.Compare(a.Text, b.Text))
	})
	return &f.rep
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
