package hf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Open opens the checkpoint of safetensors at the root of store: model.safetensors,
// the files of an index, a single file of any name, or the files of a distributed
// save. It reads only the headers.
func (f Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	if err := storage.RefuseIf(f.DType != tensor.Invalid && !f.Dequantize, "DType has no effect without Dequantize"); err != nil {
		return nil, err
	}

	names := records
	if f.File != "" {
		names = []string{f.File}
	}

	src, err := reading.Watch(ctx, store, names, func(ctx context.Context) (*reading.Source, error) { return f.openSource(ctx, store) })
	if err != nil {
		return nil, err
	}
	return reading.Open(store, src), nil
}

// openSource describes the checkpoint at the root of store.
func (f Format) openSource(ctx context.Context, store blob.Store) (*reading.Source, error) {
	dir, err := list(ctx, store)
	if err != nil {
		return nil, err
	}

	s := &source{store: store, payload: map[string]int64{}}
	files, err := s.read(ctx, dir, f.File)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", store, err)
	}

	if f.Dequantize {
		if err := s.dequantize(ctx, dir, f.DType); err != nil {
			return nil, fmt.Errorf("%s: %w", store, err)
		}
	}

	for _, file := range files {
		s.add(file.name, file.size)
		s.payload[file.name] = file.size - file.header.Size
	}

	return &reading.Source{Metadata: &s.md, Files: s.files, Problems: s.problems, Place: s.chunk, Check: s.check}, nil
}

// source is a checkpoint of safetensors.
type source struct {
	store     blob.Store
	md        meta.Metadata
	files     []storage.File
	quantized map[string]*quantized // by name: the weights that are decoded
	// payload is how many bytes of tensors each file has.
	payload map[string]int64
	// problems describe damaged files, if other files can be read.
	problems []storage.VerifyProblem
}

// read reads the headers of the files of the checkpoint, and fills in their tensors. file is
// the one that the caller asked for, or empty.
func (s *source) read(ctx context.Context, dir *folder, file string) ([]*dataFile, error) {
	if one, ok := blob.As[*blob.Single](s.store); ok && file == "" && !isIndex(one.Name()) {
		return s.alone(ctx, one.Name())
	}

	index, names, err := dir.choose(file)
	switch {
	case err != nil:
		return nil, err
	case index != "":
		return s.indexed(ctx, dir, index)
	case file != "":
		return s.alone(ctx, file)
	}

	return s.listed(ctx, dir, names)
}

// noteAlone is the note about a file that is read without the other files of its
// checkpoint.
const noteAlone = "this file is one of several: tensors in the other files are not shown, and a tensor may be a piece of a larger one"

// alone reads one file as it is, whatever checkpoint it is a part of.
func (s *source) alone(ctx context.Context, name string) ([]*dataFile, error) {
	f, err := readFile(ctx, s.store, name)
	if err != nil {
		return nil, err
	}

	files := []*dataFile{f}
	of, same, err := savesOf(files)
	if err != nil {
		return nil, err
	}

	s.tell(files, of, same)
	if f.sharding != nil || numbered.MatchString(name) {
		s.md.Storage.Notes = append(s.md.Storage.Notes, noteAlone)
		f.sharding = nil
	}
	return files, s.gatherAll(files)
}

// gatherAll fills in all tensors of files.
func (s *source) gatherAll(files []*dataFile) error {
	g, err := gather(files)
	if err == nil {
		s.md.Entries, err = g.entries()
	}
	return err
}

// check is reading.Source.Check: the bytes of tensors have no checksum.
func (s *source) check(ctx context.Context, f *reading.FileCheck) (int64, error) {
	return s.payload[f.File.Name], f.Scan(ctx, nil)
}

// listed reads files that no index names. If the commit of their save lists files,
// it reads those, and tensors that they lack are missing.
func (s *source) listed(ctx context.Context, dir *folder, names []string) ([]*dataFile, error) {
	var c *fileList
	if len(names) == 0 || slices.ContainsFunc(names, sharded.MatchString) {
		var err error
		if c, err = s.readCommit(ctx, dir); err != nil {
			return nil, err
		}
	}

	if c.lists() {
		names = slices.Sorted(maps.Keys(c.Files))
	}

	files, l, err := readFiles(ctx, s.store, names)
	if err != nil {
		return nil, err
	}

	if c.lists() {
		files = c.compareSizes(files, l)
	}

	switch {
	case len(files) == 0 && len(l) == 0:
		return nil, reading.Damaged(commitName, "%w: no file of its save exists", ErrSharding)
	case len(files) == 0 || !c.lists() && len(l) > 0: // the lost names are unknown
		return nil, l.Err()
	}

	if err := s.describe(files, c); err != nil {
		return nil, err
	}
	if c.lists() {
		return files, s.gatherListed(files, c, l)
	}

	if files[0].sharding != nil {
		s.md.Storage.Notes = append(s.md.Storage.Notes, noteNoList)
	}
	return files, s.gatherAll(files)
}

