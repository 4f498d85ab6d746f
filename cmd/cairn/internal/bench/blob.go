package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

// BlobOptions configure the measurement of an object storage service.
type BlobOptions struct {
	// Store is a place in the service. The benchmark uses a folder of its own there and
	// removes it.
	Store   blob.Store
	Bytes   int64
	Streams []int
	// Repeat is the number of rounds. The best of each figure counts. Zero: 3.
	Repeat int
	Log    logFunc
}

// BlobResult compares uploads and downloads with plain requests for the same bytes in the
// same run. Rates are in 10^9 bytes a second.
type BlobResult struct {
	Address string    `json:"path"`
	Bytes   int64     `json:"bytes"`
	Repeat  int       `json:"repeat"`
	Plain   string    `json:"plain"` // describes the plain requests
	Rows    []blobRow `json:"rows"`

	BestPlainPut float64 `json:"best_plain_put_gbs"`
	BestPut      float64 `json:"best_put_gbs"`
	PutRatio     float64 `json:"put_ratio"`
	BestPlainGet float64 `json:"best_plain_get_gbs"`
	BestGet      float64 `json:"best_get_gbs"`
	GetRatio     float64 `json:"get_ratio"`

	BestPlainRanges float64 `json:"best_plain_ranges_gbs"`
	BestRanges      float64 `json:"best_ranges_gbs"`
	RangesRatio     float64 `json:"ranges_ratio"`

	// CoreSeconds is the processor time of this process for 10^9 bytes that are uploaded,
	// and PlainCoreSeconds the time of plain requests: the best of all rows.
	CoreSeconds      float64      `json:"put_core_seconds_per_gb"`
	PlainCoreSeconds float64      `json:"plain_put_core_seconds_per_gb"`
	Traffic          blob.Traffic `json:"traffic"` // of our requests, without those for Cache
	Cache            *BlobCache   `json:"cache"`
}

// blobRow has the figures of a number of streams: requests at the same time. Put compares
// the parts of one object with a plain request for each of as many objects as there are
// streams. Get reads these objects as a whole, and Ranges reads the one object by ranges:
// both by our reader and by plain requests, into the same memory.
type blobRow struct {
	Streams     int     `json:"streams"`
	PlainPut    float64 `json:"plain_put_gbs"`
	Put         float64 `json:"put_gbs"`
	PlainGet    float64 `json:"plain_get_gbs"`
	Get         float64 `json:"get_gbs"`
	PlainRanges float64 `json:"plain_ranges_gbs"`
	Ranges      float64 `json:"ranges_gbs"`
	CoreSeconds float64 `json:"put_core_seconds_per_gb"`
	PlainCores  float64 `json:"plain_put_core_seconds_per_gb"`
}

const (
	// blobPiece is the size of the pieces of an object that are written at once.
	blobPiece = 8 << 20
	// object is the name of the object that is written by parts and read by ranges.
	object = "object"
)

// blobBench is a measurement of a service.
type blobBench struct {
	o       BlobOptions
	service remote.Service
	folder  string // of the keys, with a slash at the end
	name    string
	data    []byte // to send
	into    []byte // to receive
}

// Blob measures uploads and downloads by our store and by plain requests.
func Blob(ctx context.Context, o BlobOptions) (_ *BlobResult, err error) {
	o.Repeat = positive(o.Repeat, 3)
	s, ok := blob.As[*remote.Store](o.Store)
	if !ok {
		return nil, fmt.Errorf("%s is not an object storage service: %w", o.Store, errors.ErrUnsupported)
	}
	service, prefix := s.Service()
	b := &blobBench{o: o, service: service, folder: prefix + "cairn-bench-" + rand.Text()[:8] + "/", name: s.String()}
	o.Log.printf("making %d bytes", 2*o.Bytes)
	b.data, b.into = make([]byte, o.Bytes), make([]byte, o.Bytes)
	touch(b.data, true)
	touch(b.into, false)
	defer func() { err = errors.Join(err, b.clean(context.WithoutCancel(ctx))) }()
	r := &BlobResult{Address: s.String(), Bytes: o.Bytes, Repeat: o.Repeat, Plain: "the SDK with its defaults", Rows: make([]blobRow, len(o.Streams))}
	if _, ok := service.(remote.Plain); !ok {
		r.Plain = "single requests of the driver"
	}
	for round := range o.Repeat {
		o.Log.printf("round %d of %d", round+1, o.Repeat)
		for i, n := range o.Streams {
			if err := b.row(ctx, &r.Rows[i], n, &r.Traffic); err != nil {
				return nil, err
			}
		}
	}
	r.sum()
	o.Log.printf("readers with and without a cache")
	r.Cache, err = b.cache(ctx)
	return r, err
}

// sum fills in the best of all rows.
func (r *BlobResult) sum() {
	for i := range r.Rows {
		row := &r.Rows[i]
		r.BestPlainPut, r.BestPut = max(r.BestPlainPut, row.PlainPut), max(r.BestPut, row.Put)
		r.BestPlainGet, r.BestGet = max(r.BestPlainGet, row.PlainGet), max(r.BestGet, row.Get)
		r.BestPlainRanges, r.BestRanges = max(r.BestPlainRanges, row.PlainRanges), max(r.BestRanges, row.Ranges)
		r.CoreSeconds, r.PlainCoreSeconds = least(r.CoreSeconds, row.CoreSeconds), least(r.PlainCoreSeconds, row.PlainCores)
	}
	r.PutRatio, r.GetRatio, r.RangesRatio = r.BestPut/r.BestPlainPut, r.BestGet/r.BestPlainGet, r.BestRanges/r.BestPlainRanges
}

