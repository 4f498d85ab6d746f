package saver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// wanted is a tensor of which the trainer wants boxes, in the arena.
type wanted struct {
	shape []int64
	dtype tensor.DType
	boxes []tensor.Box
	parts []*tensor.Tensor
	items []int   // in the message, of each box
	left  []int64 // elements that have not arrived, of each box
}

var _ plan.Checkpointable = (*wanted)(nil)

func (w *wanted) GlobalShape() []int64               { return w.shape }
func (w *wanted) DType() tensor.DType                { return w.dtype }
func (w *wanted) Boxes() []tensor.Box                { return w.boxes }
func (w *wanted) Part(i int) (*tensor.Tensor, error) { return w.parts[i], nil }

// loads are the loads of a saver process, and the descriptions of checkpoints.
type loads struct {
	*scope
	peers *peers
	runs  *trainings
	tasks *tasks

	mu       sync.Mutex
	opened   map[string]*opened // checkpoints that loads are reading; guarded by mu
	segments *delta.Cache       // of the versions that the trainer follows; nil: it follows none; guarded by mu
	kept     int64              // the limit of segments; guarded by mu
}

// load reads parts of a checkpoint into the arena.
func (s *loads) load(b *loadBody) error {
	if err := b.check(); err != nil {
		return err
	}
	window, _ := stage.Window(int64(len(s.mem)))
	p, err := newLoadPlanner(b, s.mem[:window])
	if err != nil {
		return err
	}
	p.piece = func(b pieceBody) error { return s.link.send(typePiece, b) }
	turn := turn{group: group.Solo(), done: func() {}}
	if b.Share {
		if turn, err = s.peers.shares.next(); err != nil {
			return err
		}
	}
	return s.tasks.begin(b.Load, p.used, typeLoaded, func(ctx context.Context) (any, error) {
		defer turn.done()
		turn.wait()
		r, err := s.runLoad(ctx, b, p, turn.group)
		s.claims.removeAll(p)
		if err != nil {
			s.segmentsOf(b.Keep).Clear() // they may be why
		}
		return loadedBody{b.Load, r}, err
	})
}

// newLoadPlanner checks the request of a load: every box has memory of its own in the arena.
func newLoadPlanner(b *loadBody, arena []byte) (*loadPlanner, error) {
	p := &loadPlanner{load: b.Load, tensors: map[string]*wanted{}, values: map[string]int{}}
	p.AllowMissing, p.Cast = b.AllowMissing, b.Cast
	for i := range b.Items {
		m := &b.Items[i]
		if err := meta.CheckFQN(m.Name); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrMessage, err)
		}
		if p.mixes(m) {
			return nil, fmt.Errorf("%w: %q is requested twice, once as a value", ErrMessage, m.Name)
		}
		if err := p.addItem(i, m, arena); err != nil {
			return nil, fmt.Errorf("%w: %q: %w", ErrMessage, m.Name, err)
		}
	}
	if err := new(claims).addAll(p.used); err != nil {
		return nil, err
	}
	return p, nil
}

// mixes reports whether the name of m was requested before, and m or the earlier request is for a
// value. Only boxes of a tensor can share a name.
func (p *loadPlanner) mixes(m *wantBody) bool {
	_, isValue := p.values[m.Name]
	return isValue || m.DType == "" && p.tensors[m.Name] != nil
}

// addItem adds a box of a tensor, or a value.
func (p *loadPlanner) addItem(i int, m *wantBody, arena []byte) error {
	if m.DType != "" {
		n, err := p.add(i, m, arena)
		if n > 0 {
			p.used = append(p.used, claim{m.At, m.At + n, p})
		}
		return err
	}
	if m.Shape != nil || m.Offsets != nil || m.Sizes != nil {
		return errors.New("a value has no shape, offsets or sizes")
	}
	p.values[m.Name] = i
	return nil
}

