package torchfile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// fsdpSave is a checkpoint of the format FSDP that is being described.
type fsdpSave struct {
	*fsdpFolder
	store   blob.Store
	b       *Builder
	world   int
	notes   []string
	missing []meta.Missing
	leaves  []leaf
}

// read describes all items.
func (c *fsdpSave) read(ctx context.Context) error {
	models := map[string]*fsdpModel{}
	for _, it := range c.of("model") {
		m, err := c.readModel(ctx, it)
		if err != nil {
			return err
		}
		models[strings.TrimPrefix(it.name, "model")] = m
	}

	for _, it := range c.of("optim") {
		m := models[strings.TrimPrefix(it.name, "optimizer")]
		if m == nil {
			m = models[""] // several optimizers of one model
		}
		if err := c.readOptim(ctx, it, m); err != nil {
			return err
		}
	}

	for _, it := range c.of("extra_state") {
		if err := c.readExtra(it); err != nil {
			return err
		}
	}
	return c.b.addLeaves(c.b.names.give("", c.leaves))
}

// otherSave returns the error for a file that belongs to another save than a file of another
// rank.
func otherSave(file, than *File, format string, args ...any) error {
	return reading.Damaged(file.Name, "it belongs to another save than %s: %w", than.Name, fmt.Errorf(format, args...))
}

// fsdpParam is a tensor of the model.
type fsdpParam struct {
	name  string
	shape []int64
	// pieces are what each rank holds. Nil: the tensor is whole on each rank. If spread is set,
	// it has the tensors of the pieces.
	pieces []*piece
	spread *spread
	// again means that it is the same tensor as an earlier one: the weights are tied.
	again bool
	dtype tensor.DType
}

// elements returns the number of elements of the parameter.
func (p *fsdpParam) elements() int64 { return tensor.Whole(p.shape).Volume() }

// fsdpModel is a model: its tensors in the order of the model's state.
type fsdpModel struct {
	params []*fsdpParam
	byName map[string]*fsdpParam
}

// readModel describes the files of a model.
func (c *fsdpSave) readModel(ctx context.Context, it *fsdpItem) (*fsdpModel, error) {
	roots := make([]map[string]any, len(it.files))
	var order []string
	ranks := newRanks(it)
	for rank, f := range it.files {
		if first := ranks.groups[ranks.of[rank]]; first != rank {
			roots[rank] = roots[first]
			continue
		}
		values, err := dictIn(f, f.Root)
		if err != nil {
			return nil, err
		}
		for name := range values {
			if strings.HasSuffix(name, "_flat_param") {
				return nil, &storage.FileError{File: f.Name, Err: errLocal}
			}
		}
		if rank == 0 {
			order = orderOf(f)
		}
		roots[rank] = values
		if err := sameNames(f, it.files[0], values, roots[0], order); err != nil {
			return nil, err
		}
	}

	m := &fsdpModel{byName: map[string]*fsdpParam{}}
	rest := make([]map[string]any, len(roots)) // everything that is not sharded
	known := make([]meshes, len(roots))
	for rank := range roots {
		rest[rank], known[rank] = map[string]any{}, meshes{}
	}
	spreads, err := it.spreads(ctx, ranks, len(order), func(i, rank int) any { return roots[rank][order[i]] })
	if err != nil {
		return nil, err
	}
	made := cuts{}
	for i, name := range order {
		p := &fsdpParam{name: name}
		at := meta.Path{meta.Key(it.name), meta.Key(name)}
		of := func(rank int) any { return roots[rank][name] }
		if s := spreads[i]; s != nil {
			if err := c.cut(it, s, made, known, of); err != nil {
				return nil, err
			}
			if err := c.check(it, s.cut, at, s.tensor); err != nil {
				return nil, err
			}
			p.spread, p.pieces, p.shape, p.dtype = s, s.cut.pieces, s.cut.pieces[0].shape, s.cut.pieces[0].dtype
			c.leaves = append(c.leaves, leaf{at, s, it.files[s.cut.held[0].rank]})
			m.params, m.byName[name] = append(m.params, p), p
			continue
		}

		pieces, err := c.pieces(it, known, of)
		if err != nil {
			return nil, err
		}
		if pieces != nil {
			p.pieces, p.shape, p.dtype = pieces, pieces[0].shape, pieces[0].dtype
			l, err := c.join(it, at, pieces)
			if err != nil {
				return nil, err
			}
			c.leaves = append(c.leaves, l)
		} else {
			t, ok := roots[0][name].(*torchsave.Tensor)
			for rank := range roots {
				rest[rank][name] = it.files[rank].Own(roots[rank][name])
			}
			if !ok {
				continue
			}
			p.shape, p.dtype = t.Shape, t.DType
		}
		m.params, m.byName[name] = append(m.params, p), p
	}
	if err := describeAll(ctx, spreads); err != nil {
		return nil, err
	}
	m.tie(it, roots)
	return m, c.readRest(it, it.name, rest)
}

