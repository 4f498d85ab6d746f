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
}

var _ Stepper = (*tiles)(nil)

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
		return plan.Named(j.id.Entry.FQN, fmt.Errorf("%w: checksum of %s at %d+%d", storage.ErrCorrupt, r.File, r.Offset+t.span.Offset, len(p)))
	}
	t.check = nil
	if !t.in {
		if err := r.Tiles.Fill(j.to, j.box, t.span, p); err != nil {
			return plan.Named(j.id.Entry.FQN, err)
		}
	}
	return j.settle()
}

// part is the read of one box of a region without tiles.
type part struct {
	job *job
	gap int64
	box tensor.Box // relative to the chunk
	to  *tensor.Tensor
	in  bool   // the bytes are read directly into the receiver's memory
	crc uint32 // of the bytes that stepper has seen
}

// stepper is a part whose checksum is computed while its bytes are read.
type stepper struct{ *part }

var _ Stepper = stepper{}

// Step adds the next bytes to the checksum.
func (s stepper) Step(p []byte) { s.crc = crc32.Update(s.crc, crc32.IEEETable, p) }

// partsOf divides the read of an item into parts.
func partsOf(j *job, m measures) ([]*part, error) {
	var parts []*part
	var err error
	if j.at.Region.Resolve != nil {
		m.most = min(m.most, leastBytes) // Take copies each part
	}
	j.lay.cut(j.box, m, func(b tensor.Box) {
		p := &part{job: j, gap: m.gap, box: b}
		if err == nil {
			p.to, err = j.to.Narrow(b.Relative(j.box.Offsets))
		}
		if err == nil {
			p.place(m)
		}
		parts = append(parts, p)
	})
	return parts, err
}

// place sets p.in: whether the bytes can be read directly into the receiver's memory.
func (p *part) place(m measures) {
	lay, r := p.job.lay, p.job.at.Region
	width, axes := lay.spread(p.box.Sizes, p.gap)
	rows, _ := lay.rows(p.box.Sizes, axes)
	p.in = rows == nil && r.Resolve == nil && width > m.small && p.to.DType() == r.DType && lay.flat(p.box.Sizes) && p.to.Contiguous()
}

// request returns the read of a part.
func (p *part) request() Request {
	lay := p.job.lay
	width, axes := lay.spread(p.box.Sizes, p.gap)
	q := Request{File: p.job.at.Region.File, Offset: lay.offset(p.box.Offsets), Width: width, To: p}
	q.Rows, _ = lay.rows(p.box.Sizes, axes)
	if p.in {
		q.Direct, _ = p.to.Bytes()
		if p.checked() {
			q.To = stepper{p}
		}
	}
	return q
}

// checked reports whether the part lies in a record with a checksum.
func (p *part) checked() bool { return p.job.b.c.sums != nil && p.job.at.Region.Sum != nil }

// sum adds the bytes of a part, as the store returned them, to the checksum of their
// record.
func (p *part) sum(b []byte) error {
	lay, r, sums := p.job.lay, p.job.at.Region, p.job.b.c.sums
	width, axes := lay.spread(p.box.Sizes, p.gap)
	rows, n := lay.rows(p.box.Sizes, axes)
	off := lay.offset(p.box.Offsets)
	if p.in {
		return sums.see(r.File, r.Sum, off, b, &p.crc)
	}
	if rows != nil && width < leastRow {
		return nil
	}
	for i := range n {
		if err := sums.see(r.File, r.Sum, off+rowOffset(rows, i), b[i*width:(i+1)*width], nil); err != nil {
			return err
		}
	}
	return nil
}

// Take adds the bytes of a part to their checksum and copies them to the receiver's
// memory, unless they were read into it.
func (p *part) Take(b []byte) error {
	lay, r := p.job.lay, p.job.at.Region
	if p.checked() {
		if err := p.sum(b); err != nil {
			return plan.Named(p.job.id.Entry.FQN, err)
		}
	}
	if r.Resolve != nil {
		b = bytes.Clone(b) // another request may use the same buffer
		r.Resolve(b)
	}
	if !p.in {
		src, err := lay.view(r.DType, p.box.Sizes, p.gap, b)
		if err == nil {
			err = tensor.Convert(p.to, src, tensor.CastAny)
		}
		if err != nil {
			return fmt.Errorf("%s at %d: %w", r.File, lay.offset(p.box.Offsets), err)
		}
	}
	return p.job.settle()
}

// ReadBox reads a box of a chunk into dst and converts it to the dtype of dst. The
// chunk has the given sizes and lies in the region r of a file in store. ReadBox
// returns the number of bytes that it read. It uses at most about budget bytes of
// memory, or 1 MiB if that is more. The error wraps storage.ErrCorrupt if the file is too small for the
// region. Makers use it.
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
	j := &job{b: b, id: ChunkID{Entry: &meta.Entry{}}, box: box, dtype: r.DType, at: Chunk{Region: r}, lay: l, to: dst}
	if err := j.addParts(); err != nil {
		return 0, err
	}
	st, err := Fetch(ctx, b.requests, FetchOptions{
		Open:        func(context.Context, string) (blob.Reader, error) { return f, nil },
		ReadOptions: o, Gap: b.meas.gap, Dear: b.storeGap > 0,
	})
	return st.Bytes, err
}
