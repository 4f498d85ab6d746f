package native

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/internal/guard"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/verify"
)

// Verify reads every byte of the checkpoint and checks it: the index against
// the record, the chunks against their tensors, every file and every chunk
// against their checksums, the data files' headers against the index. All that
// is wrong is in the report; the error is for what could not be checked at all.
// progress, if not nil, is told of the bytes that were read, one call at a time.
func (c *Checkpoint) Verify(ctx context.Context, progress func(bytes int64)) (*storage.VerifyReport, error) {
	v := &verifier{c: c, items: map[string][]*scanItem{}, keys: map[string]map[string]bool{}, found: verify.New(progress)}
	md, err := c.Metadata(ctx)
	if errors.Is(err, storage.ErrCorrupt) {
		v.problem(c.rec.Files[0].Name, "", "%v", err)
	} else if err != nil {
		return nil, err
	} else {
		v.md = md
		v.collect(md)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for _, f := range c.rec.Files {
		g.Go(guard.Func(func() error { return v.file(gctx, f) }))
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return v.found.Report(), nil
}

// TotalBytes returns the bytes that Verify reads.
func (c *Checkpoint) TotalBytes() int64 {
	var n int64
	for _, f := range c.rec.Files {
		n += f.Size
	}
	return n
}

type verifier struct {
	c     *Checkpoint
	found *verify.Findings
	md    *meta.Metadata             // nil if the index could not be read
	items map[string][]*scanItem     // by file
	keys  map[string]map[string]bool // by file: the keys that the index names
}

func (v *verifier) problem(file, fqn, format string, args ...any) {
	v.found.Problem(file, fqn, fmt.Sprintf(format, args...))
}

// collect sorts the chunks by file and checks what needs no bytes.
func (v *verifier) collect(md *meta.Metadata) {
	for i := range md.Entries {
		e := &md.Entries[i]
		if e.Bytes != nil {
			if e.Bytes.Inline == nil {
				v.add(e.FQN, &e.Bytes.Loc, gridOf([]int64{e.Bytes.Size}, 1))
			}
			continue
		}
		for _, p := range plan.CheckTiling(e.Tensor.Shape, e.Tensor.Chunks) {
			v.problem(v.c.rec.Files[0].Name, e.FQN, "%s: %s", p.Kind, p.Text)
		}
		for i, b := range e.Tensor.Chunks {
			v.add(e.FQN, &e.Tensor.Locs[i], gridOf(b.Sizes, int64(e.Tensor.DType.Size())))
		}
	}
	if t := totalsOf(md.Entries); t != v.c.rec.Totals {
		v.problem(recordName, "", "it counts %+v, the index %+v", v.c.rec.Totals, t)
	}
	for _, items := range v.items {
		sortItems(items)
	}
}

func (v *verifier) add(fqn string, loc *meta.Location, g grid) {
	v.found.Chunks(1)
	if loc.Length != g.total || int64(len(loc.Sums)) != g.tiles() {
		v.problem(loc.File, fqn, "%d bytes and %d checksums for a chunk of %d and %d", loc.Length, len(loc.Sums), g.total, g.tiles())
		return
	}
	key := fqn
	if loc.Detail != nil {
		key = loc.Detail.Key
	}
	if v.keys[loc.File] == nil {
		v.keys[loc.File] = map[string]bool{}
	}
	v.keys[loc.File][key] = true
	v.items[loc.File] = append(v.items[loc.File], &scanItem{fqn: fqn, loc: loc, grid: g, sums: make([]uint32, g.tiles())})
}

// separate returns the chunks and values of a file, or none where some overlap:
// their checksums cannot be computed in one pass then.
func (v *verifier) separate(file string) []*scanItem {
	items := v.items[file]
	for i := 1; i < len(items); i++ {
		if items[i].loc.Offset < items[i-1].loc.Offset+items[i-1].loc.Length {
			v.problem(file, items[i].fqn, "its bytes overlap those of %q", items[i-1].fqn)
			return nil
		}
	}
	return items
}

// file checks one file of the record.
func (v *verifier) file(ctx context.Context, f recordFile) error {
	items := v.separate(f.Name)
	size, crc, err := scanFile(ctx, v.c.store, f.Name, items, v.found.Tell)
	if err != nil {
		err = goneError(ctx, v.c.store, f.Name, err)
		if errors.Is(err, storage.ErrCorrupt) {
			v.found.Gone(f.Name, namesOf(v.items[f.Name]))
			return nil
		}
		return err
	}
	v.found.File(size, 0)
	bad := slices.DeleteFunc(slices.Clone(items), func(it *scanItem) bool { return slices.Equal(it.sums, it.loc.Sums) })
	if size != f.Size { // one problem, whatever it holds
		text := fmt.Sprintf("it has %d bytes, the record says %d", size, f.Size)
		v.found.Add(storage.VerifyProblem{File: f.Name, FQNs: namesOf(bad), Text: text})
		return nil
	}
	if crc != f.CRC32C {
		text := fmt.Sprintf("its checksum is %08x, the record says %08x", crc, f.CRC32C)
		if names := namesOf(bad); len(names) > 1 { // one problem too
			v.found.Add(storage.VerifyProblem{File: f.Name, FQNs: names, Text: text})
			return nil
		}
		v.found.Problem(f.Name, "", text)
	}
	for _, it := range bad {
		v.problem(f.Name, it.fqn, "checksum of the bytes at %d+%d", it.loc.Offset, it.loc.Length)
	}
	if v.md != nil && strings.HasSuffix(f.Name, dataSuffix) {
		return v.header(ctx, f.Name, items)
	}
	return nil
}

// namesOf returns the names of items, each once.
func namesOf(items []*scanItem) []string {
	var out []string
	for _, it := range items {
		out = append(out, it.fqn)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// header checks that a data file describes itself as the index does.
func (v *verifier) header(ctx context.Context, name string, items []*scanItem) error {
	h, self, err := readHeader(ctx, v.c.store, name)
	if errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrVersion) {
		v.problem(name, "", "%v", err)
		return nil
	}
	if err != nil {
		return goneError(ctx, v.c.store, name, err)
	}
	at := map[string]safetensors.Entry{}
	for _, e := range h.Entries {
		at[e.Name] = e
		if !v.keys[name][e.Name] && !v.isCopy(self.Items[e.Name], e) {
			v.problem(name, e.Name, "the header names it, the index does not")
		}
	}
	for _, it := range items {
		key := it.fqn
		if it.loc.Detail != nil {
			key = it.loc.Detail.Key
		}
		e, ok := at[key]
		if !ok || h.Size+e.Begin != it.loc.Offset || e.End-e.Begin != it.loc.Length {
			v.problem(name, it.fqn, "the index places it at %d+%d, the header does not", it.loc.Offset, it.loc.Length)
		}
	}
	return nil
}

// isCopy reports whether an entry of a header is a copy of what the index has in
// another file, as plan.EveryHolder makes them.
func (v *verifier) isCopy(it selfItem, he safetensors.Entry) bool {
	e, err := it.entry(he, meta.Location{Length: he.End - he.Begin})
	if err != nil {
		return false
	}
	have, ok := v.md.Find(e.FQN)
	switch {
	case !ok || (have.Tensor == nil) != (e.Tensor == nil):
		return false
	case e.Tensor == nil:
		return have.Bytes.Codec == e.Bytes.Codec && have.Bytes.Size == e.Bytes.Size
	}
	box := e.Tensor.Chunks[0]
	i, ok := have.Tensor.FindChunk(box.Offsets, it.Chunk)
	return ok && have.Tensor.Chunks[i].Equal(box) && have.Tensor.Properties == e.Tensor.Properties
}
