package slime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The names of data files: those of saves to a folder that other programs see, with the id
// of the save, and the first of those that slime writes.
var (
	ownFiles  = regexp.MustCompile(`^delta-([0-9A-Za-z][0-9A-Za-z-]*)-[0-9]{5,}-of-[0-9]{5,}\.safetensors$`)
	plainFile = regexp.MustCompile(`^model-[0-9]{5,}-of-[0-9]{5,}\.safetensors$`)
	firstFile = regexp.MustCompile(`^model-0{5,}-of-[0-9]{5,}\.safetensors$`)
)

// Files describes the files of this format that cairn writes.
func Files() *commit.Format {
	return &commit.Format{
		Name: Format{}.Name(), Records: []string{indexName}, Read: readExisting,
		Parse: func(name string) (string, bool) {
			if m := ownFiles.FindStringSubmatch(name); m != nil {
				return m[1], true
			}
			return "", plainFile.MatchString(name)
		},
		Identify: func(_ context.Context, _ blob.Store, files []commit.Leftover) ([]commit.Leftover, error) {
			return slices.DeleteFunc(files, func(l commit.Leftover) bool { return l.SaveID == "" }), nil
		},
	}
}

// readExisting describes the delta version in a folder.
func readExisting(ctx context.Context, s blob.Store) (*commit.Existing, error) {
	is, err := IsDelta(ctx, s)
	if err != nil {
		return nil, err
	}
	if !is {
		return nil, storage.ErrNotFound
	}

	e := &commit.Existing{Files: []string{indexName}}
	b, err := blob.ReadAll(ctx, s, indexName, maxIndex)
	if err != nil {
		return e, err
	}

	x, err := decodeIndex(b)
	if err == nil {
		for _, file := range x.WeightMap {
			e.Files = append(e.Files, file)
		}
		slices.Sort(e.Files[1:])
		e.Files = slices.Compact(e.Files)
	}

	e.Replaced = e.Files
	return e, err
}

// writer writes a delta version. Each rank has its own. A rank writes the tensors that it
// holds as a whole, packed into files. It reads each tensor of the version before, encodes the
// difference in memory and writes a file when all differences of the file are encoded. The
// index is the record.
//
// The format holds differences to tensors of the version before. All other entries are
// refused with storage.ErrNotRepresentable before anything is written.
type writer struct {
	*commit.Committer
	store   blob.Store
	f       Format
	most    int64 // packBytes, or less in tests
	divide  func(files []storage.File, held bool) []bool
	version int64
	before  storage.Checkpoint // the version before; nil until PrepareLocalPlan
	md      *meta.Metadata     // of before
}

var (
	_ storage.Writer          = (*writer)(nil)
	_ storage.MetadataChecker = (*writer)(nil)
)

// SetUp begins a save.
func (w *writer) SetUp(ctx context.Context, s storage.Session) error {
	w.divide, s.Divide = s.Divide, nil // files are written one by one
	return errors.Join(w.close(), w.Committer.SetUp(ctx, s))
}

// close closes the version before.
func (w *writer) close() error {
	before := w.before
	if w.before, w.md = nil, nil; before == nil {
		return nil
	}
	return before.Close()
}

// Abort removes the files of this save.
func (w *writer) Abort(ctx context.Context) error {
	return errors.Join(w.Committer.Abort(ctx), w.close())
}

// PrepareLocalPlan returns p, or an error for all items that the version before does not
// have in the same form.
func (w *writer) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	if err := w.openBefore(ctx); err != nil {
		return nil, err
	}
	return w.Prepare(ctx, p, w.representable)
}

// openBefore opens the version before, unless it is open.
func (w *writer) openBefore(ctx context.Context) (err error) {
	if w.before != nil {
		return nil
	}

	near := w.store
	name := ""
	if w.f.Folder != "" {
		near = nil
		_, name = blob.SplitAddress(w.f.Folder)
	} else if _, name, err = blob.Parent(w.store); err != nil {
		return err
	}

	version, ok := ParseFolder(name)
	if !ok || version == 0 {
		return fmt.Errorf("%w: a delta version goes to a folder such as %s, not %q", storage.ErrOptions, Folder(1), name)
	}

	w.version = version
	c := &chain{}
	if err := w.f.extend(ctx, c, version-1, near); err != nil {
		return fmt.Errorf("%s: %w: %w", name, ErrBefore, err)
	}

	switch {
	case len(c.versions) > 0:
		w.before, err = c.open(ctx)
	case c.full != nil:
		w.before = c.full
	default:
		return fmt.Errorf("%s changes version 0: %w", name, ErrBase)
	}
	if err == nil {
		w.md, err = w.before.Metadata(ctx)
	}
	return err
}

