package saver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Load says what to load.
type Load struct {
	Store string // address of a folder, or of a file for formats of one file
	// Format is the name of the format, and FormatOptions what the function of that name
	// returns. Empty: the saver detects the format.
	Format        string
	FormatOptions json.RawMessage
	// AllowMissing leaves out what the checkpoint does not have. LoadReport.Missing
	// lists it.
	AllowMissing bool
	// Cast limits the conversions to the wanted dtypes. Zero: tensor.CastInRange.
	Cast  tensor.CastPolicy
	Items []Want
	// Observer receives the progress. If the load needs more memory than there is at a
	// time, Planned is called several times, each time for a part. Nil: it is not
	// reported.
	Observer *protocol.Observer
}

// Want is a box of a tensor, or a value.
type Want struct {
	Name string
	// DType is the type that the elements are to have: they are converted if the
	// checkpoint has them in another one. Invalid: the item is a value.
	DType tensor.DType
	// Shape is that of the whole tensor, and Box the part that is wanted. The zero Box
	// means all of it.
	Shape []int64
	Box   tensor.Box
}

// Piece is a part of a load that has arrived and is verified.
type Piece struct {
	Item int // in Load.Items
	// Box is the part of the global tensor, and Tensor its elements.
	Box    tensor.Box
	Tensor *tensor.Tensor
	// Codec and Data are a value; see value.Decode.
	Codec string
	Data  []byte
}

// part is a part of an item that is loaded as a whole.
type part struct {
	item  int
	box   tensor.Box
	bytes int64
	at    int64 // in the memory of its batch
}

// partShare is the share of the arena above which an item is loaded in several parts.
const partShare = 4

// alignBytes is the alignment of parts in the arena.
const alignBytes = 64

// Load reads parts of a checkpoint. It calls piece for each part that has arrived, while
// the saver reads the rest: one call at a time, in no particular order, from the
// goroutine of the caller. Piece.Tensor is memory of the arena, which must not be used
// after the call. A tensor that takes over a quarter of the arena comes as several
// pieces; everything else as one.
//
// If the arena has no room for everything, Load reads as much as it has room for at a
// time. While other saves and loads use the whole arena, Load waits.
//
// If ctx ends or piece returns an error, Load returns it once the saver does not write to
// the arena any more. If the process ends, the error wraps ErrSaver.
func (p *Process) Load(ctx context.Context, l Load, piece func(Piece) error) (*protocol.LoadReport, error) {
	parts, err := l.parts(max(p.arena.Room()/partShare, alignBytes))
	if err != nil {
		return nil, err
	}
	var total *protocol.LoadReport
	for first := true; first || len(parts) > 0; first = false {
		n, mem, err := p.reserve(ctx, parts)
		if err != nil {
			return nil, err
		}
		r, err := p.loadParts(ctx, &l, parts[:n], mem, piece)
		if mem != nil {
			mem.Free()
		}
		if err == nil {
			total, err = addReport(total, r)
		}
		if err != nil {
			return nil, err
		}
		parts = parts[n:]
	}
	return total, nil
}

// parts divides the items into parts of at most limit bytes.
func (l *Load) parts(limit int64) ([]part, error) {
	var out []part
	for i := range l.Items {
		w := &l.Items[i]
		if w.DType == tensor.Invalid {
			out = append(out, part{item: i})
			continue
		}
		box := w.Box
		if box.Offsets == nil && box.Sizes == nil {
			box = tensor.Whole(w.Shape)
		}
		_, err := tensor.NumBytes(w.DType, w.Shape)
		if err == nil {
			err = box.Check(w.Shape)
		}
		if err != nil {
			return nil, fmt.Errorf("load %q: %w", w.Name, err)
		}
		size := int64(w.DType.Size())
		for _, b := range cut(box, max(limit/size, 1)) {
			out = append(out, part{item: i, box: b, bytes: b.Volume() * size})
		}
	}
	return out, nil
}

// cut divides a box into boxes of at most n elements: along its first dimension, or if a
// row is too large, along the next ones.
func cut(b tensor.Box, n int64) []tensor.Box {
	if b.Volume() <= n {
		return []tensor.Box{b}
	}
	d := slices.IndexFunc(b.Sizes, func(s int64) bool { return s > 1 })
	step := max(n/(b.Volume()/b.Sizes[d]), 1)
	var out []tensor.Box
	for at := int64(0); at < b.Sizes[d]; at += step {
		c := tensor.Box{Offsets: slices.Clone(b.Offsets), Sizes: slices.Clone(b.Sizes)}
		c.Offsets[d] += at
		c.Sizes[d] = min(step, b.Sizes[d]-at)
		out = append(out, cut(c, n)...)
	}
	return out
}