// dictIn returns the values of a dict of names in a file.
func dictIn(f *File, v any) (map[string]any, error) {
	switch d := v.(type) {
	case map[string]any:
		return d, nil
	case *value.Dict:
		values := make(map[string]any, len(d.Pairs))
		for _, p := range d.Pairs {
			name, ok := p.Key.(string)
			if !ok {
				return nil, reading.Damaged(f.Name, "a name is %T", p.Key)
			}
			values[name] = p.Value
		}
		return values, nil
	}
	return nil, reading.Damaged(f.Name, "it holds %T; want a dict of names", v)
}

// orderOf returns the names of the dict in a file, in the order in which the program has saved them. The names
// of a dict without an order are in the order of their storages.
func orderOf(f *File) []string {
	v := f.Root
	if d, ok := v.(*value.Dict); ok {
		names := make([]string, len(d.Pairs))
		for i, p := range d.Pairs {
			names[i], _ = p.Key.(string)
		}
		return names
	}

	d, _ := v.(map[string]any)
	at := make(map[string]int, len(d))
	for name, v := range d {
		at[name] = storageNumber(f, v)
	}
	return slices.SortedFunc(maps.Keys(d), func(a, b string) int { return cmp.Or(cmp.Compare(at[a], at[b]), strings.Compare(a, b)) })
}

// storageNumber returns the number of the storage of a tensor: torch.save numbers storages in
// the order of its values.
func storageNumber(f *File, v any) int {
	t, ok := v.(*torchsave.Tensor)
	if !ok {
		if d := asDTensor(f, v, 0, nil); d != nil {
			t = d.local
		}
	}
	if t == nil {
		return -1
	}
	n, _ := strconv.Atoi(t.StorageKey)
	return n
}

// sameNames returns an error unless a rank has the names that rank 0 has.
func sameNames(f, first *File, values, want map[string]any, order []string) error {
	for _, name := range order {
		if _, ok := values[name]; !ok {
			return otherSave(f, first, "it has no %q", name)
		}
	}
	if len(values) == len(want) {
		return nil
	}
	for name := range values {
		if _, ok := want[name]; !ok {
			return otherSave(f, first, "it has %q, which the other file does not have", name)
		}
	}
	return nil
}

// pieces returns the pieces of a tensor that all ranks hold, or nil if it is not sharded.
func (c *fsdpSave) pieces(it *fsdpItem, known []meshes, of func(rank int) any) ([]*piece, error) {
	var out []*piece
	for rank, f := range it.files {
		p, err := asPiece(f, of(rank), rank, known[rank])
		if err != nil {
			return nil, reading.Damaged(f.Name, "%w", err)
		}
		if (p != nil) != (rank == 0 || out != nil) && rank > 0 {
			return nil, otherSave(f, it.files[0], "a tensor is sharded on one of them only")
		}
		if p == nil {
			continue
		}
		if out == nil {
			out = make([]*piece, len(it.files))
		}
		if err := c.checkWorld(it, f, p.world); err != nil {
			return nil, err
		}
		if o := out[0]; o != nil && (!slices.Equal(o.shape, p.shape) || o.dtype != p.dtype && o.dtype != tensor.Invalid && p.dtype != tensor.Invalid) {
			return nil, otherSave(f, it.files[0], "a tensor is %v %v, and %v %v there", p.dtype, p.shape, o.dtype, o.shape)
		}
		out[rank] = p
	}
	return out, nil
}

