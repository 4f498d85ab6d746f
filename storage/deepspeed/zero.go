package deepspeed

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
)

// readZeRO describes a checkpoint of ZeRO.
func (c *checkpoint) readZeRO(ctx context.Context) error {
	if err := c.checkLayout(); err != nil {
		return err
	}

	first, err := c.openFirst(ctx)
	if err != nil {
		return err
	}

	if err := c.openRanks(ctx, first); err != nil {
		return err
	}
	if err := c.readFlats(); err != nil {
		return err
	}

	c.stage3 = c.ranks[0].stage == 3
	c.version = fmt.Sprintf("deepspeed ZeRO %d", c.ranks[0].stage)
	c.worldSize = len(c.ranks)
	if err := c.addModule(); err != nil {
		return err
	}
	return c.addRest(c.ranks[0].file, c.ranks[0].root)
}

// openFirst opens the files of rank 0 and returns the prefix of the optimizer files.
func (c *checkpoint) openFirst(ctx context.Context) (prefix string, err error) {
	var prefixes []string
	for _, p := range slices.Sorted(maps.Keys(c.optim)) {
		if c.optim[p][0] != "" {
			prefixes = append(prefixes, p)
		}
	}

	switch {
	case len(prefixes) > 1:
		return "", reading.Damaged(c.optim[prefixes[0]][0], "%s is there, too, so files of two saves are mixed: remove those of the older save", c.optim[prefixes[1]][0])
	case len(prefixes) == 1:
		prefix = prefixes[0]
	default:
		return "", c.withoutOptim(ctx)
	}

	f, err := c.open(ctx, c.optim[prefix][0])
	if err != nil {
		return "", err
	}

	o, err := parseOptim(f[0])
	if err != nil {
		return "", err
	}

	c.ranks = []*optimState{o}
	name, other := modelName, c.model3
	if o.stage == 3 {
		name, other = modelName3, c.model
	}

	if !c.has(name) {
		return "", incomplete(name, "it has the names and shapes of the parameters")
	}

	if len(other) > 0 {
		c.note("model files of another stage of ZeRO than the optimizer files were ignored, because they are left over from another save: %d", len(other))
	}

	m, err := c.openModel(ctx, name)
	if err != nil {
		return "", err
	}

	c.models = []*modelState{m}
	return prefix, nil
}

// withoutOptim returns the error for a checkpoint without optimizer files of rank 0.
func (c *checkpoint) withoutOptim(ctx context.Context) error {
	const text = "every rank writes one with the weights in fp32"
	for _, p := range slices.Sorted(maps.Keys(c.optim)) {
		return incomplete(p+"zero_pp_rank_0_mp_rank_00_optim_states.pt", text)
	}

	for _, name := range []string{modelName, modelName3} {
		if c.has(name) {
			if _, err := c.openModel(ctx, name); err != nil {
				return err // without ZeRO
			}
		}
	}

	return incomplete("zero_pp_rank_0_mp_rank_00_optim_states.pt", text)
}

// has reports whether a model file is there.
func (c *checkpoint) has(name string) bool {
	return c.model[0] == name || c.model3[0] == name
}

// openModel opens a model file.
func (c *checkpoint) openModel(ctx context.Context, name string) (*modelState, error) {
	f, err := c.open(ctx, name)
	if err != nil {
		return nil, err
	}
	return parseModel(f[0], false)
}