// reserve returns memory for the first parts, as many as there is room for. If there is
// none, it waits. The memory is nil if the parts need none.
func (p *Process) reserve(ctx context.Context, parts []part) (int, *stage.Region, error) {
	room := p.arena.Room()
	for {
		n, size := place(parts, room)
		if size == 0 {
			return n, nil, nil
		}
		mem, freed, err := p.arena.Reserve(size)
		if mem != nil {
			return n, mem, nil
		}
		if _, less := place(parts, size/2); less < size {
			room = size / 2
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		select {
		case <-freed:
			room = p.arena.Room()
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		case <-p.ended:
			return 0, nil, p.err
		}
	}
}

// place places parts one after another, until the next one does not fit into room. It
// returns their number, at least one if there is one, and the bytes that they need.
func place(parts []part, room int64) (n int, size int64) {
	for i := range parts {
		at := (size + alignBytes - 1) / alignBytes * alignBytes
		if i > 0 && at+parts[i].bytes > room {
			break
		}
		parts[i].at = at
		n, size = i+1, at+parts[i].bytes
	}
	return n, size
}

// remoteLoad is a load that a saver process carries out.
type remoteLoad struct {
	observer *protocol.Observer
	changed  chan struct{} // receives a value after each change

	mu      sync.Mutex
	arrived []*pieceBody
	ended   bool
	report  *protocol.LoadReport
	err     error
}

func (l *remoteLoad) signal() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// piece notes that a piece has arrived.
func (l *remoteLoad) piece(b *pieceBody) {
	l.mu.Lock()
	l.arrived = append(l.arrived, b)
	l.mu.Unlock()
	l.signal()
}

// over ends the load.
func (l *remoteLoad) over(r *protocol.LoadReport, err error) {
	l.mu.Lock()
	l.report, l.err, l.ended = r, err, true
	l.mu.Unlock()
	l.signal()
}

// take returns the pieces that have arrived, and whether they are the last ones.
func (l *remoteLoad) take() (arrived []*pieceBody, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	arrived, l.arrived = l.arrived, nil
	return arrived, l.ended
}

// loadParts loads parts into memory of the arena. When it returns, the saver does not use
// the memory any more.
func (p *Process) loadParts(ctx context.Context, l *Load, parts []part, mem *stage.Region, piece func(Piece) error) (*protocol.LoadReport, error) {
	body := loadBody{source: source{l.Store, l.Format, l.FormatOptions}, AllowMissing: l.AllowMissing, Cast: l.Cast, Items: make([]WantItem, len(parts))}
	for i, x := range parts {
		w := &l.Items[x.item]
		body.Items[i] = WantItem{Name: w.Name}
		if w.DType != tensor.Invalid {
			body.Items[i] = WantItem{Name: w.Name, DType: w.DType.String(), Shape: w.Shape, Offsets: x.box.Offsets, Sizes: x.box.Sizes}
		}
		if mem != nil && x.bytes > 0 {
			body.Items[i].At = mem.Offset + x.at
		}
	}
	run := &remoteLoad{observer: l.Observer, changed: make(chan struct{}, 1)}
	if err := p.begin(&body, run); err != nil {
		return nil, err
	}
	var failure error
	fail := func(err error) {
		if failure == nil && err != nil {
			failure = err
			p.post(typeCancel, cancelBody{body.Load})
		}
	}
	done, left := ctx.Done(), len(parts)
	for {
		select {
		case <-run.changed:
		case <-done:
			done = nil
			fail(context.Cause(ctx))
		}
		arrived, ended := run.take()
		for _, b := range arrived {
			if left--; failure == nil {
				fail(l.deliver(b, parts, mem, piece))
			}
		}
		if !ended {
			continue
		}
		if failure == nil && run.err == nil && left > 0 && len(run.report.Missing) == 0 {
			failure = fmt.Errorf("%w: the load is over, and %d of %d parts have not come", ErrMessage, left, len(parts))
		}
		if failure != nil {
			return nil, failure
		}
		return run.report, run.err
	}
}

// begin sends a load to the saver.
func (p *Process) begin(b *loadBody, run *remoteLoad) error {
	p.mu.Lock()
	p.number++
	b.Load = p.number
	p.mu.Unlock()
	message, err := appendFrame(nil, typeLoad, b)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return p.err
	}
	p.loads[b.Load] = run
	p.mu.Unlock()
	p.out.sendFrame(message)
	return nil
}

// deliver hands a piece to the caller.
func (l *Load) deliver(b *pieceBody, parts []part, mem *stage.Region, piece func(Piece) error) error {
	if b.Item < 0 || b.Item >= len(parts) {
		return fmt.Errorf("%w: a piece of item %d of %d", ErrMessage, b.Item, len(parts))
	}
	x := &parts[b.Item]
	w := &l.Items[x.item]
	if w.DType == tensor.Invalid {
		return piece(Piece{Item: x.item, Codec: b.Codec, Data: b.Data})
	}
	var content []byte
	if x.bytes > 0 {
		content = mem.Bytes[x.at : x.at+x.bytes : x.at+x.bytes]
	}
	t, err := tensor.FromBytes(w.DType, x.box.Sizes, content)
	if err != nil {
		return err
	}
	return piece(Piece{Item: x.item, Box: x.box, Tensor: t})
}

// addReport adds the report of a part of a load.
func addReport(total, r *protocol.LoadReport) (*protocol.LoadReport, error) {
	if total == nil {
		return r, nil
	}
	if total.SaveID != r.SaveID {
		return nil, fmt.Errorf("%w: the load began with save %s and continued with %s", storage.ErrChanged, total.SaveID, r.SaveID)
	}
	total.Local.Add(r.Local)
	total.Total.Add(r.Total)
	total.PlanTime += r.PlanTime
	total.ReadTime += r.ReadTime
	for _, name := range r.Missing {
		if !slices.Contains(total.Missing, name) {
			total.Missing = append(total.Missing, name)
		}
	}
	return total, nil
}
