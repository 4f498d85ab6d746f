package reading

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// tiles is the read of one span of a chunk that has tiles.
type tiles struct {
	job   *job
	span  *Span
	in    bool     // the bytes are read directly into the receiver's memory
	check Verifier // of the bytes so far; nil before the first bytes
	good  bool     // the bytes have the right checksums
}

var (
	_ Stepper = (*tiles)(nil)
	_ Renewer = (*tiles)(nil)
)

// Renew implements Renewer.
func (t *tiles) Renew() bool {
	t.check = nil
	return !t.good
}

// Step adds the next bytes to the checksums.
func (t *tiles) Step(p []byte) {
	if t.check == nil {
		t.check = t.job.at.Region.Tiles.Verifier(t.span)
	}
	t.check.Step(p)
}

// Take checks the bytes of a span and copies them to the receiver's memory, unless they
// were read into it.
func (t *tiles) Take(p []byte) error {
	j, r := t.job, t.job.at.Region
	if t.check == nil {
		t.Step(p)
	}
	if !t.check.Match() {
		return plan.Named(j.id.Entry.FQN, fmt.Errorf("%w: checksum of %s at %d+%d", storage.ErrCorrupt, j.b.c.src.storedAs(r.File), r.Offset+t.span.Offset, len(p)))
	}

	t.check, t.good = nil, true
	if !t.in {
		if err := r.Tiles.Fill(j.to, j.box, t.span, p); err != nil {
			return plan.Named(j.id.Entry.FQN, err)
		}
	}
	return j.partDone()
}

// boxRead is the read of one box of a region without tiles.
type boxRead struct {
	job    *job
	gap    int64
	box    tensor.Box // relative to the chunk
	to     *tensor.Tensor
	offset int64 // in the file
	width  int64 // of a row
	rows   []Axis
	in     bool   // the bytes are read directly into the receiver's memory
	crc    uint32 // of the bytes that stepper has seen
}

// stepper computes the checksum of a boxRead while its bytes are read.
type stepper struct{ *boxRead }

var _ Stepper = stepper{}

// Step adds the next bytes to the checksum.
func (s stepper) Step(p []byte) { s.crc = crc32.Update(s.crc, crc32.IEEETable, p) }

// addParts plans the reads of a region without tiles.
func (j *job) addParts() (err error) {
	m, r := j.b.limits, j.at.Region
	if j.checked() {
		j.b.records[recordID{r.File, *r.Sum}] = j.id.Entry.FQN
	}
	if r.Resolve != nil {
		m.most = min(m.most, leastBytes) // Take copies each part
	}

	j.lay.cut(j.box, m, func(box tensor.Box) {
		p := &boxRead{job: j, gap: m.gap, box: box, offset: j.lay.offset(box.Offsets)}
		if err == nil {
			p.to, err = j.to.Narrow(box.Relative(j.box.Offsets))
		}
		if err != nil {
			return
		}

		var axes int
		p.width, axes = j.lay.spread(box.Sizes, m.gap)
		p.rows, _ = j.lay.rows(box.Sizes, axes)
		q := Request{File: r.File, Offset: p.offset, Width: p.width, Rows: p.rows, Weight: j.weight(box), To: p}
		p.in = p.rows == nil && r.Resolve == nil && p.width > m.small && p.to.DType() == r.DType && j.lay.flat(box.Sizes) && p.to.Contiguous()
		if p.in {
			q.Direct, _ = p.to.Bytes()
			if j.checked() {
				q.To = stepper{p}
			}
		}

		j.left.Add(1)
		j.b.stats.Rounded += q.Weight
		j.b.requests = append(j.b.requests, q)
	})
	return err
}

// checked reports whether the chunk lies in a record with a checksum.
func (j *job) checked() bool { return j.b.c.sums != nil && j.at.Region.Sum != nil }

// sum adds the bytes of a read, as the store returned them, to the checksum of their
// record.
func (p *boxRead) sum(b []byte) error {
	r, sums := p.job.at.Region, p.job.b.c.sums
	if p.in {
		return sums.add(r.File, r.Sum, p.offset, b, &p.crc)
	}

	if p.rows != nil && p.width < leastRow {
		return nil
	}

	for i := range int64(len(b)) / p.width {
		if err := sums.add(r.File, r.Sum, p.offset+rowOffset(p.rows, i), b[i*p.width:(i+1)*p.width], nil); err != nil {
			return err
		}
	}

	return nil
}

// Take adds the bytes of a read to their checksum and copies them to the receiver's
// memory, unless they were read into it.
func (p *boxRead) Take(b []byte) error {
	r := p.job.at.Region
	if p.job.checked() {
		if err := p.sum(b); err != nil {
			return plan.Named(p.job.id.Entry.FQN, err)
		}
	}

	if r.Resolve != nil {
		b = bytes.Clone(b) // another request may use the same buffer
		r.Resolve(b)
	}

	if !p.in {
		src, err := p.job.lay.view(r.DType, p.box.Sizes, p.gap, b)
		if err == nil {
			err = tensor.Convert(p.to, src, tensor.CastInRange)
		}
		if err != nil {
			err = fmt.Errorf("%s at %d: %w", r.File, p.offset, err)
			if e := p.job.id.Entry; e != nil {
				err = plan.Named(e.FQN, err)
			}
			return err
		}
	}

	return p.job.partDone()
}

// ReadBox reads a box of a chunk into dst and converts it to the dtype of dst. The
// chunk has the given sizes and lies in the region r of a file in store. ReadBox
// returns the number of bytes that it read. It uses at most about budget bytes of
// memory, or 1 MiB if that is more. The error wraps storage.ErrCorrupt if the file is too
// small for the region. Decoders use it.
func ReadBox(ctx context.Context, store blob.Store, r *Region, sizes []int64, box tensor.Box, dst *tensor.Tensor, budget int64) (read int64, err error) {
	if err := box.Check(sizes); err != nil || box.Empty() {
		return 0, err
	}

	c := &Checkpoint{store: store, src: &Source{}}
	f, err := c.openFile(ctx, r.File)
	if err != nil {
		return 0, err
	}
	defer f.Close()

	l, err := layoutOf(r, sizes, f.Size())
	if err != nil {
		return 0, err
	}

	o := storage.ReadOptions{BufferBytes: budget, Parallel: 1}
	b := newBatch(c, nil, o)
	j := &job{b: b, id: ChunkID{Entry: &meta.Entry{}}, box: box, dtype: r.DType, at: Place{Region: r}, lay: l, to: dst}
	if err := j.addParts(); err != nil {
		return 0, err
	}

	st, err := Fetch(ctx, b.requests, FetchOptions{
		Open:        func(context.Context, string) (blob.Reader, error) { return f, nil },
		ReadOptions: o, Gap: b.limits.gap, Slow: b.storeGap > 0,
	})
	return st.Bytes, err
}