// openRanks opens the files of the other ranks.
func (c *checkpoint) openRanks(ctx context.Context, prefix string) error {
	o, m := c.ranks[0], c.models[0]
	n := int(o.ranks)
	if w, ok := m.int("dp_world_size"); ok && w != o.ranks {
		return reading.Damaged(m.file.Name, "it is from a save of %d ranks, and %s from one of %d: the files of two saves are mixed", w, o.file.Name, n)
	}

	var names []string
	for r := 1; r < n; r++ {
		name := c.optim[prefix][r]
		if name == "" {
			return incomplete(fmt.Sprintf("%szero_pp_rank_%d_mp_rank_00_optim_states.pt", prefix, r), "%d ranks have written the checkpoint, and each has a part of every weight", n)
		}
		names = append(names, name)
	}

	c.noteLeftovers(prefix, n)
	optims := len(names)
	if o.stage == 3 {
		for r := 1; r < n; r++ {
			switch name := c.model3[r]; {
			case name != "":
				names = append(names, name)
			case len(m.frozen) > 0:
				return incomplete(fmt.Sprintf("zero_pp_rank_%d_mp_rank_00_model_states.pt", r), "it has a part of the parameters that are not trained")
			}
		}
		if k := n - 1 - (len(names) - optims); k > 0 {
			c.note("model files that are missing and were not needed: %d of %d", k, n)
		}
	}

	files, err := c.open(ctx, names...)
	if err != nil {
		return err
	}

	for i, f := range files {
		if i < optims {
			err = c.addRank(f)
		} else {
			err = c.addModel(f)
		}
		if err != nil {
			return err
		}
	}

	return nil
}

// noteLeftovers notes the files of ranks that the save did not have.
func (c *checkpoint) noteLeftovers(prefix string, n int) {
	var left []string
	for p, files := range c.optim {
		for r, name := range files {
			if r >= n || p != prefix {
				left = append(left, name)
			}
		}
	}

	for r, name := range c.model3 {
		if r >= n && c.ranks[0].stage == 3 {
			left = append(left, name)
		}
	}

	if len(left) > 0 {
		slices.Sort(left)
		c.note("%d ranks have written the checkpoint; files of other ranks, which are left over from another save, were ignored: %s", n, shown(left))
	}
}

// addRank adds the optimizer file of the next rank.
func (c *checkpoint) addRank(f *torchfile.File) error {
	o, err := parseOptim(f)
	if err != nil {
		return err
	}

	first := c.ranks[0]
	if o.stage != first.stage || o.ranks != first.ranks || len(o.flats) != len(first.flats) {
		return reading.Damaged(f.Name, "it is of ZeRO stage %d, %d ranks and %d groups, and %s of stage %d, %d ranks and %d groups: the files of two saves are mixed",
			o.stage, o.ranks, len(o.flats), first.file.Name, first.stage, first.ranks, len(first.flats))
	}

	c.ranks = append(c.ranks, o)
	return nil
}

// addModel adds a model file of stage 3.
func (c *checkpoint) addModel(f *torchfile.File) error {
	m, err := parseModel(f, false)
	if err != nil {
		return err
	}

	a, _ := c.models[0].int("global_steps")
	if b, _ := m.int("global_steps"); a != b {
		return reading.Damaged(f.Name, "it is of step %d, and %s of step %d: the files of two saves are mixed", b, c.models[0].file.Name, a)
	}

	c.models = append(c.models, m)
	return nil
}

// placed is a parameter with the places of its elements: boxes[i] begins at element
// from[i] of the flat tensor of rank[i].
type placed struct {
	param
	group int
	boxes []tensor.Box
	ranks []int
	from  []int64
}

// add adds the elements [lo, hi) of the parameter, which begin at element from of the
// flat tensor of a rank.
func (p *placed) add(rank int, from, lo, hi int64) error {
	boxes, err := tensor.FlatBoxes(p.shape, lo, hi)
	if err != nil {
		return err
	}
	for _, b := range boxes {
		p.boxes, p.ranks, p.from = append(p.boxes, b), append(p.ranks, rank), append(p.from, from)
		from += b.Volume()
	}
	return nil
}

// parts returns the parts of the parameter in the flat tensors of the ranks.
func (p *placed) parts(flat func(rank int) (*torchfile.File, *torchsave.Tensor)) []torchfile.Elements {
	out := make([]torchfile.Elements, len(p.boxes))
	for i := range out {
		out[i].File, out[i].Tensor = flat(p.ranks[i])
		out[i].From = p.from[i]
	}
	return out
}