// representable returns an error if an item cannot be written.
func (w *writer) representable(it *plan.WriteItem) error {
	why := ""
	e, ok := w.md.Find(it.FQN())
	switch {
	case it.Kind == plan.KindBytes:
		why = "a value that is not a tensor"
	case !it.Box.Equal(tensor.Whole(it.Info.Shape)):
		why = "a part of a tensor: a delta version has whole tensors"
	case !ok:
		why = fmt.Sprintf("version %d does not have it: write a full version, in the format hf", w.version-1)
	case e.Tensor.DType != it.Info.DType || !slices.Equal(e.Tensor.Shape, it.Info.Shape):
		why = fmt.Sprintf("it is %v %v, and %v %v in version %d: write a full version, in the format hf", it.Info.DType, it.Info.Shape, e.Tensor.DType, e.Tensor.Shape, w.version-1)
	case w.f.Encoding == Overwrite && it.NumBytes() > MaxOverwrite:
		why = fmt.Sprintf("%d bytes: the positions of the encoding %s have 32 bits; use %s", it.NumBytes(), Overwrite, XOR)
	default:
		return nil
	}

	return &storage.NotRepresentable{FQN: it.FQN(), Why: why}
}

// numbers is the coordinator's addition to the plans of all ranks: the number of the first
// file of each rank, and the number of all files at the end.
type numbers []int

// PrepareGlobalPlan numbers the files, and refuses a state without a tensor that the version
// before has, or with a tensor of several ranks.
func (w *writer) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	n, of := numbers{0}, map[string]int{}
	var errs []error
	for rank, p := range ps {
		n = append(n, n[rank]+len(w.pack(p)))
		for i := range p.Items {
			name := p.Items[i].FQN()
			if first, twice := of[name]; twice {
				errs = append(errs, &storage.NotRepresentable{FQN: name, Why: fmt.Sprintf("ranks %d and %d would both write it, and receivers would apply it twice", first, rank)})
			}
			of[name] = rank
		}
	}

	for i := range w.md.Entries {
		if name := w.md.Entries[i].FQN; !has(of, name) {
			errs = append(errs, &storage.NotRepresentable{FQN: name, Why: fmt.Sprintf("version %d has it, and a delta version cannot leave it out: write a full version, in the format hf", w.version-1)})
		}
	}

	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return commit.WithStorageData(ps, n)
}

func has(m map[string]int, name string) bool {
	_, ok := m[name]
	return ok
}

// packBytes bounds the bytes of the tensors of a file, unless a single one is larger. All
// differences of a file are in memory before it is written.
const packBytes = 256 << 20

// pack distributes the items of a plan over files, in the order of their names.
func (w *writer) pack(p *plan.SavePlan) [][]*plan.WriteItem {
	items := make([]*plan.WriteItem, len(p.Items))
	for i := range p.Items {
		items[i] = &p.Items[i]
	}

	slices.SortStableFunc(items, func(a, b *plan.WriteItem) int { return strings.Compare(a.FQN(), b.FQN()) })
	var out [][]*plan.WriteItem
	left := int64(0)
	for _, it := range items {
		n := it.NumBytes()
		if len(out) == 0 || n > left {
			out, left = append(out, nil), w.most
		}
		out[len(out)-1] = append(out[len(out)-1], it)
		left -= n
	}

	return out
}

// CheckMetadata refuses planner data.
func (w *writer) CheckMetadata(md *meta.Metadata) error {
	return storage.RefusePlannerData(Format{}.Name(), md)
}

// job is a file to write.
type job struct {
	name  string
	items []*plan.WriteItem
	bytes int64 // of the items
}