// indexed reads the files that an index names.
func (s *source) indexed(ctx context.Context, dir *folder, name string) ([]*dataFile, error) {
	where, err := readIndex(ctx, s.store, name)
	if err != nil {
		return nil, err
	}

	s.add(name, dir.index[name])
	files, l, err := readFiles(ctx, s.store, slices.Compact(slices.Sorted(maps.Values(where))))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 && len(l) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrIndex, l.Err())
	}

	var c *fileList
	if slices.ContainsFunc(files, func(f *dataFile) bool { return f.sharding != nil }) {
		if c, err = s.readCommit(ctx, dir); err != nil {
			return nil, err
		}
	}

	if err := s.describe(files, c); err != nil {
		return nil, err
	}
	return files, s.gatherIndexed(files, where, l)
}

// lose notes the names that cannot be read and the problems of the files. It returns an error
// if no file can be read.
func (s *source) lose(missing []meta.Missing, l reading.LostFiles) (err error) {
	s.problems, err = l.Note(&s.md, missing, commitName)
	return err
}

func (s *source) add(name string, size int64) {
	s.files = append(s.files, storage.File{Name: name, Size: size, Unsummed: true})
}

// chunk is reading.Source.Place.
func (s *source) chunk(_ context.Context, e *meta.Entry, i int) (reading.Place, error) {
	if q := s.quantized[e.FQN]; q != nil {
		return reading.Place{Decoder: q}, nil
	}
	return reading.Place{Region: regionOf(e, i)}, nil
}

// regionOf returns the region of chunk i of a tensor.
func regionOf(e *meta.Entry, i int) *reading.Region {
	l := &e.Tensor.Locs[i]
	return &reading.Region{File: l.File, Offset: l.Offset, End: l.Offset + l.Length, DType: e.Tensor.DType}
}

// gathering is the tensors of several files, by name.
type gathering map[string]*meta.Tensor

// gatherIndexed fills in the tensors of files by an index: tensors that the index
// does not name are not part of the checkpoint, and files that it names and that
// are not in their files are missing.
func (s *source) gatherIndexed(files []*dataFile, where weightMap, l reading.LostFiles) error {
	g := gathering{}
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
			} else if !atOrigin(g[e.Name].Chunks[0]) {
				errs = append(errs, reading.Damaged(f.name, "%w: %q is only a shard", ErrSharding, e.Name))
			}
		}
	}

	if len(errs) > 0 {
		return errors.Join(errs...)
	}

	var missing []meta.Missing
	for name, file := range where {
		if g[name] != nil {
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

// gather returns all tensors of files: of a single file, or of several files if all headers
// have the places of their chunks.
func gather(files []*dataFile) (gathering, error) {
	if err := checkTogether(files); err != nil {
		return nil, err
	}

	g := gathering{}
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
		return fmt.Errorf("%w: %w: %s has the offsets of its chunks, %s does not", storage.ErrCorrupt, ErrSharding, files[with].name, files[without].name)
	case with < 0:
		return fmt.Errorf("%w: %s and %s, and no index", ErrAmbiguous, files[0].name, files[1].name)
	}

	return nil
}

// add adds one entry of a file.
func (g gathering) add(f *dataFile, e *safetensors.Entry) error {
	d, ok := safetensors.TensorDType(e.DType)
	if !ok {
		return fmt.Errorf("%w: %s: %q has the unknown element type %s", storage.ErrVersion, f.name, e.Name, e.DType)
	}

	if err := meta.CheckFQN(e.Name); err != nil {
		return reading.Damaged(f.name, "%w", err)
	}

	box, err := f.boxOf(e)
	if err != nil {
		return reading.Damaged(f.name, "%w: %w", ErrSharding, err)
	}

	t := g[e.Name]
	if t == nil {
		t = &meta.Tensor{Properties: meta.Properties{DType: d}, Shape: make([]int64, box.Dims())}
		g[e.Name] = t
	}

	if t.DType != d || len(t.Shape) != box.Dims() {
		return reading.Damaged(f.name, "%w: %q is %v of %d dimensions, and %v of %d in another file", ErrSharding, e.Name, d, box.Dims(), t.DType, len(t.Shape))
	}

	for i := range t.Shape {
		t.Shape[i] = max(t.Shape[i], box.End(i))
	}

	t.Chunks = append(t.Chunks, box)
	t.Locs = append(t.Locs, meta.Location{File: f.name, Offset: f.header.Size + e.Begin, Length: e.End - e.Begin})
	return nil
}

// entries returns the gathered tensors, in order, if they are whole.
func (g gathering) entries() ([]meta.Entry, error) {
	out := make([]meta.Entry, 0, len(g))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(g)) {
		t := g[name]
		err := checkTiles(t)
		switch {
		case errors.Is(err, errOverlap) && ofSeveralSaves(t):
			return nil, fmt.Errorf("%w: %q: %w: the files, such as %s, are of several saves of PyTorch to one folder, and do not say which file is of which save; "+
				"move the files of each save to a folder of its own", ErrAmbiguous, name, err, t.Locs[0].File)
		case err != nil:
			errs = append(errs, reading.Damaged(t.Locs[0].File, "%w: %q: %w", ErrSharding, name, err))
		}

		out = append(out, meta.Entry{FQN: name, Tensor: t})
	}

	return out, errors.Join(errs...)
}