// whole makes p a parameter without elements.
func (p *placed) whole() {
	p.boxes, p.ranks, p.from = []tensor.Box{tensor.Whole(p.shape)}, []int{0}, []int64{0}
}

// group is a group of parameters in one flat buffer, or a sub group in stage 3.
type group struct {
	params []placed
	// piece is the number of elements of a rank, and need how many of them each rank
	// must have at least, because parameters are there. The states of the optimizer may
	// have up to slack more, which are padding.
	piece, slack int64
	need         []int64
}

// readFlats describes the weights and the states in the flat partitions.
func (c *checkpoint) readFlats() error {
	m, first := c.models[0], c.ranks[0]
	if len(m.groups) != len(first.flats) {
		return reading.Damaged(first.file.Name, "it has %d groups, and param_shapes of %s has %d", len(first.flats), m.file.Name, len(m.groups))
	}

	disagree := 0
	for i, params := range m.groups {
		lay := c.layFlat
		if first.stage == 3 {
			lay = c.layPieces
		}

		g, err := lay(i, params)
		if err == nil {
			err = c.checkFlats(i, g)
		}
		if err != nil {
			return err
		}

		if first.stage < 3 {
			disagree += c.disagreeing(i, g)
		}

		if err := c.addGroup(i, g); err != nil {
			return err
		}
	}

	if disagree > 0 {
		c.note("param_slice_mappings of %d groups in optimizer files contradict param_shapes, as they do if round_robin_gradients is set: the weights are read by param_shapes, which is right; ds_to_universal would exchange parameters", disagree)
	}
	return c.addOptions(first.file, first.options)
}

// layFlat lays out the parameters of a group in stages 1 and 2: end to end in one buffer,
// which is padded and cut into a piece for each rank.
func (c *checkpoint) layFlat(i int, params []param) (*group, error) {
	o := c.ranks[0]
	starts, used, last := make([]int64, len(params)), int64(0), int64(0)
	for k, p := range params {
		pad, err := o.padding(i, k)
		if err != nil {
			return nil, err
		}
		if used += last; used > math.MaxInt64/16-p.elements || pad > math.MaxInt64/16 {
			return nil, reading.Damaged(c.models[0].file.Name, "group %d has too many elements", i)
		}
		starts[k], last = used, pad
		used += p.elements
	}

	piece, err := c.piece(i, used, last)
	if err != nil {
		return nil, err
	}

	g := &group{params: make([]placed, len(params)), piece: piece, slack: last + 2*int64(len(c.ranks)), need: make([]int64, len(c.ranks))}
	for k, p := range params {
		g.params[k] = placed{param: p, group: i}
		end := starts[k] + p.elements
		for at := starts[k]; at < end; {
			r := at / piece
			hi := min(end, (r+1)*piece)
			if err := g.params[k].add(int(r), at-r*piece, at-starts[k], hi-starts[k]); err != nil {
				return nil, err
			}
			g.need[r] = max(g.need[r], hi-r*piece)
			at = hi
		}

		if p.elements == 0 {
			g.params[k].whole()
		}
	}

	return g, nil
}

// piece returns the number of elements of each rank in a group. Its parameters take used
// elements and are followed by last elements: the buffer is padded to a multiple of twice the
// number of ranks. Files from which the padding was taken away are shorter.
func (c *checkpoint) piece(i int, used, last int64) (int64, error) {
	n := int64(len(c.ranks))
	piece := (used + 2*n - 1) / (2 * n) * 2
	longest := int64(0)
	for _, o := range c.ranks {
		longest = max(longest, o.flats[i].Shape[0])
	}

	if longest <= piece {
		return max(1, piece), nil
	}

	// An alignment that is larger: then the pieces are as long as the longest one.
	if longest*n-used > last+2*n {
		return 0, reading.Damaged(c.ranks[0].file.Name, "group %d has %d elements on %d ranks, and its parameters in %s take %d", i, longest*n, n, c.models[0].file.Name, used)
	}
	return longest, nil
}

