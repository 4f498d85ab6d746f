package foreign

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage/fetch"
	"github.com/cairn-ckpt/cairn/tensor"
)

// part is a box of a region that is read at once.
type part struct {
	name   string // of the tensor
	lay    *layout
	region *Region
	gap    int64
	box    tensor.Box // relative to the chunk
	to     *tensor.Tensor
	in     bool // the bytes are in their place
	sums   *sums
	crc    uint32 // of what stepper saw
	after  func() error
}

// stepper is a part whose checksum is computed while its bytes are read.
type stepper struct{ *part }

var _ fetch.Stepper = stepper{}

// Step takes the next bytes into the checksum.
func (s stepper) Step(p []byte) { s.crc = crc32.Update(s.crc, crc32.IEEETable, p) }

// partsOf cuts the read of a box of a region into to.
func partsOf(l *layout, r *Region, box tensor.Box, to *tensor.Tensor, m measures) ([]*part, error) {
	var parts []*part
	var err error
	if r.Resolve != nil {
		m.most = min(m.most, leastBytes) // each is copied
	}
	l.cut(box, m, func(b tensor.Box) {
		p := &part{lay: l, region: r, gap: m.gap, box: b}
		if err == nil {
			p.to, err = to.Narrow(b.Relative(box.Offsets))
		}
		if err == nil {
			p.place(m)
		}
		parts = append(parts, p)
	})
	return parts, err
}

// place finds out whether the bytes of a part can be read into their place.
func (p *part) place(m measures) {
	width, axes := p.lay.spread(p.box.Sizes, p.gap)
	rows, _ := p.lay.rows(p.box.Sizes, axes)
	p.in = rows == nil && p.region.Resolve == nil && width > m.small && p.to.DType() == p.region.DType && p.lay.flat(p.box.Sizes) && p.to.Contiguous()
}

// request returns the read of a part.
func (p *part) request() fetch.Request {
	width, axes := p.lay.spread(p.box.Sizes, p.gap)
	q := fetch.Request{File: p.region.File, Offset: p.lay.offset(p.box.Offsets), Width: width, To: p}
	q.Rows, _ = p.lay.rows(p.box.Sizes, axes)
	if p.in {
		q.Direct, _ = p.to.Bytes()
		if p.checked() {
			q.To = stepper{p}
		}
	}
	return q
}

// checked reports whether the bytes of a part have a checksum.
func (p *part) checked() bool { return p.sums != nil && p.region.Sum != nil }

// sum takes note of the bytes of a part, as they came from the store.
func (p *part) sum(b []byte) error {
	width, axes := p.lay.spread(p.box.Sizes, p.gap)
	rows, n := p.lay.rows(p.box.Sizes, axes)
	off := p.lay.offset(p.box.Offsets)
	if p.in {
		return p.sums.see(p.region.File, p.region.Sum, off, b, &p.crc)
	}
	if rows != nil && width < leastRow {
		return nil
	}
	for i := range n {
		at := fetch.RowOffset(rows, i)
		if err := p.sums.see(p.region.File, p.region.Sum, off+at, b[i*width:(i+1)*width], nil); err != nil {
			return err
		}
	}
	return nil
}

// Take puts the bytes of a part where they belong.
func (p *part) Take(b []byte) error {
	if p.checked() {
		if err := p.sum(b); err != nil {
			return fmt.Errorf("%q: %w", p.name, err)
		}
	}
	if p.region.Resolve != nil {
		b = bytes.Clone(b) // neighbours may share it
		p.region.Resolve(b)
	}
	if !p.in {
		src, err := p.lay.view(p.region.DType, p.box.Sizes, p.gap, b)
		if err == nil {
			err = tensor.Convert(p.to, src, tensor.CastAny)
		}
		if err != nil {
			return fmt.Errorf("%s at %d: %w", p.region.File, p.lay.offset(p.box.Offsets), err)
		}
	}
	return p.after()
}

// ReadBox fills dst with a box of the chunk of the given sizes that lies in a
// region of a file in store, converted to dst's dtype, and returns how many bytes
// it read: what Makers need of the files. It takes no more than about budget
// bytes of memory, and refuses a region that its file does not hold with
// storage.ErrCorrupt.
func ReadBox(ctx context.Context, store blob.Store, r *Region, sizes []int64, box tensor.Box, dst *tensor.Tensor, budget int64) (read int64, err error) {
	if err := box.Check(sizes); err != nil || box.Empty() {
		return 0, err
	}
	c := &Checkpoint{store: store}
	f, err := c.openFile(ctx, r.File)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	l, err := layoutOf(r, sizes, f.Size())
	if err != nil {
		return 0, err
	}
	m, dear := measuresOf(store, budget)
	parts, err := partsOf(l, r, box, dst, m)
	if err != nil {
		return 0, err
	}
	requests := make([]fetch.Request, len(parts))
	for i, p := range parts {
		p.after = func() error { return nil }
		requests[i] = p.request()
	}
	st, err := fetch.Run(ctx, requests, fetch.Options{
		Open:        func(context.Context, string) (blob.Reader, error) { return f, nil },
		BufferBytes: budget, Parallel: 1, Gap: m.gap, Dear: dear,
	})
	return st.Bytes, err
}

// measuresOf returns the measures for a store and a budget, and whether requests
// are dear.
func measuresOf(store blob.Store, budget int64) (m measures, dear bool) {
	m = measures{fetch.MaxBytes, pageBytes, smallBytes}
	for m.most > leastBytes && m.most > fetch.Budget(budget) {
		m.most /= 2
	}
	if g, ok := blob.As[blob.GapReader](store); ok {
		m.gap, dear = max(m.gap, g.ReadGap()), g.ReadGap() > 0
	}
	return m, dear
}