// errOverlap reports chunks of a tensor that overlap.
var errOverlap = errors.New("overlap")

// ofSeveralSaves reports whether chunks of t that overlap are explained by several saves of
// PyTorch to one folder: a save leaves the files of an earlier one if it has fewer ranks or
// other numbers of files.
func ofSeveralSaves(t *meta.Tensor) bool {
	other := func(l meta.Location) bool { return l.File != t.Locs[0].File }
	foreign := func(l meta.Location) bool { return !ofPyTorch.MatchString(l.File) }
	return slices.ContainsFunc(t.Locs, other) && !slices.ContainsFunc(t.Locs, foreign)
}

// checkTiles orders the chunks of a tensor, and returns an error unless they are
// all of it.
func checkTiles(t *meta.Tensor) error {
	if _, err := tensor.NumBytes(t.DType, t.Shape); err != nil {
		return err
	}

	if len(t.Chunks) > 1 {
		order(t)
	}

	p := plan.CheckCoverage(t.Shape, t.Chunks)
	if i := slices.IndexFunc(p, func(p plan.Problem) bool { return p.Kind == plan.ProblemOverlap }); i >= 0 {
		return fmt.Errorf("%w: %s", errOverlap, p[i].Text)
	}
	if len(p) > 0 {
		return fmt.Errorf("%s: %s", p[0].Kind, p[0].Text)
	}
	return nil
}

// order sorts the chunks of a tensor by their offsets. It leaves out the chunks without
// elements, which ranks without a share write, but keeps one if there are no others.
func order(t *meta.Tensor) {
	type chunk struct {
		box tensor.Box
		loc meta.Location
	}
	all := make([]chunk, len(t.Chunks))
	for i, box := range t.Chunks {
		all[i] = chunk{box, t.Locs[i]}
	}

	slices.SortStableFunc(all, func(a, b chunk) int { return slices.Compare(a.box.Offsets, b.box.Offsets) })
	first := all[0]
	if all = slices.DeleteFunc(all, func(c chunk) bool { return c.box.Empty() }); len(all) == 0 {
		all = append(all, first)
	}

	t.Chunks, t.Locs = t.Chunks[:0], t.Locs[:0]
	for _, c := range all {
		t.Chunks, t.Locs = append(t.Chunks, c.box), append(t.Locs, c.loc)
	}
}

// describe takes the description of the save from the files, and refuses a save that
// did not finish. Files of different saves have no common description; they are
// refused if each save has a commit of its own. c is the commit in the folder, or
// nil.
func (s *source) describe(files []*dataFile, c *fileList) error {
	of, same, err := savesOf(files)
	if err != nil {
		return err
	}

	for _, save := range of {
		switch {
		case save.Commit == "":
		case c == nil || save.Commit != commitName:
			return fmt.Errorf("%s: %w: no %s: the save did not finish", files[0].name, storage.ErrIncomplete, save.Commit)
		case !same:
			return fmt.Errorf("%w: %w: files of different saves", storage.ErrCorrupt, ErrSharding)
		case c.SaveID != save.SaveID:
			return fmt.Errorf("%s: %w: %s is of the save %q, not of %q, which did not finish",
				files[0].name, storage.ErrIncomplete, commitName, c.SaveID, save.SaveID)
		}
	}

	s.tell(files, of, same)
	return nil
}

// tell takes the description of the save from the files, if it is the same in all.
func (s *source) tell(files []*dataFile, of []saved, same bool) {
	out := &s.md.Storage
	out.Version, out.Tags = Version, tags(files)
	if len(of) != 1 || !same {
		return
	}

	save := of[0]
	out.SaveID, out.Step, out.Time, out.WorldSize, out.Writer = save.SaveID, save.Step, save.Time, save.WorldSize, save.Writer
	if out.Tags == nil && len(save.Tags) > 0 {
		out.Tags = map[string]string{}
	}
	maps.Copy(out.Tags, save.Tags)
}

// readCommit reads cairn-save.json. It returns nil if the file does not exist.
func (s *source) readCommit(ctx context.Context, dir *folder) (*fileList, error) {
	size, ok := dir.other[commitName]
	if !ok {
		return nil, nil
	}

	c, err := readCommitFile(ctx, s.store)
	if err != nil {
		return nil, err
	}

	s.add(commitName, size)
	return c, nil
}

// gatherListed fills in the tensors that the commit lists, with their global
// shapes. If files are lost, tensors that lack a piece are missing.
func (s *source) gatherListed(files []*dataFile, c *fileList, l reading.LostFiles) error {
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

	for _, name := range slices.Sorted(maps.Keys(g)) {
		if _, ok := c.Tensors[name]; !ok {
			errs = append(errs, reading.Damaged(commitName, "%w: it does not list %q", ErrSharding, name))
		}
	}

	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return s.lose(missing, l)
}
