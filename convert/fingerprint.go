package convert

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/adapter"
	"github.com/cairn-ckpt/cairn/storage/view"
)

// fingerprint identifies a conversion: equal ones write equal files. It covers the source, its
// files and the location of each chunk in them, how a recipe makes tensors of them, the plans of
// all ranks, and the target. If here is not set, it leaves out properties that may differ between
// hosts that see the same source: its path, and the times and inodes of its files.
func fingerprint(ctx context.Context, j *Job, t *Target, here bool) (string, error) {
	f := fingerprinter{h: sha256.New()}
	st := j.md.Storage
	f.text("cairn convert 5", t.Format, t.Details, fmt.Sprint(j.opts.SkipObjects), j.opts.Cast.String(), st.SaveID, st.Version, st.Time.UTC().String(), string(j.md.PlannerData))
	if !here || t.Direct != nil { // the files record it, and files in Direct may be replaced by the same bytes only
		f.text(cairn.Version)
	}

	for v := viewOf(j.src); v != nil; v = viewOf(v.Source()) {
		if err := f.view(ctx, v); err != nil {
			return "", err
		}
	}

	f.numbers(int64(j.ranks))
	if j.step != nil {
		f.text("step")
		f.numbers(*j.step)
	}

	for _, k := range slices.Sorted(maps.Keys(j.tags)) {
		f.text(k, j.tags[k])
	}

	for _, file := range j.src.Files() {
		f.text(file.Name)
		f.numbers(file.Size, int64(file.CRC32C))
	}

	if err := f.source(ctx, j, here); err != nil {
		return "", err
	}

	for _, e := range j.entries {
		f.entry(e)
	}

	for _, p := range localPlans(j.entries, j.ranks) {
		f.plan(p)
	}

	f.flush()
	return hex.EncodeToString(f.h.Sum(nil)), nil
}

// fingerprinter writes to a hash through a buffer, because most values are small
// numbers.
type fingerprinter struct {
	h   hash.Hash
	buf []byte
}

func (f *fingerprinter) flush() {
	f.h.Write(f.buf)
	f.buf = f.buf[:0]
}

func (f *fingerprinter) text(all ...string) {
	for _, s := range all {
		f.numbers(int64(len(s)))
		f.buf = append(f.buf, s...)
	}
}

func (f *fingerprinter) numbers(ns ...int64) {
	if len(f.buf) > 32<<10 {
		f.flush()
	}
	for _, n := range ns {
		f.buf = binary.AppendVarint(f.buf, n)
	}
}

func (f *fingerprinter) entry(e *entry) {
	f.text(e.src.FQN, e.info.FQN, e.info.Codec, fmt.Sprint(e.info.Path == nil, []meta.Step(e.info.Path)), fmt.Sprint(e.info.Properties))
	f.numbers(e.info.Shape...)
	if v := e.value; v != nil {
		f.numbers(v.size)
		f.text(string(v.bytes), v.sum)
		return
	}
	f.tensor(e.src.Tensor)
}

// tensor adds the dtype of a tensor and the location of each chunk.
func (f *fingerprinter) tensor(t *meta.Tensor) {
	f.numbers(int64(t.DType))
	for i, c := range t.Chunks {
		f.numbers(c.Offsets...)
		f.numbers(c.Sizes...)
		if i < len(t.Locs) {
			l := &t.Locs[i]
			f.text(l.File)
			f.numbers(l.Offset, l.Length)
		}
	}
}

// view adds how each tensor is made, and of which bytes. The recipe and its variables do not
// tell it: conditions and layouts depend on the configuration, too.
func (f *fingerprinter) view(ctx context.Context, v *view.Checkpoint) error {
	md, err := v.Source().Metadata(ctx)
	if err != nil {
		return err
	}

	b := v.Binding()
	f.text(b.Recipe.SHA256, b.From, fmt.Sprint(b.Variables))
	for i := range b.Tensors {
		t := &b.Tensors[i]
		f.text(t.Name, t.Same, fmt.Sprint(t.Properties))
		f.numbers(int64(math.Float64bits(t.Add)), int64(math.Float64bits(t.Multiply)), int64(len(t.Parts)))
		if q := t.Quantized; q != nil {
			f.text("quantized", fmt.Sprint(q.Blocks, q.Scales))
		}

		for k := range t.Parts {
			p := &t.Parts[k]
			f.text(p.Source, p.Scales)
			f.numbers(int64(math.Float64bits(p.Value)), p.Blocks.Rows, p.Blocks.Columns)
			f.piece(&p.Map)
		}
	}

	for _, x := range b.Values {
		f.text(x.Name, x.Source)
	}

	for i := range md.Entries {
		if e := &md.Entries[i]; e.Tensor != nil {
			f.text(e.FQN)
			f.tensor(e.Tensor)
		}
	}

	return nil
}

func (f *fingerprinter) piece(p *remap.Piece) {
	f.numbers(p.To...)
	f.numbers(p.From...)
	f.numbers(int64(len(p.Axes)))
	for _, a := range p.Axes {
		f.numbers(a.Size, int64(a.To), int64(a.From), a.ToStep, a.FromStep)
	}
}