// add adds a box of a tensor and returns the bytes of its memory.
func (p *loadPlanner) add(i int, m *wantBody, arena []byte) (int64, error) {
	d, err := tensor.ParseDType(m.DType)
	if err != nil {
		return 0, err
	}
	if _, err := tensor.NumBytes(d, m.Shape); err != nil {
		return 0, err
	}

	box := tensor.Box{Offsets: m.Offsets, Sizes: m.Sizes}
	if m.Offsets == nil && m.Sizes == nil {
		box = tensor.Whole(m.Shape)
	}
	if err := box.Check(m.Shape); err != nil {
		return 0, err
	}

	n := box.Volume() * int64(d.Size())
	if m.At < 0 || m.At > int64(len(arena))-n {
		return 0, fmt.Errorf("%d bytes at %d of an arena of %d", n, m.At, len(arena))
	}
	t, err := tensor.FromBytes(d, box.Sizes, arena[m.At:m.At+n])
	if err != nil {
		return 0, err
	}

	w := p.tensors[m.Name]
	if w == nil {
		w = &wanted{shape: m.Shape, dtype: d}
		p.tensors[m.Name] = w
	}
	if d != w.dtype || !slices.Equal(m.Shape, w.shape) {
		return 0, fmt.Errorf("%v %v, and also %v %v", w.dtype, w.shape, d, m.Shape)
	}
	w.boxes, w.parts, w.items, w.left = append(w.boxes, box), append(w.parts, t), append(w.items, i), append(w.left, box.Volume())
	return n, nil
}

// runLoad loads with the savers of a group. It reports each item when it has arrived.
func (s *loads) runLoad(ctx context.Context, b *loadBody, p *loadPlanner, g group.Group) (*protocol.LoadReport, error) {
	store, err := s.runs.source(b.Store)
	since := blob.Since(store)
	var c *opened
	if err == nil {
		var done func()
		if c, done, err = s.checkpoint(ctx, &b.source); err == nil {
			defer done()
		}
	}

	if err != nil && !b.Share {
		return nil, err
	}
	if err != nil {
		// The other ranks wait for this one: it takes part with an error.
		return protocol.Load(ctx, protocol.RankLoad{Group: g, Planner: brokenLoad{p, err}, Metadata: new(meta.Metadata)})
	}

	state := plan.State{}
	for name, w := range p.tensors {
		state[name] = w
	}
	for name := range p.values {
		state[name] = ""
	}

	r, err := protocol.Load(ctx, protocol.RankLoad{
		Group: g, Planner: p, Reader: storage.ReaderOf(c, storage.ReadOptions{}), State: state,
		Share: b.Share, Host: hostID(), Observer: s.link.observer(subject{Load: b.Load}),
	})
	if err == nil {
		r.Traffic = since()
		err = p.rest(r.Missing)
	}
	return r, err
}

// opened is a checkpoint that is described and checked once, for several loads.
type opened struct {
	storage.Checkpoint
	md    *meta.Metadata
	check func() error
	err   error
	ready chan struct{} // closed once the fields above are set
	users int
	// release ends the lock that shows that the checkpoint is read. Nil: there is no lock.
	release func()
}

func (o *opened) Metadata(context.Context) (*meta.Metadata, error) { return o.md, nil }
func (o *opened) CheckFiles(context.Context) error                 { return o.check() }

