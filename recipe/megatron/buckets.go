package megatron

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

var (
	bucketName = regexp.MustCompile(`^(?:chained_([0-9]{1,6})\.)?optimizer\.distributed\.dp_group_idx_([0-9]{1,9})\.gbuf_idx_([0-9]{1,6})\.dtype_\(torch\.([a-z0-9_]+), torch\.[a-z0-9_]+\)\.bucket_idx_([0-9]{1,9})\.([A-Za-z0-9_]+)$`)
	bucketPart = regexp.MustCompile(`^(?:chained_[0-9]+\.)?optimizer\.distributed\.dp_group_idx_[0-9]+\.`)
)

// bucket is a part of a buffer of a model-parallel group.
type bucket struct {
	at     [4]int // the optimizer, the group, the buffer, the bucket
	dtype  string // of the parameters
	length int64
	states map[string]*meta.Entry
	// borders are where chunks of the master weights begin and end. Parameters do, too.
	borders map[int64]bool
	// proven means that master weights, rounded, are the weights.
	proven bool
}

func (b *bucket) String() string {
	return fmt.Sprintf("bucket %d of buffer %d of group %d", b.at[3], b.at[2], b.at[1])
}

// readBuckets returns the buckets of the checkpoint, in order.
func (k *binder) readBuckets() ([]*bucket, error) {
	found := map[string]*bucket{}
	states := map[string]int{}
	for i := range k.md.Entries {
		e := &k.md.Entries[i]
		m := bucketName.FindStringSubmatch(e.FQN)
		if m == nil || e.Tensor == nil {
			if m == nil && e.Tensor != nil && bucketPart.MatchString(e.FQN) {
				return nil, incompletef("%q is a state with a name that Megatron's buckets do not have", e.FQN)
			}
			continue
		}
		if len(e.Tensor.Shape) != 1 {
			return nil, incompletef("%q has the shape %v: a bucket has one dimension", e.FQN, e.Tensor.Shape)
		}

		key := strings.TrimSuffix(e.FQN, m[6])
		b := found[key]
		if b == nil {
			b = &bucket{dtype: m[4], length: e.Tensor.Shape[0], states: map[string]*meta.Entry{}}
			for n, j := range []int{1, 2, 3, 5} {
				b.at[n], _ = strconv.Atoi(m[j])
			}
			found[key] = b
		}
		if e.Tensor.Shape[0] != b.length {
			return nil, incompletef("%q has %d elements, another state of the bucket %d", e.FQN, e.Tensor.Shape[0], b.length)
		}
		b.states[m[6]] = e
		states[m[6]]++
	}

	for _, s := range slices.Sorted(maps.Keys(states)) {
		if states[s] != len(found) {
			return nil, incompletef("%d of %d buckets have the state %s", states[s], len(found), s)
		}
		k.states = append(k.states, s)
	}
	out := slices.SortedFunc(maps.Values(found), func(a, b *bucket) int {
		return cmp.Or(slices.Compare(a.at[:3], b.at[:3]), strings.Compare(a.dtype, b.dtype), cmp.Compare(a.at[3], b.at[3]))
	})
	for i, b := range out {
		want := 0
		if i > 0 && out[i-1].dtype == b.dtype && slices.Equal(out[i-1].at[:3], b.at[:3]) {
			want = out[i-1].at[3] + 1
		}
		if b.at[3] != want {
			return nil, incompletef("the checkpoint has no bucket %d of buffer %d of group %d", want, b.at[2], b.at[1])
		}
		if err := k.describe(b); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// describe sets the borders of a bucket, and whether its master weights prove its layout.
func (k *binder) describe(b *bucket) error {
	e, why := b.states[master], ""
	d, err := tensor.LookupDType(b.dtype)
	switch {
	case e == nil:
		why = "has no state " + master
		e = b.states[k.states[0]] // its chunks have the same borders
	case err != nil || !exact(d):
		why = fmt.Sprintf("has the states of weights of torch.%s, to which master weights are not simply rounded", b.dtype)
	case !exact(e.Tensor.DType):
		why = fmt.Sprintf("has master weights of %v, which are parts of numbers", e.Tensor.DType)
	}
	if why != "" && !k.o.Unproven {
		return incompletef("%s %s: %w", b, why, errUnproven)
	}

	b.proven = why == ""
	k.unproven[e.FQN] = !b.proven
	b.borders = map[int64]bool{0: true, b.length: true}
	for _, c := range e.Tensor.Chunks {
		b.borders[c.Offsets[0]], b.borders[c.End(0)] = true, true
	}
	return nil
}

// groups are the model-parallel groups of the optimizers.
type groups struct {
	dense, expert map[int]int // the group of a rank
	expertChain   int         // the optimizer of the experts; -1: none
	number        int         // of groups for dense parameters
}

func (g *groups) of(rank int, expert bool) int {
	from := g.dense
	if expert && g.expertChain >= 0 {
		from = g.expert
	}
	if n, ok := from[rank]; ok {
		return n
	}
	return anyGroup
}

// findGroups finds the group of each rank: the ranks that wrote buckets of a group.
func (k *binder) findGroups(buckets []*bucket) (*groups, error) {
	out := &groups{dense: map[int]int{}, expert: map[int]int{}, expertChain: -1}
	last := buckets[len(buckets)-1].at[0]
	if last > buckets[0].at[0] && slices.ContainsFunc(k.weights(), func(e *meta.Entry) bool { return strings.Contains(e.FQN, ".experts.") }) {
		out.expertChain = last
	}

	seen := map[[2]int]bool{}
	most := map[int]int{}
	for _, b := range buckets {
		seen[[2]int{b.at[0], b.at[1]}] = true
		most[b.at[0]] = max(most[b.at[0]], b.at[1]+1)
		to := out.dense
		if b.at[0] == out.expertChain {
			to = out.expert
		} else {
			out.number = max(out.number, b.at[1]+1)
		}
		for _, e := range b.states {
			for i := range e.Tensor.Locs {
				rank := writerOf(&e.Tensor.Locs[i])
				if g, ok := to[rank]; rank < 0 || ok && g != b.at[1] {
					to[rank] = anyGroup
					continue
				}
				to[rank] = b.at[1]
			}
		}
	}
	for chain, n := range most {
		if n > len(buckets) {
			return nil, incompletef("the checkpoint has a state of group %d, and %d buckets", n-1, len(buckets))
		}
		for g := range n {
			if !seen[[2]int{chain, g}] {
				return nil, incompletef("the checkpoint has no states of group %d, but of group %d", g, n-1)
			}
		}
	}
	return out, nil
}

// candidates returns the parameters that a group may have.
func (k *binder) candidates(units []*unit, g *groups, chain, group int) []*param {
	experts := chain == g.expertChain
	width := 1 // the tensor parallel size
	output := false
	for _, u := range units {
		if !u.isExpert {
			width = max(width, len(u.parts))
		}
		output = output || section(u.name) == atOutput
	}
	stage := func(n int) int { return n / width }

	var out []*param
	for _, u := range units {
		if g.expertChain >= 0 && u.isExpert != experts {
			continue
		}
		only := anyGroup
		if len(u.parts) == 1 {
			for only = range u.parts {
			}
		}
		switch pieces := u.parts[group]; {
		case len(pieces) > 0:
			p := newParam(u, pieces)
			p.optional = notTrained.MatchString(u.name)
			out = append(out, p)
		case u.parts[anyGroup] != nil:
			p := newParam(u, u.parts[anyGroup])
			p.optional = true
			out = append(out, p)
		case !experts && len(u.parts) == 1 && stage(only) == stage(group):
			p := newParam(u, u.parts[only])
			p.optional = notTrained.MatchString(u.name)
			out = append(out, p)
		case !experts && !output && section(u.name) == atEmbedding && stage(group) > 0 && group%width < len(u.parts):
			// The last stage has a copy of the embedding, which is its output layer.
			from := slices.Sorted(maps.Keys(u.parts))[group%width]
			p := newParam(u, u.parts[from])
			p.optional, p.as = true, "output_layer.weight"
			out = append(out, p)
		}
	}
	return out
}

// notTrained matches names of tensors that are no parameters.
var notTrained = regexp.MustCompile(`\.(expert_bias|local_tokens_per_expert|inv_freq)$`)

// placed is a parameter and its place.
type placed struct {
	param  *param
	bucket *bucket
	at     int64
}

// buckets binds states in buckets: it finds the parameters in them.
func (k *binder) buckets() error {
	all, err := k.readBuckets()
	if err != nil {
		return err
	}
	g, err := k.findGroups(all)
	if err != nil {
		return err
	}
	units := k.units(g.of)

	type run struct { // the optimizers of dense parameters share one order
		group  int
		dtype  string
		expert bool
	}
	var order []run
	of := map[run][]*bucket{}
	for _, b := range all {
		r := run{b.at[1], b.dtype, b.at[0] == g.expertChain}
		if of[r] == nil {
			order = append(order, r)
		}
		of[r] = append(of[r], b)
	}
	if len(order)*len(units) > maxPairs {
		return incompletef("%d groups and %d weights of layers are too many", len(order), len(units))
	}

	var found []placed
	for _, r := range order {
		list := k.candidates(units, g, of[r][0].at[0], r.group)
		if d, err := tensor.LookupDType(r.dtype); err == nil && exact(d) {
			list = slices.DeleteFunc(list, func(p *param) bool { return p.unit.dtype != d })
		}
		at, err := k.layOut(of[r], list)
		if err != nil {
			return err
		}
		found = append(found, at...)
	}
	return k.assemble(found)
}

// assemble makes the states of all weights of the parameters that were found.
func (k *binder) assemble(found []placed) error {
	type at struct {
		weight string
		box    string
	}
	parts := map[string]map[string][]recipe.Part{} // by weight and state
	first := map[at]placed{}
	begin := map[at]int64{}
	for _, f := range found {
		offset := f.at
		for _, p := range f.param.pieces {
			key := at{p.weight.FQN, fmt.Sprint(p.box)}
			if lead, twice := first[key]; twice {
				k.same(lead.bucket, f.bucket, begin[key], offset, p)
				offset += p.box.Volume()
				continue
			}
			first[key], begin[key] = f, offset
			if parts[p.weight.FQN] == nil {
				parts[p.weight.FQN] = map[string][]recipe.Part{}
			}
			for _, s := range k.states {
				parts[p.weight.FQN][s] = append(parts[p.weight.FQN][s], recipe.Part{Source: f.bucket.states[s].FQN, Map: flat(p.box, []int64{offset}, 0)})
			}
			offset += p.box.Volume()
		}
	}

	for _, w := range k.weights() {
		if parts[w.FQN] == nil {
			if !notTrained.MatchString(w.FQN) {
				k.notes = append(k.notes, fmt.Sprintf("%q has no optimizer states", w.FQN))
			}
			continue
		}
		for _, s := range k.states {
			var props meta.Properties
			for _, p := range parts[w.FQN][s] {
				e, _ := k.md.Find(p.Source)
				if props.DType.Valid() && props.DType != e.Tensor.DType {
					return incompletef("the state %s of %q has elements of %v and of %v", s, w.FQN, props.DType, e.Tensor.DType)
				}
				props = e.Tensor.Properties
			}
			if err := k.add(s, w, props, parts[w.FQN][s]); err != nil {
				return err
			}
		}
	}
	return nil
}

// same adds the checks of a copy of a parameter: its states are the states of the first one.
func (k *binder) same(lead, b *bucket, begin, offset int64, p piece) {
	n := p.box.Volume()
	for _, s := range k.states {
		m := remap.Piece{To: []int64{begin}, From: []int64{offset}, Axes: []remap.Axis{{Size: n, ToStep: 1, FromStep: 1}}}
		k.out.Checks = append(k.out.Checks, recipe.Check{Source: b.states[s].FQN, Other: lead.states[s].FQN, Map: m, Rounded: true})
	}
}

var errSteps = errors.New("the order of the parameters takes too many steps to find")
