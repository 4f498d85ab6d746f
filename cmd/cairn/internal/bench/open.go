package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// OpenOptions configure the checkpoint to open.
type OpenOptions struct {
	Dir    string
	Chunks int
	// Format is native or torchdcp. Empty: native.
	Format string
	// Keep, if not empty, is a new directory for the checkpoint, which is not
	// removed.
	Keep string
	// Repeat is the number of measurements; the best counts. Zero: 5.
	Repeat int
}

// OpenResult is the cost of opening a checkpoint.
type OpenResult struct {
	Format  string `json:"format"`
	Chunks  int    `json:"chunks"`
	Tensors int    `json:"tensors"`
	// Seconds is the time to open the checkpoint and read its whole index of
	// IndexBytes (the metadata file of torchdcp).
	Seconds    float64 `json:"seconds"`
	IndexBytes int64   `json:"index_bytes"`
	// InspectSeconds also includes the summary that inspect prints.
	InspectSeconds float64 `json:"inspect_seconds"`
	// LookupSeconds and LookupBytes are the time to open the checkpoint and find
	// one name, and the bytes of the index that this reads. Formats without an
	// index read everything.
	LookupSeconds float64 `json:"lookup_seconds"`
	LookupBytes   int64   `json:"lookup_bytes"`
	// RecordBytes is the size of the commit record, which is read in both cases,
	// if the format has one.
	RecordBytes int64 `json:"record_bytes"`
	PeakRSS     int64 `json:"peak_rss_bytes"`
}

// OpenBench measures opening a checkpoint of many chunks: n tensors cut over n
// ranks, where n is about the square root of the number of chunks. Its data files
// do not exist; nothing reads them.
func OpenBench(ctx context.Context, o OpenOptions) (*OpenResult, error) {
	if o.Chunks < 1 {
		return nil, fmt.Errorf("%d chunks: want at least one", o.Chunks)
	}
	o.Repeat = positive(o.Repeat, 5)
	dir := o.Keep
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp(o.Dir, "cairn-bench-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
	} else if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	store, err := file.Open(dir, nil)
	if err != nil {
		return nil, err
	}
	r := &OpenResult{Format: cmp.Or(o.Format, formats.Native)}
	switch r.Format {
	case formats.Native:
		err = r.writeNative(ctx, store, o.Chunks)
	case formats.TorchDCP:
		err = r.writeTorchDCP(ctx, store, dir, o.Chunks)
	default:
		err = fmt.Errorf("%w %q: this is for %s and %s", formats.ErrUnknown, r.Format, formats.Native, formats.TorchDCP)
	}
	if err != nil {
		return nil, err
	}
	for range o.Repeat {
		if err := r.readAll(ctx, store); err != nil {
			return nil, err
		}
		if err := r.lookUp(ctx, store); err != nil {
			return nil, err
		}
	}
	r.PeakRSS = peakRSS()
	return r, nil
}

// many returns the metadata of chunks of 1 KiB and the size of each rank's file.
// A chunk takes overhead more bytes in its file.
func (r *OpenResult) many(chunks int, overhead int64, fileOf func(rank int) string) (*meta.Metadata, []int64) {
	ranks := 1
	for (ranks+1)*(ranks+1) <= chunks {
		ranks++
	}
	now := time.Now().UTC()
	md := &meta.Metadata{Storage: meta.Storage{SaveID: storage.NewSaveID(now, 0), Time: now, WorldSize: ranks, Writer: "cairn bench"}}
	sizes := make([]int64, ranks)
	for left := chunks; left > 0; left -= ranks {
		n := min(left, ranks)
		t := &meta.Tensor{Shape: []int64{int64(n) * 4, 64}}
		t.DType = tensor.Float32
		for i := range n {
			b := tensor.Box{Offsets: []int64{int64(i) * 4, 0}, Sizes: []int64{4, 64}}
			size := b.Volume()*4 + overhead
			t.Chunks = append(t.Chunks, b)
			t.Locs = append(t.Locs, meta.Location{File: fileOf(i), Offset: sizes[i], Length: size})
			sizes[i] += size
			r.Chunks++
		}
		md.Entries = append(md.Entries, meta.Entry{FQN: fmt.Sprintf("model.layers.%06d.weight", r.Tensors), Tensor: t})
		r.Tensors++
	}
	return md, sizes
}

