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
	"github.com/cairn-ckpt/cairn/internal/bufpool"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// Verify reads every byte of the checkpoint and checks what can be checked: that
// the chunks tile their tensors and lie inside of their files, that values can be
// decoded, and what the format itself records about its files. progress, if not
// nil, receives the number of bytes that were read, one call at a time.
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

// atOnce is how many files or entries are checked at the same time.
func atOnce() int { return max(2, runtime.GOMAXPROCS(0)) }

// verifier is the state of one call of Verify.
type verifier struct {
	c     *Checkpoint
	found *findings
	md    *meta.Metadata       // nil if it is damaged
	held  map[string][]ChunkID // the chunks and values in each file

	mu    sync.Mutex
	whole map[string]*damage      // files that cannot be read, or end too early; guarded by mu
	known map[*meta.Location]bool // the chunks that were found with their files; guarded by mu until all files are checked
}

// damage is what is wrong with a file as a whole.
type damage struct {
	text  string
	names []string
}

// sortByFile sorts the chunks and values by the files that hold them.
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
	// Size is the size that the file has. Scan sets it.
	Size int64
	// Metadata describes the checkpoint. Nil: it is damaged.
	Metadata *meta.Metadata
	// Chunks are the chunks and values that the file holds.
	Chunks []ChunkID
	v      *verifier
}

// Scan reads the file. see, if not nil, is called with all bytes in order; at is
// the offset of p.
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

// Found reports the place of a chunk, so that Verify does not call Source.Chunk
// for it.
func (f *FileCheck) Found(id ChunkID, at Chunk) {
	if _, err := f.v.c.layout(id, at); err != nil {
		return // entry reports it
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

// someEntries is how many entries are checked by one goroutine: most need little
// work.
const someEntries = 64

// entries checks what the metadata says of all names.
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

// entry checks what the metadata says of one name.
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
		v.found.problem(file, fqn, err.Error())
	}
	return nil
}

// damaged notes a name that cannot be read because of its file. The report has one
// problem for the file, with all such names.
func (v *verifier) damaged(file, fqn, text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.whole[file] == nil {
		v.whole[file] = &damage{text: text}
	}
	v.whole[file].names = append(v.whole[file].names, fqn)
}

// beyond notes a name that lies beyond the end of its file, and reports whether it
// does.
func (v *verifier) beyond(fqn string, l *meta.Location) bool {
	f, ok := v.c.files[l.File]
	if !ok || l.Offset <= f.Size && l.Length <= f.Size-l.Offset {
		return false
	}
	v.damaged(l.File, fqn, fmt.Sprintf("it has %d bytes and ends before the end of its data", f.Size))
	return true
}

// wholeFiles reports what is wrong with files as a whole.
func (v *verifier) wholeFiles() {
	for file, d := range v.whole {
		slices.Sort(d.names)
		v.found.add(storage.VerifyProblem{File: file, FQNs: slices.Compact(d.names), Text: d.text})
	}
}

// describing returns the file that describes the checkpoint.
func (v *verifier) describing() string {
	if len(v.c.src.Files) == 0 {
		return ""
	}
	return v.c.src.Files[0].Name
}

// findings collect the content of a report. Its methods are safe for concurrent use.
type findings struct {
	progress func(bytes int64)

	mu   sync.Mutex
	rep  storage.VerifyReport             // guarded by mu
	gone map[string]storage.VerifyProblem // by file; guarded by mu
}

// newFindings returns an empty report. progress, if not nil, receives the number
// of bytes that were read, one call at a time.
func newFindings(progress func(bytes int64)) *findings {
	return &findings{progress: progress, rep: storage.VerifyReport{Problems: []storage.VerifyProblem{}}, gone: map[string]storage.VerifyProblem{}}
}

// tell reports progress.
func (f *findings) tell(bytes int64) {
	if f.progress == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.progress(bytes)
}

// problem adds what is wrong with a file, or with a name in it.
func (f *findings) problem(file, fqn, text string) {
	f.add(storage.VerifyProblem{File: file, FQN: fqn, Text: text})
}

// add adds a problem.
func (f *findings) add(p storage.VerifyProblem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rep.Problems = append(f.rep.Problems, p)
}

// missing adds that a file does not exist. names are the names that it holds, or
// parts of. The report leaves out all other problems of the file.
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

// report returns the report. Its problems are sorted by file, name and text, so
// that it does not depend on the order of the checks. Nothing may be added later.
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

// Scan reads a whole file, passes its bytes to visit in order and returns its
// size; at is the offset of p. Several pieces are read at the same time, while
// visit looks at the one before. visit must not keep p.
func Scan(ctx context.Context, s blob.Store, name string, visit func(p []byte, at int64)) (size int64, err error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	size = r.Size()
	pool := bufpool.New(maxBytes+2*blob.Align, 0, scanPieces)
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
			pieces <- read // has room for all buffers
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

// scanPieces is how many pieces of a file a scan holds.
const scanPieces = 3

// scanned is a piece of a file, in its buffer. Its bytes are nil if they could not
// be read.
type scanned struct{ buf, bytes []byte }