// least returns the lesser of two figures, of which 0 is unknown.
func least(a, b float64) float64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// row measures each figure of a row once.
func (b *blobBench) row(ctx context.Context, row *blobRow, streams int, sum *blob.Traffic) error {
	row.Streams = streams
	s, err := remote.New(b.service, b.folder, b.name, &remote.Options{Parallel: streams})
	if err != nil {
		return err
	}
	single, err := remote.New(b.service, b.folder, b.name, &remote.Options{Parallel: 1})
	if err != nil {
		return err
	}

	for _, m := range []struct {
		rate, cores *float64
		run         func(context.Context) error
	}{
		{&row.PlainPut, &row.PlainCores, func(ctx context.Context) error { return b.each(ctx, streams, b.plainPut) }},
		{&row.Put, &row.CoreSeconds, func(ctx context.Context) error { return b.put(ctx, s, streams) }},
		{&row.PlainGet, nil, func(ctx context.Context) error { return b.each(ctx, streams, b.plainGet) }},
		{&row.Get, nil, func(ctx context.Context) error {
			return b.each(ctx, streams, func(ctx context.Context, name string, lo, hi int64) error {
				return b.get(ctx, single, name, b.into[lo:hi])
			})
		}},
		{&row.PlainRanges, nil, func(ctx context.Context) error { return b.each(ctx, streams, b.plainRange) }},
		{&row.Ranges, nil, func(ctx context.Context) error { return b.get(ctx, s, object, b.into) }},
	} {
		before := cpuTime()
		took, err := timed(func() error { return m.run(ctx) })
		if err != nil {
			return err
		}
		*m.rate = max(*m.rate, gbs(b.o.Bytes, took))
		if m.cores != nil {
			*m.cores = least(*m.cores, (cpuTime()-before).Seconds()/(float64(b.o.Bytes)/1e9))
		}
	}

	*sum = sum.Add(s.Traffic()).Add(single.Traffic())
	return nil
}

// put writes an object in pieces, of which some are under way at the same time.
func (b *blobBench) put(ctx context.Context, s *remote.Store, streams int) error {
	w, err := s.Create(ctx, object, &blob.CreateOptions{Size: b.o.Bytes, Piece: blobPiece})
	if err != nil {
		return err
	}
	defer w.Abort() // does nothing once committed
	eg, ectx := errgroup.WithContext(ctx)
	eg.SetLimit(streams)
	for off := int64(0); off < b.o.Bytes && ectx.Err() == nil; off += blobPiece {
		eg.Go(func() error { return w.WriteAt(ectx, b.data[off:min(off+blobPiece, b.o.Bytes)], off) })
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	_, err = w.Commit(ctx)
	return err
}

// get reads an object.
func (b *blobBench) get(ctx context.Context, s *remote.Store, name string, p []byte) error {
	r, err := s.OpenKnown(ctx, blob.Info{Name: name, Size: int64(len(p))})
	if err != nil {
		return err
	}
	defer r.Close()
	return r.ReadAt(ctx, p, 0)
}

// each calls fn for each stream at the same time, with the name of its object and its part
// of the bytes.
func (b *blobBench) each(ctx context.Context, streams int, fn func(ctx context.Context, name string, lo, hi int64) error) error {
	eg, ctx := errgroup.WithContext(ctx)
	for i := range streams {
		lo, hi := b.o.Bytes*int64(i)/int64(streams), b.o.Bytes*int64(i+1)/int64(streams)
		eg.Go(func() error { return fn(ctx, fmt.Sprintf("plain-%d-%d", streams, i), lo, hi) })
	}
	return eg.Wait()
}

func (b *blobBench) plainPut(ctx context.Context, name string, lo, hi int64) error {
	if p, ok := b.service.(remote.Plain); ok {
		return p.PlainPut(ctx, b.folder+name, b.data[lo:hi])
	}
	_, err := b.service.Put(ctx, b.folder+name, b.data[lo:hi], crc32c.Checksum(b.data[lo:hi]), remote.Condition{Writer: "bench"})
	return err
}

func (b *blobBench) plainGet(ctx context.Context, name string, lo, hi int64) error {
	if p, ok := b.service.(remote.Plain); ok {
		return p.PlainGet(ctx, b.folder+name, b.into[lo:hi])
	}
	return b.driverGet(ctx, name, b.into[lo:hi], 0)
}

func (b *blobBench) plainRange(ctx context.Context, _ string, lo, hi int64) error {
	if p, ok := b.service.(remote.Plain); ok {
		return p.PlainRange(ctx, b.folder+object, b.into[lo:hi], lo)
	}
	return b.driverGet(ctx, object, b.into[lo:hi], lo)
}

// driverGet makes one request of a driver without plain ones.
func (b *blobBench) driverGet(ctx context.Context, name string, p []byte, off int64) error {
	n, _, err := b.service.Get(ctx, b.folder+name, "", p, off)
	if err == nil && n != len(p) {
		err = fmt.Errorf("%s: %d bytes; want %d", name, n, len(p))
	}
	return err
}

// clean removes the objects of the benchmark.
func (b *blobBench) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, err := remote.New(b.service, b.folder, b.name, nil)
	if err != nil {
		return err
	}
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return err
		}
		if err := s.Remove(ctx, info.Name); err != nil {
			return err
		}
	}
	_, err = s.SweepTemp(ctx, "", 0)
	return err
}