// checkWorld returns an error if an object is of a save with another number of ranks.
func (c *fsdpSave) checkWorld(it *fsdpItem, f *File, world int) error {
	switch {
	case world <= len(it.files):
		return nil
	case verlFile.MatchString(f.Name):
		return reading.Damaged(f.Name, "its tensors are of a save of %d ranks", world)
	}
	return fmt.Errorf("%w: %s is missing: the tensors in %s are of a save of %d ranks", storage.ErrIncomplete, it.file(len(it.files)), f.Name, world)
}

// join makes one tensor of the pieces of all ranks.
func (c *fsdpSave) join(it *fsdpItem, at meta.Path, pieces []*piece) (leaf, error) {
	x := newCut(pieces)
	tensorOf := func(h held) *torchsave.Tensor { return pieces[h.rank].parts[h.part] }
	if err := c.check(it, x, at, tensorOf); err != nil {
		return leaf{}, err
	}
	all := &sharded{shape: x.pieces[0].shape, chunks: x.chunks}
	for _, h := range x.held {
		all.parts = append(all.parts, Elements{File: it.files[h.rank], Tensor: tensorOf(h)})
	}
	return leaf{at, all, all.parts[0].File}, nil
}

// check compares the parts that several ranks hold. It returns an error if ranks that should have
// copies have other elements, or if the parts do not cover the tensor.
func (c *fsdpSave) check(it *fsdpItem, x *cut, at meta.Path, tensorOf func(h held) *torchsave.Tensor) error {
	for _, a := range x.again {
		first, h := a[0], a[1]
		if sameBytes(tensorOf(first), tensorOf(h)) {
			continue
		}
		b := x.box(h)
		if x.pieces[h.rank].copied {
			return otherSave(it.files[h.rank], it.files[first.rank], "both have elements %v of %q, and they differ", b, at.FQN())
		}
		c.note("%s has other elements %v of %q than %s: the elements of the latter are read", it.files[h.rank].Name, b, at.FQN(), it.files[first.rank].Name)
	}
	if x.problem != "" {
		return reading.Damaged(it.files[0].Name, "the files of all ranks have %d chunks of %q, which is %v: %s", len(x.chunks), at.FQN(), x.pieces[0].shape, x.problem)
	}
	return nil
}

// maxNotes bounds the notes about a checkpoint.
const maxNotes = 8

// note adds a sentence to Storage.Notes.
func (c *fsdpSave) note(format string, args ...any) {
	if len(c.notes) < maxNotes {
		c.notes = append(c.notes, fmt.Sprintf(format, args...))
	}
}

// sameBytes reports whether two tensors of one shape have the same elements, by the checksums
// of their storages. Without checksums, nothing shows that they differ.
func sameBytes(a, b *torchsave.Tensor) bool {
	return a.Sum == nil || b.Sum == nil || sameView(a, b) && a.Sum.CRC == b.Sum.CRC
}

// sameView reports whether two tensors with checksums are the same elements of their storages.
func sameView(a, b *torchsave.Tensor) bool {
	return a.DType == b.DType && slices.Equal(a.Strides, b.Strides) && a.Conj == b.Conj && a.Neg == b.Neg &&
		a.Offset-a.Sum.Offset == b.Offset-b.Sum.Offset && a.Sum.End-a.Sum.Offset == b.Sum.End-b.Sum.Offset
}