func (f *fingerprinter) plan(p *plan.SavePlan) {
	f.numbers(int64(len(p.Items)))
	for i := range p.Items {
		it := &p.Items[i]
		f.text(it.FQN())
		f.numbers(int64(it.Alias))
		f.numbers(it.Box.Offsets...)
		f.numbers(it.Box.Sizes...)
	}
}

const (
	// sampleBytes is the size of a sample of a file without a checksum.
	sampleBytes = 4 << 10
	// maxSamples bounds the number of samples of all files, and fileSamples of
	// one file.
	maxSamples  = 384
	fileSamples = 32
)

// source adds the properties that distinguish the source from another source with files of
// the same names, sizes and times: its path, the inodes of its files, and samples of the
// files that have no checksum.
func (f *fingerprinter) source(ctx context.Context, j *Job, here bool) error {
	if j.opts.Source == nil {
		return nil
	}

	if err := f.files(ctx, j, j.opts.Source, j.src.Files(), here); err != nil {
		return err
	}
	if base, ok := baseOf(j.src); ok {
		return f.files(ctx, j, base.Store, base.Files(), here)
	}
	return nil
}

// files adds the properties of the files in a store.
func (f *fingerprinter) files(ctx context.Context, j *Job, from blob.Store, files []storage.File, here bool) error {
	at, local := whereIs(from)
	if here {
		f.text(at)
	}

	for _, s := range j.seen {
		if s.store != from {
			continue
		}
		f.numbers(s.size)
		if !here {
			continue
		}
		f.numbers(s.time.UnixNano())
		if local {
			f.numbers(s.inode(at)...)
		}
	}

	sums, err := samples(ctx, from, files, j.opts.Parallel)
	for _, sum := range sums {
		f.text(string(sum))
	}

	return err
}

// baseOf returns the base of a checkpoint, or of the checkpoint that a view shows, if that is an
// adapter merged into its base.
func baseOf(c storage.Checkpoint) (adapter.Side, bool) {
	for v := viewOf(c); v != nil; v = viewOf(c) {
		c = v.Source()
	}
	a, ok := c.(*adapter.Checkpoint)
	if !ok {
		return adapter.Side{}, false
	}
	return a.Base(), true
}

// whereIs returns the location of a store without symbolic links, and whether it is
// a path of the file system.
func whereIs(s blob.Store) (string, bool) {
	at := s.String()
	path, err := filepath.EvalSymlinks(at)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return at, false
	}
	return path, true
}

// inode returns the numbers that identify the file in a store at a path, if it is
// the file that was seen.
func (s *seenFile) inode(at string) []int64 {
	path := at // a store may be one file
	if fi, err := os.Stat(at); err == nil && fi.IsDir() {
		path = filepath.Join(at, filepath.FromSlash(s.name))
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Size() != s.size || !fi.ModTime().Equal(s.time) {
		return nil
	}
	return inode(path)
}

// samples returns a digest of some bytes of each of the files that have no checksum. If there are
// more than maxSamples files, it leaves some out.
func samples(ctx context.Context, from blob.Store, of []storage.File, parallel int) ([][]byte, error) {
	var files []string
	for _, f := range of {
		if f.Unsummed {
			files = append(files, f.Name)
		}
	}

	if len(files) == 0 {
		return nil, nil
	}

	each := max(1, min(maxSamples/len(files), fileSamples))
	step := (len(files) + maxSamples - 1) / maxSamples
	sums := make([][]byte, len(files))
	err := work.Each(ctx, (len(files)+step-1)/step, parallel, func(ctx context.Context, i int) (err error) {
		sums[i*step], err = sample(ctx, from, files[i*step], each)
		return err
	})
	return sums, err
}

// sample returns a digest of some blocks of a file, spread from its beginning to
// its end, or of the middle block if blocks is 1.
func sample(ctx context.Context, s blob.Store, name string, blocks int) ([]byte, error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()

	h := sha256.New()
	buf := make([]byte, min(sampleBytes, r.Size()))
	last := r.Size() - int64(len(buf)) // the offset of the last block
	for i := range int64(blocks) {
		off := last / 2
		if blocks > 1 {
			off = last * i / int64(blocks-1)
		}
		if err := r.ReadAt(ctx, buf, off); err != nil {
			return nil, err
		}
		h.Write(buf)
	}

	return h.Sum(nil), nil
}

// seenFile is a file of the source as it was when the conversion was planned.
type seenFile struct {
	store blob.Store
	name  string
	size  int64
	time  time.Time
}

// look returns the sizes and times of the source's files, or nil without a store.
func look(ctx context.Context, s blob.Store, files []storage.File) ([]seenFile, error) {
	if s == nil {
		return nil, nil
	}

	out := make([]seenFile, len(files))
	for i, f := range files {
		info, err := s.Stat(ctx, f.Name)
		if errors.Is(err, fs.ErrNotExist) {
			err = &storage.FileError{File: f.Name, Err: fmt.Errorf("%w: the file is missing", storage.ErrCorrupt)}
		}
		if err != nil {
			return nil, err
		}
		out[i] = seenFile{s, f.Name, info.Size, info.ModTime}
	}

	return out, nil
}