// writeNative writes the index and the record of the checkpoint.
func (r *OpenResult) writeNative(ctx context.Context, s blob.Store, chunks int) error {
	id := storage.NewSaveID(time.Now().UTC(), 0)
	md, sizes := r.many(chunks, 0, func(rank int) string { return native.DataFileName(id, rank, 0) })
	md.Storage.SaveID = id
	n := uint32(0)
	for _, e := range md.Entries {
		for i := range e.Tensor.Locs {
			sums := make([]uint32, native.Sums(e.Tensor.Chunks[i].Sizes, 4))
			for j := range sums {
				sums[j] = n*2654435761 + uint32(j) // incompressible, like real ones
			}
			e.Tensor.Locs[i].Sums = sums
			n++
		}
	}
	files := make([]storage.File, len(sizes))
	for i, size := range sizes {
		files[i] = storage.File{Name: native.DataFileName(id, i, 0), Size: size}
	}
	return native.Commit(ctx, s, md, files)
}

// writeTorchDCP writes the metadata of the checkpoint, and sparse data files of
// the right size.
func (r *OpenResult) writeTorchDCP(ctx context.Context, s blob.Store, dir string, chunks int) error {
	fileOf := func(rank int) string { return fmt.Sprintf("__%d_0.distcp", rank) }
	md, sizes := r.many(chunks, 1024, fileOf) // about the overhead of torch.save
	b, err := dcpfiles.Encode(&dcpfiles.Document{Meta: md, Dialect: dcpfiles.Torch, Version: "1.0.0"})
	if err != nil {
		return err
	}
	for rank, size := range sizes {
		name := filepath.Join(dir, fileOf(rank))
		if err := errors.Join(os.WriteFile(name, nil, 0o644), os.Truncate(name, size)); err != nil {
			return err
		}
	}
	_, err = blob.WriteAll(ctx, s, ".metadata", b, nil)
	return err
}

func (r *OpenResult) readAll(ctx context.Context, s blob.Store) error {
	c, md := (*cairn.Checkpoint)(nil), (*meta.Metadata)(nil)
	took, err := timed(func() (err error) {
		if c, err = cairn.Open(ctx, s); err != nil {
			return err
		}
		md, err = c.Metadata(ctx)
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	r.IndexBytes = c.Files()[0].Size
	var sum *inspect.Summary
	more, _ := timed(func() error { sum = inspect.Summarize(c, md); return nil })
	if sum.Totals.Chunks != int64(r.Chunks) || sum.Totals.Tensors != int64(r.Tensors) {
		return fmt.Errorf("%d chunks of %d tensors; %d of %d were written", sum.Totals.Chunks, sum.Totals.Tensors, r.Chunks, r.Tensors)
	}
	keepLeast(&r.Seconds, took.Seconds())
	keepLeast(&r.InspectSeconds, (took + more).Seconds())
	return nil
}

// keepLeast sets best to v if v is smaller or best is not set.
func keepLeast(best *float64, v float64) {
	if *best == 0 || v < *best {
		*best = v
	}
}

func (r *OpenResult) lookUp(ctx context.Context, s blob.Store) error {
	if r.Format == formats.Native {
		info, err := s.Stat(ctx, "cairn.json")
		if err != nil {
			return err
		}
		r.RecordBytes = info.Size
	}
	m := fault.New(s)
	took, err := timed(func() error {
		c, err := cairn.Open(ctx, m)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Entry(ctx, fmt.Sprintf("model.layers.%06d.weight", r.Tensors/2))
		return err
	})
	keepLeast(&r.LookupSeconds, took.Seconds())
	r.LookupBytes = m.Ops().Bytes(fault.Read) - r.RecordBytes
	return err
}