// tie finds the parameters that are other names of earlier ones: their tensors are the same
// bytes in the files of all ranks.
func (m *fsdpModel) tie(it *fsdpItem, roots []map[string]any) {
	identity := func(p *fsdpParam, ranks int) (string, bool) {
		id, bytes := strings.Builder{}, int64(0)
		fmt.Fprint(&id, p.shape)
		for rank := range ranks {
			for _, t := range p.tensors(it, rank, roots[rank]) {
				if n := t.NumBytes(); n > 0 {
					bytes += n
					fmt.Fprint(&id, " ", rank, viewKey(t), t.Offset, t.DType)
				}
			}
		}
		return id.String(), bytes > 0
	}

	onFirst := map[string][]*fsdpParam{} // parameters that are the same in the first file
	for _, p := range m.params {
		id, _ := identity(p, 1)
		onFirst[id] = append(onFirst[id], p)
	}
	for _, ps := range onFirst {
		seen := map[string]bool{}
		for _, p := range ps {
			if len(ps) > 1 {
				id, some := identity(p, len(roots))
				p.again = some && seen[id]
				seen[id] = true
			}
		}
	}
}

// tensors returns the tensors of a parameter in the file of a rank.
func (p *fsdpParam) tensors(it *fsdpItem, rank int, root map[string]any) []*torchsave.Tensor {
	if p.spread != nil {
		var out []*torchsave.Tensor
		for i := range p.pieces[rank].cuts {
			out = append(out, p.spread.tensor(held{rank, i}))
		}
		return out
	}
	if p.pieces != nil {
		return p.pieces[rank].parts
	}
	if t, ok := root[p.name].(*torchsave.Tensor); ok {
		return []*torchsave.Tensor{it.files[rank].OwnTensor(t)}
	}
	return nil
}

// readRest describes values of an item that are not sharded. Values that are equal on all
// ranks have one name.
func (c *fsdpSave) readRest(it *fsdpItem, name string, roots []map[string]any) error {
	var files []*rankFile
	for rank, root := range roots {
		if root == nil {
			continue // equal to the values of a rank before it
		}
		f := *it.files[rank]
		inner := *f.File
		inner.Root = root
		f.File = &inner
		files = append(files, &rankFile{item: name, rank: rank, rankedFile: rankedFile{f.Name, kindTorch}, file: &f})
		if len(root) == 0 && rank == 0 {
			return nil
		}
	}

	m := &merger{md: &rankedMetadata{}, several: map[string]bool{}, held: map[string]*ranksValue{}, lost: reading.LostFiles{}, again: c.b.again, proof: true}
	leaves, err := m.merge(files)
	if err != nil {
		return err
	}
	for _, x := range m.missing {
		return fmt.Errorf("%q: %w", x.FQN, x.Err)
	}
	c.b.again = m.again
	if l := m.differ; l != nil && name != "extra" {
		if slices.Contains(l.path, meta.Key("param_groups")) {
			return otherSave(l.file, it.files[0], "%q differs", l.path.FQN())
		}
		c.note("%s has another %q than %s: names that end in #rank1 and so on have the values of other ranks", l.file.Name, l.path.FQN(), it.files[0].Name)
	}
	c.leaves = append(c.leaves, leaves...)
	return nil
}

// readExtra describes the files of the scheduler and the random states.
func (c *fsdpSave) readExtra(it *fsdpItem) error {
	roots := make([]map[string]any, len(it.files))
	for rank, f := range it.files {
		var err error
		if roots[rank], err = dictIn(f, f.Root); err != nil {
			return err
		}
	}

	// The scheduler is the same on all ranks of a save; random states differ.
	same := &merger{again: c.b.again}
	var want string
	for rank, f := range it.files {
		key, err := same.fingerprint(&rankFile{rankedFile: rankedFile{name: f.Name}}, roots[rank]["lr_scheduler"])
		if err != nil {
			return err
		}
		if rank == 0 {
			want = key
		}
		if key != want {
			return otherSave(f, it.files[0], "lr_scheduler differs%s", differingNumber(roots[rank]["lr_scheduler"], roots[0]["lr_scheduler"], "last_epoch"))
		}
	}
	return c.readRest(it, it.name, roots)
}

// differingNumber describes a value of two dicts, for a message.
func differingNumber(a, b any, key string) string {
	x, _ := a.(map[string]any)
	y, _ := b.(map[string]any)
	if x[key] == nil || y[key] == nil {
		return ""
	}
	return fmt.Sprintf(": %s is %v, and %v there", key, x[key], y[key])
}