// checkpoint opens a checkpoint. A trainer divides a large load into several, so those
// that are under way at the same time share one. Each calls done at its end.
func (s *loads) checkpoint(ctx context.Context, src *source) (c *opened, done func(), err error) {
	key, err := src.key()
	if err != nil {
		return nil, nil, err
	}

	s.mu.Lock()
	o := s.opened[key]
	if o == nil {
		o = &opened{ready: make(chan struct{})}
		s.opened[key] = o
		s.work.Go(func() {
			defer close(o.ready)
			o.err = o.open(s, src)
			o.check = sync.OnceValue(func() error { return o.Checkpoint.CheckFiles(s.ctx) })
		})
	}
	o.users++
	s.mu.Unlock()

	done = func() {
		s.mu.Lock()
		o.users--
		last := o.users == 0
		if last {
			delete(s.opened, key)
		}
		s.mu.Unlock()
		if last {
			o.end(&s.work)
		}
	}

	select {
	case <-o.ready:
		err = o.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return o, done, nil
}

// end releases the lock of a checkpoint, at once or in the background if it is still being
// opened.
func (o *opened) end(work *sync.WaitGroup) {
	select {
	case <-o.ready:
		o.releaseLock()
	default:
		work.Go(func() {
			<-o.ready
			o.releaseLock()
		})
	}
}

func (o *opened) releaseLock() {
	if o.release != nil {
		o.release()
	}
}

// baseAlone refuses a base beside the name of a format.
func baseAlone(base, format string) error {
	return storage.RefuseIf(base != "" && format != "", "base has no effect if the format is named: it is an option of the format slime")
}

// check refuses a negative number of bytes.
func (src *source) check() error {
	if src.Keep < 0 {
		return fmt.Errorf("%w: %d bytes are to be kept", ErrMessage, src.Keep)
	}
	return nil
}

// key returns a text that is equal for equal sources.
func (src *source) key() (string, error) {
	text, err := json.Marshal(src)
	return string(text), err
}

// open opens a checkpoint and describes it. It is closed again, but can be read.
func (o *opened) open(s *loads, src *source) error {
	open := func(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
		return formats.Open(ctx, store, &formats.Options{Segments: s.segmentsOf(src.Keep), Base: src.Base})
	}

	if src.Recipe != nil && s.OpenAs == nil {
		return fmt.Errorf("%w: this saver process knows no recipes: start 'cairn saver', or set ServeOptions.OpenAs", storage.ErrOptions)
	}

	if src.Format != "" {
		f, err := decodeFormat(src.Format, src.FormatOptions)
		if err != nil {
			return err
		}
		if n, ok := f.(native.Format); ok {
			n.Segments = s.segmentsOf(src.Keep)
			f = n
		}
		open = f.Open
	} else if len(src.FormatOptions) > 0 {
		return fmt.Errorf("%w: options of a format, and no format", storage.ErrOptions)
	}

	if err := baseAlone(src.Base, src.Format); err != nil {
		return err
	}

	store, err := s.runs.source(src.Store)
	if err != nil {
		return err
	}
	if o.release, err = formats.Reading(s.ctx, store); err != nil {
		return err
	}

	c, err := open(s.ctx, store)
	if errors.Is(err, storage.ErrNotFound) {
		if _, missing := os.Lstat(src.Store); errors.Is(missing, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %s does not exist", storage.ErrNotFound, src.Store)
		}
	}
	if err == nil && src.Recipe != nil {
		c, err = s.OpenAs(s.ctx, store, c, src.Recipe)
	}
	if err != nil {
		return err
	}
	defer c.Close()

	o.Checkpoint = c
	o.md, err = c.Metadata(s.ctx)
	return err
}

// segmentsOf returns the cache for the files of versions that the trainer follows. It keeps
// the largest number of bytes that was asked for. Nil: zero bytes are kept.
func (s *loads) segmentsOf(bytes int64) *delta.Cache {
	if bytes == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.segments == nil {
		s.segments = delta.NewCache(bytes)
	}
	if bytes > s.kept {
		s.kept = bytes
		s.segments.SetLimit(bytes)
	}
	return s.segments
}

// describe answers with the contents of a checkpoint.
func (s *loads) describe(b *describeBody) error {
	if err := b.check(); err != nil {
		return err
	}
	return s.tasks.begin(b.Load, nil, typeDescribed, func(ctx context.Context) (any, error) {
		c, done, err := s.checkpoint(ctx, &b.source)
		if err != nil {
			return nil, err
		}
		if !b.Hold || !s.tasks.hold(ctx, b.Load, done) {
			defer done()
		}
		return newDescribed(b.Load, c.md), nil
	})
}

// newDescribed returns the description of a checkpoint.
func newDescribed(load uint64, md *meta.Metadata) describedBody {
	st := md.Storage
	d := describedBody{
		Load: load, Format: st.Version, SaveID: st.SaveID, Step: st.Step, Writer: st.Writer, WorldSize: st.WorldSize,
		Tags: st.Tags, Notes: st.Notes, Entries: make([]entryBody, len(md.Entries)),
	}

	if !st.Time.IsZero() {
		d.Time = &st.Time
	}
	for _, m := range md.Missing {
		d.Missing = append(d.Missing, m.String())
	}

	aliases, order := aliasesOf(md), fileOrder(md)
	for i := range md.Entries {
		e := &md.Entries[i]
		out := entryBody{itemBody: itemBody{Name: e.FQN, Alias: aliases[e.FQN]}}
		for _, at := range e.Path {
			out.Path = append(out.Path, step(at))
		}

		if t := e.Tensor; t != nil {
			out.DType, out.Shape = t.DType.String(), t.Shape
			out.RequiresGrad, out.PinMemory, out.MemoryFormat, out.Layout = t.RequiresGrad, t.PinMemory, t.MemoryFormat, t.Layout
			out.Order = order[i]
			if s, ok := md.Scales(e); ok {
				out.Scales = s.FQN
			}
		} else {
			out.Codec, out.Data, out.Bytes = e.Bytes.Codec, e.Bytes.Inline, e.Bytes.Size
		}
		d.Entries[i] = out
	}
	return d
}

// fileOrder returns the position of each tensor in the order of the files, by its position
// in md. A tensor is where its first chunk is.
func fileOrder(md *meta.Metadata) []int {
	var tensors []int
	for i := range md.Entries {
		if md.Entries[i].Tensor != nil {
			tensors = append(tensors, i)
		}
	}
	at := func(i int) (l meta.Location) {
		if locs := md.Entries[i].Tensor.Locs; len(locs) > 0 {
			l = locs[0]
		}
		return l
	}
	slices.SortStableFunc(tensors, func(a, b int) int {
		x, y := at(a), at(b)
		return cmp.Or(strings.Compare(x.File, y.File), cmp.Compare(x.Offset, y.Offset))
	})
	out := make([]int, len(md.Entries))
	for n, i := range tensors {
		out[i] = n
	}
	return out
}

// aliasesOf returns a number for each tensor that has several names, by these names.
func aliasesOf(md *meta.Metadata) map[string]int {
	ties := md.Ties()
	out, last := make(map[string]int, 2*len(ties)), 0
	for i := range md.Entries {
		fqn := md.Entries[i].FQN
		first := ties[fqn]
		if first == "" {
			continue
		}
		if out[first] == 0 {
			last++
			out[first] = last
		}
		out[fqn] = out[first]
	}
	return out
}

// loadPlanner is the default planner that also reports the pieces that have arrived.
type loadPlanner struct {
	plan.DefaultLoad
	load    uint64
	tensors map[string]*wanted
	values  map[string]int // items of the message
	used    []claim        // of the arena
	piece   func(pieceBody) error

	mu sync.Mutex // for the rest of a tensor
}

// brokenLoad is a planner that only returns an error.
type brokenLoad struct {
	plan.LoadPlanner
	err error
}

func (b brokenLoad) SetUp(plan.LoadSetup) error { return b.err }

var _ plan.Sharer = (*loadPlanner)(nil)

// CanShare reports that other ranks may read the boxes: their rows are counted.
func (p *loadPlanner) CanShare() bool { return true }

// CommitTensor reports a box once all of it has arrived.
func (p *loadPlanner) CommitTensor(it *plan.ReadItem, t *tensor.Tensor) error {
	if err := p.DefaultLoad.CommitTensor(it, t); err != nil {
		return err
	}
	w := p.tensors[it.Dest.FQN]
	i := slices.IndexFunc(w.boxes, func(b tensor.Box) bool { return slices.Equal(b.Offsets, it.Dest.Offset) })
	if h := int(it.Dest.Hint); h < len(w.boxes) && slices.Equal(w.boxes[h].Offsets, it.Dest.Offset) {
		i = h
	}
	if i < 0 {
		return fmt.Errorf("%w: %v is not wanted", plan.ErrProtocol, it.Dest)
	}
	p.mu.Lock()
	w.left[i] -= it.DestBox().Volume()
	done := w.left[i] == 0
	p.mu.Unlock()
	if done {
		return p.piece(pieceBody{Load: p.load, Item: w.items[i]})
	}
	return nil
}

// LoadBytes reports a value.
func (p *loadPlanner) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	return p.piece(pieceBody{Load: p.load, Item: p.values[it.Dest.FQN], Codec: codec, Data: data})
}

// rest reports the boxes without elements, unless the checkpoint does not have them.
func (p *loadPlanner) rest(missing []string) error {
	for name, w := range p.tensors {
		for i, b := range w.boxes {
			if !b.Empty() || slices.Contains(missing, name) {
				continue
			}
			if err := p.piece(pieceBody{Load: p.load, Item: w.items[i]}); err != nil {
				return err
			}
		}
	}
	return nil
}
