package examples

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	zipRecord = "zip.json" // the metadata; its appearance is the commit
	maxRecord = 64 << 20
)

// zipWriter writes a compressed file for each item. The calls that it does not override
// have no effect.
type zipWriter struct {
	storage.PassWriter
	store   blob.Store
	session storage.Session
	written []string
}

func (w *zipWriter) SetUp(_ context.Context, s storage.Session) error {
	w.session = s
	return nil
}

func (w *zipWriter) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	out := &storage.WriteResults{}
	for i := range p.Items {
		r, err := w.write(ctx, i, &p.Items[i], data)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, r)
	}
	return out, nil
}

// write compresses one item. The size before that is storage data: it goes to the
// coordinator with the result, and into the metadata.
func (w *zipWriter) write(ctx context.Context, i int, it *plan.WriteItem, data storage.Resolver) (storage.WriteResult, error) {
	r := storage.WriteResult{Index: it.Index()}
	content, err := storage.Contents(ctx, data, it)
	if err != nil {
		return r, err
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(content); err != nil {
		return r, err
	}
	if err := z.Close(); err != nil {
		return r, err
	}
	name := fmt.Sprintf("%s-%d-%d.gz", w.session.Storage.SaveID, w.session.Rank, i)
	w.written = append(w.written, name)
	r.Loc = meta.Location{File: name, Length: int64(b.Len())}
	r.Loc.SetStorageData(strconv.AppendInt(nil, int64(len(content)), 10))
	if _, err = blob.WriteAll(ctx, w.store, name, b.Bytes(), nil); err == nil && w.session.Progress != nil {
		w.session.Progress(int64(len(content)))
	}
	return r, err
}

// Finish commits: the store makes the record appear whole or not at all.
func (w *zipWriter) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	located := *md
	var err error
	if located.Entries, err = storage.Locate(md, results); err != nil {
		return err
	}
	b, err := json.Marshal(&located)
	if err != nil {
		return err
	}
	if _, err = blob.WriteAll(ctx, w.store, zipRecord, b, nil); err == nil {
		w.written = nil // they are part of a checkpoint now
	}
	return err
}

// Abort removes the files that this rank wrote.
func (w *zipWriter) Abort(ctx context.Context) error {
	var errs []error
	for _, name := range w.written {
		errs = append(errs, w.store.Remove(ctx, name))
	}
	return errors.Join(errs...)
}

// zipReader reads the files of zipWriter.
type zipReader struct {
	storage.PassReader
	store   blob.Store
	session storage.Session
	md      *meta.Metadata
}

func (r *zipReader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	b, err := blob.ReadAll(ctx, r.store, zipRecord, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", storage.ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	r.md = new(meta.Metadata)
	if err := json.Unmarshal(b, r.md); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, zipRecord, err)
	}
	if err := r.md.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, zipRecord, err)
	}
	return r.md, nil
}

func (r *zipReader) SetUp(_ context.Context, _ *meta.Metadata, s storage.Session) error {
	r.session = s
	return nil
}

// ReadData reads the chunk or value of each item. CopyChunk takes the part of it that the
// item wants, converts it, and hands it to the planner.
func (r *zipReader) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	var stats storage.ReadStats
	for i := range p.Items {
		it := &p.Items[i]
		b, err := r.read(ctx, it.Source)
		if err != nil {
			return stats, fmt.Errorf("%v: %w", it.Source, err)
		}
		n, err := storage.CopyChunk(dst, r.md, it, b)
		if err != nil {
			return stats, err
		}
		stats.Add(storage.ReadStats{Needed: n, Rounded: n, Read: int64(len(b)), Requests: 1})
		if r.session.Progress != nil {
			r.session.Progress(n)
		}
	}
	return stats, nil
}

// read returns the bytes of a chunk or value.
func (r *zipReader) read(ctx context.Context, index meta.Index) ([]byte, error) {
	loc, ok := r.md.Location(index)
	if !ok {
		return nil, plan.ErrMissing
	}
	size, err := strconv.ParseInt(string(loc.StorageData()), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	packed, err := blob.ReadAll(ctx, r.store, loc.File, loc.Length)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	b, err := io.ReadAll(io.LimitReader(z, size+1)) // CopyChunk refuses another size
	if err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	return b, nil
}

func Example_ownStorage() {
	ctx := context.Background()
	store := new(mem.Store)
	rows := shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Shard(0)}}
	err := inproc.Run(ctx, 2, func(ctx context.Context, g group.Group) error {
		w, err := shard.New(rows, []int64{2, 2}, g.Rank(), floats([]int64{1, 2}, float32(g.Rank()), 5))
		if err != nil {
			return err
		}
		state := cairn.State{"w": w, "lr": 0.1}
		_, err = cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g, Writer: &zipWriter{store: store}})
		return err
	})
	check(err)

	state, _, err := cairn.LoadNew(ctx, store, &cairn.LoadOptions{Reader: &zipReader{store: store}})
	check(err)
	fmt.Println(state["lr"], values(state["w"].(*tensor.Tensor)))

	// The second row, converted to another dtype.
	row, err := shard.Empty(rows, tensor.Float64, []int64{2, 2}, 1)
	check(err)
	_, err = cairn.Load(ctx, store, cairn.State{"w": row}, &cairn.LoadOptions{Reader: &zipReader{store: store}})
	check(err)
	numbers, err := tensor.Values[float64](row.Local())
	check(err)
	fmt.Println(numbers)
	// Output:
	// 0.1 [0 5 1 5]
	// [1 5]
}