// layPieces lays out the parameters of a sub group in stage 3: each parameter is padded
// and cut into a piece for each rank, and a rank has its pieces of all of them end to end.
func (c *checkpoint) layPieces(i int, params []param) (*group, error) {
	n := int64(len(c.ranks))
	g := &group{params: make([]placed, len(params)), need: make([]int64, n)}
	for k, p := range params {
		g.params[k] = placed{param: p, group: i}
		part := p.elements / n
		if p.elements%n > 0 {
			part++
		}

		if g.piece > math.MaxInt64/16-part {
			return nil, reading.Damaged(c.models[0].file.Name, "sub group %d has too many elements", i)
		}

		for r := range n {
			if lo, hi := r*part, min(p.elements, (r+1)*part); lo < hi {
				if err := g.params[k].add(int(r), g.piece, lo, hi); err != nil {
					return nil, err
				}
			}
		}

		if p.elements == 0 {
			g.params[k].whole()
		}
		g.piece += part
	}

	for r := range g.need {
		g.need[r] = g.piece
	}

	return g, nil
}

// checkFlats checks that the flat tensors of a group hold its parameters.
func (c *checkpoint) checkFlats(i int, g *group) error {
	for r, o := range c.ranks {
		have := o.flats[i].Shape[0]
		if have < g.need[r] || have > g.piece {
			return reading.Damaged(o.file.Name, "its group %d has %d elements; the parameters that %s lists need %d to %d", i, have, c.models[0].file.Name, g.need[r], g.piece)
		}
		if err := o.claim(o.flats[i], fmt.Sprintf("the weights of group %d", i)); err != nil {
			return err
		}
	}
	return nil
}

// disagreeing returns how many ranks have another list of the places of the parameters
// in a group.
func (c *checkpoint) disagreeing(i int, g *group) int {
	places := make([]map[string][2]int64, len(c.ranks))
	for r := range places {
		places[r] = map[string][2]int64{}
	}

	for k := range g.params {
		p := &g.params[k]
		for j, b := range p.boxes {
			at := places[p.ranks[j]]
			if was, ok := at[p.name]; ok {
				at[p.name] = [2]int64{was[0], was[1] + b.Volume()}
			} else if p.elements > 0 {
				at[p.name] = [2]int64{p.from[j], b.Volume()}
			}
		}
	}

	n := 0
	for r, o := range c.ranks {
		if !o.agrees(i, places[r]) {
			n++
		}
	}

	return n
}

// addGroup adds the weights and the states of a group.
func (c *checkpoint) addGroup(i int, g *group) error {
	for k := range g.params {
		p := &g.params[k]
		parts := p.parts(func(r int) (*torchfile.File, *torchsave.Tensor) { return c.ranks[r].file, c.ranks[r].flats[i] })
		c.trained = append(c.trained, p.name)
		if err := c.addWeight(p.name, c.b.Gathered(modelPath(p.name), widened(c.ranks[0].flats[i].DType), p.shape, p.boxes, parts)); err != nil {
			return err
		}
	}

	states, err := c.ranks[0].state(i)
	if err != nil || len(g.params) == 0 {
		return err
	}

	for _, s := range states {
		name, ok := s.Key.(string)
		if !ok {
			continue
		}
		if err := c.addState(i, g, name, s.Value); err != nil {
			return err
		}
	}

	if _, ok := get(c.ranks[0].states[i], "step"); !ok {
		return c.addGroupStep(i, g)
	}
	return nil
}