// WriteData writes the differences of the plan's items into files of this rank.
func (w *writer) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	var n numbers
	rank := w.Session().Rank
	if err := json.Unmarshal(p.StorageData, &n); err != nil || rank+1 >= len(n) {
		return nil, fmt.Errorf("%w: storage data of the plan: %w", plan.ErrProtocol, err)
	}

	in, err := w.NamePart(ctx)
	if err != nil {
		return nil, err
	}

	prefix := "model-"
	if in != "" {
		prefix = "delta-" + in + "-"
	}

	var jobs []*job
	for i, items := range w.pack(p) {
		j := &job{name: fmt.Sprintf("%s%05d-of-%05d%s", prefix, n[rank]+i, n[len(n)-1], suffix), items: items}
		for _, it := range items {
			j.bytes += it.NumBytes()
		}
		jobs = append(jobs, j)
	}

	if jobs, err = w.mine(jobs); err != nil || len(jobs) == 0 {
		return &storage.WriteResults{}, err
	}

	results := make([]*storage.WriteResults, len(jobs))
	err = work.Each(ctx, len(jobs), writers, func(ctx context.Context, i int) (err error) {
		results[i], err = w.write(ctx, jobs[i], data)
		return err
	})
	if err != nil {
		return nil, err
	}

	out := &storage.WriteResults{}
	for _, r := range results {
		out.Items, out.Files = append(out.Items, r.Items...), append(out.Files, r.Files...)
	}

	return out, nil
}

// writers is the number of files that a rank encodes at the same time.
const writers = 2

// mine returns the files that this process writes.
func (w *writer) mine(jobs []*job) ([]*job, error) {
	if w.divide == nil {
		return jobs, nil
	}

	offer := make([]storage.File, len(jobs))
	for i, j := range jobs {
		offer[i] = storage.File{Name: j.name, Size: j.bytes}
	}

	var out []*job
	for i, ok := range w.divide(offer, false) {
		if ok {
			out = append(out, jobs[i])
		}
	}

	return out, nil
}

// write writes one file, unless all its tensors are unchanged, or it is finished.
func (w *writer) write(ctx context.Context, j *job, data storage.Resolver) (*storage.WriteResults, error) {
	s := w.Session()
	moved := func() {
		if s.Progress != nil {
			s.Progress(j.bytes)
		}
	}
	if s.Journal != nil {
		if r, ok, err := s.Journal.Finished(ctx, j.name); ok || err != nil {
			moved()
			return r, err
		}
	}

	f, results, err := w.encode(ctx, j, data)
	if err != nil {
		return nil, err
	}
	if f == nil {
		moved()
		return &storage.WriteResults{Items: results}, nil
	}
	return w.Write(ctx, []*commit.DataFile{f}, data, j.bytes)
}

// encode encodes the differences of a file. The file is nil if there are none. The results
// of tensors that have not changed have no location.
func (w *writer) encode(ctx context.Context, j *job, data storage.Resolver) (*commit.DataFile, []storage.WriteResult, error) {
	enc, err := newEncoder(w.f.Encoding)
	if err != nil {
		return nil, nil, err
	}

	h := &safetensors.Header{Metadata: map[string]string{}}
	f := &commit.DataFile{Name: j.name, Parts: []commit.Part{{}}}
	results := make([]storage.WriteResult, len(j.items))
	at := int64(0)
	for i, it := range j.items {
		results[i] = storage.WriteResult{Index: it.Index()}
		p, sum, err := w.difference(ctx, enc, it, data)
		if err != nil {
			return nil, nil, plan.Named(it.FQN(), err)
		}
		if p == nil {
			continue
		}

		n := int64(len(p))
		h.Entries = append(h.Entries, safetensors.Entry{Name: it.FQN(), DType: "U8", Shape: []int64{n}, Begin: at, End: at + n})
		h.Metadata[it.FQN()] = sum
		f.Parts = append(f.Parts, commit.Part{Length: n, Literal: p})
		results[i].Loc = meta.Location{File: j.name, Offset: at, Length: n}
		at += n
	}

	if at == 0 {
		return nil, results, nil
	}

	head, err := safetensors.Encode(h, 8)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", j.name, err)
	}

	f.Parts[0] = commit.Part{Length: int64(len(head)), Literal: head}
	for i := range results {
		if results[i].Loc.File != "" {
			results[i].Loc.Offset += int64(len(head))
		}
	}

	f.Results = func() []storage.WriteResult { return results }
	return f, results, nil
}

