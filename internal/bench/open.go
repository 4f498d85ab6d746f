package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/meter"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// OpenOptions are the size of a checkpoint to open.
type OpenOptions struct {
	Dir    string
	Chunks int
	// Repeat is how often each figure is taken; the best counts. Zero: 5.
	Repeat int
}

// OpenResult is what opening a checkpoint costs.
type OpenResult struct {
	Chunks  int `json:"chunks"`
	Tensors int `json:"tensors"`
	// Seconds is for opening the checkpoint and reading its whole index.
	Seconds    float64 `json:"seconds"`
	IndexBytes int64   `json:"index_bytes"`
	// LookupSeconds and LookupBytes are for opening it and finding one name:
	// everything that is read of the index.
	LookupSeconds float64 `json:"lookup_seconds"`
	LookupBytes   int64   `json:"lookup_bytes"`
	// RecordBytes is the size of the commit record, read in both cases.
	RecordBytes int64 `json:"record_bytes"`
	PeakRSS     int64 `json:"peak_rss_bytes"`
}

// OpenBench measures opening a checkpoint of many chunks: about the square root
// of their number of tensors, each cut over as many ranks. Its data files do
// not exist; nothing reads them.
func OpenBench(ctx context.Context, o OpenOptions) (*OpenResult, error) {
	if o.Chunks < 1 {
		return nil, fmt.Errorf("%d chunks: want at least one", o.Chunks)
	}
	if o.Repeat <= 0 {
		o.Repeat = 5
	}
	dir, err := os.MkdirTemp(o.Dir, "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	store, err := file.Open(dir, nil)
	if err != nil {
		return nil, err
	}
	r := &OpenResult{}
	if err := r.write(ctx, store, o.Chunks); err != nil {
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
	r.PeakRSS = PeakRSS()
	return r, nil
}

// write writes index and record of the checkpoint.
func (r *OpenResult) write(ctx context.Context, s blob.Store, chunks int) error {
	ranks := 1
	for (ranks+1)*(ranks+1) <= chunks {
		ranks++
	}
	now := time.Now().UTC()
	id := native.NewSaveID(now, 0)
	md := &meta.Metadata{Storage: meta.Storage{SaveID: id, Time: now, WorldSize: ranks, Writer: "cairn bench"}}
	files := make([]storage.File, ranks)
	for i := range files {
		files[i] = storage.File{Name: native.DataFileName(id, i, 0), Size: 4096}
	}
	for left := chunks; left > 0; left -= ranks {
		n := min(left, ranks)
		t := &meta.Tensor{Shape: []int64{int64(n) * 4, 64}}
		t.DType = tensor.Float32
		for i := range n {
			b := tensor.Box{Offsets: []int64{int64(i) * 4, 0}, Sizes: []int64{4, 64}}
			size := b.Volume() * 4
			sums := make([]uint32, native.Sums(b.Sizes, 4))
			for j := range sums {
				sums[j] = uint32(r.Chunks)*2654435761 + uint32(j) // not compressible, as real ones
			}
			t.Chunks = append(t.Chunks, b)
			t.Locs = append(t.Locs, meta.Location{File: files[i].Name, Offset: files[i].Size, Length: size, Sums: sums})
			files[i].Size += size
			r.Chunks++
		}
		md.Entries = append(md.Entries, meta.Entry{FQN: fmt.Sprintf("model.layers.%06d.weight", r.Tensors), Tensor: t})
		r.Tensors++
	}
	return native.Commit(ctx, s, md, files)
}

func (r *OpenResult) readAll(ctx context.Context, s blob.Store) error {
	took, err := timed(func() error {
		c, err := cairn.Open(ctx, s)
		if err != nil {
			return err
		}
		defer c.Close()
		r.IndexBytes = c.Files()[0].Size
		md, err := c.Metadata(ctx)
		if err == nil && len(md.Entries) != r.Tensors {
			err = fmt.Errorf("%d entries; %d were written", len(md.Entries), r.Tensors)
		}
		return err
	})
	if s := took.Seconds(); r.Seconds == 0 || s < r.Seconds {
		r.Seconds = s
	}
	return err
}

func (r *OpenResult) lookUp(ctx context.Context, s blob.Store) error {
	info, err := s.Stat(ctx, "cairn.json")
	if err != nil {
		return err
	}
	r.RecordBytes = info.Size
	m := meter.New(s)
	took, err := timed(func() error {
		c, err := cairn.Open(ctx, m)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Entry(ctx, fmt.Sprintf("model.layers.%06d.weight", r.Tensors/2))
		return err
	})
	if s := took.Seconds(); r.LookupSeconds == 0 || s < r.LookupSeconds {
		r.LookupSeconds = s
	}
	r.LookupBytes = m.Counts().BytesRead - r.RecordBytes
	return err
}