// addState adds one state of all parameters of a group. v is the state on rank 0.
func (c *checkpoint) addState(i int, g *group, name string, v any) error {
	t, ok := v.(*torchsave.Tensor)
	if !ok || len(t.Shape) == 0 || name == "step" && t.Contiguous() && t.NumBytes() == int64(t.DType.Size()) {
		if name == "step" {
			if err := c.compareSteps(i, g.params[0].name, v, func(o *optimState) any {
				v, _ := get(o.states[i], name)
				return v
			}); err != nil {
				return err
			}
		}
		return c.addScalar(c.ranks[0].file, g.params, name, v)
	}

	flats := make([]*torchsave.Tensor, len(c.ranks))
	for r, o := range c.ranks {
		states, err := o.state(i)
		if err != nil {
			return err
		}

		for _, s := range states {
			if s.Key == any(name) {
				flats[r], _ = s.Value.(*torchsave.Tensor)
			}
		}

		if flats[r] == nil {
			return reading.Damaged(o.file.Name, "group %d has no state %q, which it has on rank 0", i, name)
		}
		if f := flats[r]; !isFlat(f) || f.Shape[0] > g.piece+g.slack || f.Shape[0] < g.need[r] {
			return c.addUncut(i, name)
		}
	}

	for r, o := range c.ranks {
		if err := o.claim(flats[r], fmt.Sprintf("the state %q of group %d", name, i)); err != nil {
			return err
		}
	}

	for k := range g.params {
		p := &g.params[k]
		parts := p.parts(func(r int) (*torchfile.File, *torchsave.Tensor) { return c.ranks[r].file, flats[r] })
		if err := c.append(c.b.Gathered(statePath(p.name, name), t.DType, p.shape, p.boxes, parts)); err != nil {
			return err
		}
	}

	return nil
}

// addUncut adds a state with elements that do not belong to elements of parameters, as it is
// on each rank.
func (c *checkpoint) addUncut(i int, name string) error {
	c.note("the state %q of the optimizer does not have an element for each element of group %d: it is below deepspeed.states, as each rank holds it", name, i)
	for r, o := range c.ranks {
		states, err := o.state(i)
		if err != nil {
			return err
		}

		for _, s := range states {
			if s.Key == any(name) {
				if err := c.b.Add(o.file, meta.Path{meta.Key("deepspeed"), meta.Key("states"), meta.Pos(i), meta.Pos(r), meta.Key(name)}, s.Value); err != nil {
					return err
				}
			}
		}
	}

	return nil
}

// addScalar adds a state that all parameters of a group share.
func (c *checkpoint) addScalar(f *torchfile.File, params []placed, name string, v any) error {
	for k := range params {
		p := &params[k]
		if err := c.addScalarOf(f, p.name, name, v); err != nil {
			return err
		}
	}
	return nil
}

// addScalarOf adds a state of a parameter that is a number, or a tensor without dimensions.
// Such tensors are not tied, although they are at one place: an optimizer counts its steps
// in each of them.
func (c *checkpoint) addScalarOf(f *torchfile.File, param, state string, v any) error {
	at := statePath(param, state)
	switch v := v.(type) {
	case *torchsave.Tensor:
		return c.append(c.b.View(at, v.DType, param, f, v))
	case int64:
		if state == "step" {
			return c.append(c.b.Constant(at, tensor.Float32, f, float64(v)))
		}
	case float64:
		if state == "step" {
			return c.append(c.b.Constant(at, tensor.Float32, f, v))
		}
	}

	if err := c.room(1); err != nil {
		return err
	}
	return c.b.Add(f, at, v)
}

// addGroupStep adds the steps of a group if its optimizer counts them in the options of the
// group, as FusedAdam of some versions does.
func (c *checkpoint) addGroupStep(i int, g *group) error {
	o := c.ranks[0]
	if pairs, _ := pairsOf(o.states[i]); len(pairs) == 0 {
		return nil
	}

	step := func(o *optimState) any {
		v, ok := get(o.root, "base_optimizer_state_step")
		if option := c.optionsOf(o.options, i); !ok && option != nil {
			v, _ = get(option, "step")
		}
		return v
	}
	n, isInt := step(o).(int64)
	if !isInt {
		return nil
	}

	if err := c.compareSteps(i, g.params[0].name, n, step); err != nil {
		return err
	}
	return c.addScalar(o.file, g.params, "step", n)
}