// difference returns the encoded difference of a tensor, and the checksum of its new state.
// Nil: the tensor has not changed.
func (w *writer) difference(ctx context.Context, enc *encoder, it *plan.WriteItem, data storage.Resolver) ([]byte, string, error) {
	n := int(it.NumBytes())
	enc.was, enc.is = slices.Grow(enc.was[:0], n)[:n], slices.Grow(enc.is[:0], n)[:n]
	old, p := enc.was, enc.is
	if err := read(ctx, data, it, p); err != nil {
		return nil, "", err
	}

	e, _ := w.md.Find(it.FQN()) // PrepareLocalPlan has checked it
	dst, err := tensor.FromBytes(e.Tensor.DType, e.Tensor.Shape, old)
	if err != nil {
		return nil, "", err
	}

	if _, err := readBox(ctx, w.before, e, tensor.Whole(e.Tensor.Shape), dst, 0); err != nil {
		return nil, "", err
	}

	diff := enc.encode(old, p)
	if diff == nil {
		return nil, "", nil
	}
	return diff, sums[w.f.Checksum](p), nil
}

// readBytes is the size of a read of a tensor that is not in memory.
const readBytes = 8 << 20

// read fills p with the bytes of an item.
func read(ctx context.Context, data storage.Resolver, it *plan.WriteItem, p []byte) error {
	d, err := data.Resolve(it)
	if err != nil {
		return err
	}

	switch {
	case d.Stream != nil:
		for at := 0; at < len(p) && err == nil; at += readBytes {
			err = d.Stream.ReadAt(ctx, p[at:min(at+readBytes, len(p))], int64(at))
		}
		return errors.Join(err, d.Stream.Close())
	case d.Tensor == nil || d.Tensor.NumBytes() != int64(len(p)) || d.Tensor.DType() != it.Info.DType:
		return fmt.Errorf("%w: it was planned as %v %v, but is %v now", plan.ErrState, it.Info.DType, it.Box.Sizes, d.Tensor)
	}

	err = d.Tensor.ReadAt(p, 0)
	if d.Release != nil {
		err = errors.Join(err, d.Release())
	}
	return err
}

// Finish writes the index, which makes the version appear.
func (w *writer) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	entries, err := w.Locate(md, results)
	if err != nil {
		return err
	}

	if err := errors.Join(w.CheckMetadata(md), storage.RefuseStorageData(Format{}.Name(), results), w.checkAlone(ctx, results)); err != nil {
		return err
	}

	x := &index{
		Metadata:  description{versionText(w.version), versionText(w.version - 1), w.f.Encoding, compression, w.f.Checksum},
		WeightMap: map[string]string{},
	}
	for i := range entries {
		if loc := &entries[i].Tensor.Locs[0]; loc.File != "" {
			x.WeightMap[entries[i].FQN] = loc.File
		}
	}

	text, err := encodeIndex(x)
	if err != nil {
		return err
	}

	if err := w.Commit(ctx, commit.File{Name: indexName, Data: text}, results); err != nil {
		return err
	}
	return w.close()
}

// encodeIndex returns the text of an index.
func encodeIndex(x *index) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(x); err != nil {
		return nil, err
	}

	if b.Len() > min(maxIndex, math.MaxInt32) {
		return nil, fmt.Errorf("%s would have %d bytes; readers take at most %d", indexName, b.Len(), maxIndex)
	}
	return b.Bytes(), nil
}

// checkAlone returns an error if the folder has data files that are not of this save:
// receivers apply every data file of a folder.
func (w *writer) checkAlone(ctx context.Context, results []*storage.WriteResults) error {
	mine := map[string]bool{}
	for _, r := range results {
		for _, f := range r.Files {
			mine[f.Name] = true
		}
	}

	have, err := (&version{store: w.store}).list(ctx)
	if err != nil {
		return err
	}

	for name := range have {
		if !mine[name] {
			return fmt.Errorf("%w: %s holds %s, which receivers would take for a part of this version: remove it first", storage.ErrExists, w.store, name)
		}
	}

	return nil
}