// compareSteps compares the step of a group on all ranks with v, the step on rank 0, which
// becomes the step of a parameter. Files of another step are files of another save; stage 3
// has no other sign of it. Steps in tensors are compared as copies: once for each rank,
// because a read takes long.
func (c *checkpoint) compareSteps(i int, param string, v any, step func(o *optimState) any) error {
	t, isTensor := v.(*torchsave.Tensor)
	_, isInt := v.(int64)
	_, isFloat := v.(float64)
	if isTensor && c.compared || !isTensor && !isInt && !isFloat {
		return nil
	}

	c.compared = c.compared || isTensor
	for _, o := range c.ranks[1:] {
		w := step(o)
		u, both := w.(*torchsave.Tensor)
		if isTensor && both && slices.Equal(t.Shape, u.Shape) {
			e := c.b.View(meta.Path{meta.Key("step in " + o.file.Name)}, u.DType, "", o.file, u)
			c.copies = append(c.copies, reading.Copy{FQN: statePath(param, "step").FQN(), Entry: e})
		} else if isTensor || both || v != w {
			return reading.Damaged(o.file.Name, "its group %d is of step %v, and on rank 0 of step %v: the files of two saves are mixed", i, w, v)
		}
	}

	return nil
}

// optionsOf returns the options of the group that sub group i is in, or nil.
func (c *checkpoint) optionsOf(options []any, i int) any {
	for _, g := range options {
		params, _ := get(g, "params")
		n := len(listOf(params))
		if i < n {
			return g
		}
		i -= n
	}
	return nil
}

// addFrozen adds the parameters that are not trained, of stage 3: each rank has a piece.
func (c *checkpoint) addFrozen() error {
	n := int64(len(c.models))
	for _, p := range c.models[0].frozen {
		q := placed{param: p}
		part := p.elements / n
		if p.elements%n > 0 {
			part++
		}

		var dtype tensor.DType
		for r := range n {
			m := c.models[r]
			t := m.fragments[p.name]
			lo, hi := r*part, min(p.elements, (r+1)*part)
			if t == nil || !isFlat(t) || t.Shape[0] < hi-lo {
				return reading.Damaged(m.file.Name, "it has no piece of %q, of %d elements", p.name, max(0, hi-lo))
			}

			dtype = cmp.Or(dtype, t.DType)
			if lo < hi {
				if err := q.add(int(r), 0, lo, hi); err != nil {
					return err
				}
			}
		}

		if p.elements == 0 {
			q.whole()
		}

		parts := q.parts(func(r int) (*torchfile.File, *torchsave.Tensor) {
			return c.models[r].file, c.models[r].fragments[p.name]
		})
		if err := c.addWeight(p.name, c.b.Gathered(modelPath(p.name), widened(dtype), p.shape, q.boxes, parts)); err != nil {
			return err
		}
	}

	return nil
}

// widened returns the dtype of a weight under model: fp32 instead of 16 bits.
func widened(d tensor.DType) tensor.DType {
	if is16(d) {
		return tensor.Float32
	}
	return d
}

func is16(d tensor.DType) bool { return d == tensor.Float16 || d == tensor.BFloat16 }

// maxEntries bounds the names of a checkpoint, and maxChunks their chunks: a few bytes of
// a pickle can describe many.
const (
	maxEntries = 1 << 22
	maxChunks  = 1 << 25
)

// room counts chunks of one more name.
func (c *checkpoint) room(chunks int) error {
	c.entries++
	c.chunks += chunks
	if c.entries > maxEntries || c.chunks > maxChunks {
		return fmt.Errorf("%w: %s has more than %d names, or more than %d chunks", storage.ErrVersion, c.store, maxEntries, maxChunks)
	}
	return nil
}
