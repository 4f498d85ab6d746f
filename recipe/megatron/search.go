package megatron

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/remap"
)

const (
	// alignment is how many elements the distance of the beginnings of two parameters in a
	// buffer is a multiple of.
	alignment = 64
	// probeElements is how many elements of a piece are compared to find its place.
	probeElements = 4096
	// maxSteps and stepsEach bound how many parameters are tried for a place: in all groups
	// together, and for each parameter of a group.
	maxSteps  = 1 << 20
	stepsEach = 16
	// maxPairs bounds the groups times the parameters of the model.
	maxPairs = 1 << 28
)

func align(n int64) int64 { return (n + alignment - 1) / alignment * alignment }

// search lays out parameters in buckets, one after the other.
type search struct {
	k       *binder
	buckets []*bucket
	list    []*param
	// free allows any order, and parameters without a place. blind looks at the borders of
	// chunks only, not at values.
	free   bool
	blind  bool
	taken  []bool
	out    []placed
	probes map[placed]bool
}

// layOut finds the parameters of a group in its buckets: in an order in which Megatron
// registers them, or else in the order that the values show.
func (k *binder) layOut(buckets []*bucket, list []*param) ([]placed, error) {
	s := &search{k: k, buckets: buckets, probes: map[placed]bool{}}
	k.steps += stepsEach * len(list)
	for _, style := range styles {
		s.list = order(list, buckets, style)
		if ok, err := s.run(false); err != nil || ok {
			if ok {
				err = s.ties(true)
			}
			return s.out, err
		}
	}

	if !buckets[0].proven {
		return nil, incompletef("%s and the next ones have another length than the parameters of the group, in any order of Megatron", buckets[0])
	}
	s.list = order(list, buckets, styles[0])
	if ok, err := s.run(true); err != nil || ok {
		if ok {
			err = s.ties(false)
		}
		return s.out, err
	}

	// Some master weights are wrong. In an order of Megatron, the checks of the binding name them.
	s.blind = true
	for _, style := range styles {
		s.list = order(list, buckets, style)
		if ok, err := s.run(false); err != nil || ok {
			return s.out, err
		}
	}
	return nil, incompletef("%s and the next ones hold no sequence of parameters: no order of the weights of the group gives master weights that are the weights, rounded", buckets[0])
}

// order returns the parameters in the order of buffers. If there are several buffers, each has
// the layers of one chunk of the model.
func order(list []*param, buckets []*bucket, s style) []*param {
	var spans []int64 // of the buffers
	for i, b := range buckets {
		if i == 0 || [3]int(b.at[:3]) != [3]int(buckets[i-1].at[:3]) {
			spans = append(spans, 0)
		}
		spans[len(spans)-1] += align(b.length)
	}

	chunk := chunkOf(list, spans)
	of := make([][]*param, len(spans))
	for _, p := range list {
		i := len(of) - 1
		switch section(p.as) {
		case atEmbedding:
			i = 0
		case atLayers:
			i = chunk[p.unit.layer]
		}
		of[i] = append(of[i], p)
	}
	for _, c := range of {
		registered(c, s)
	}
	return slices.Concat(of...)
}

// chunkOf returns the chunk of the model that has each layer. The buffer of a chunk with its gaps is
// as long as the parameters of the chunk, each rounded up to the alignment. If no cut of the layers
// has these lengths, each chunk has equally many layers.
func chunkOf(list []*param, spans []int64) map[int64]int {
	size := map[int64]int64{}
	room := slices.Clone(spans)
	for _, p := range list {
		n := align(p.size)
		if p.optional {
			n = 0
		}
		switch section(p.as) {
		case atLayers:
			size[p.unit.layer] += n
		case atEmbedding:
			room[0] -= n
		}
	}

	layers := slices.Sorted(maps.Keys(size))
	i, out := 0, map[int64]int{}
	for _, l := range layers {
		for i < len(room)-1 && room[i] == 0 {
			i++
		}
		room[i] -= size[l]
		out[l] = i
	}
	if !slices.ContainsFunc(room[:len(room)-1], func(n int64) bool { return n != 0 }) {
		return out
	}
	for at, l := range layers {
		out[l] = at * len(spans) / len(layers)
	}
	return out
}

func (s *search) run(free bool) (bool, error) {
	s.free, s.taken, s.out = free, make([]bool, len(s.list)), nil
	return s.from(0, 0, 0)
}

// from lays out the buckets from the element at of bucket b on, with the parameter next or one
// after it.
func (s *search) from(b int, at int64, next int) (bool, error) {
	if b == len(s.buckets) {
		if s.free {
			return true, nil
		}
		for i, p := range s.list {
			if !s.taken[i] && !p.optional {
				return false, nil
			}
		}
		return true, nil
	}
	if s.buckets[b].length == 0 {
		return s.from(b+1, 0, next)
	}

	for n := range s.list {
		i := next + n
		if i >= len(s.list) {
			if !s.free {
				break
			}
			i -= len(s.list)
		}
		if s.taken[i] {
			continue
		}

		p := s.list[i]
		fits, err := s.fits(placed{p, s.buckets[b], at})
		if err != nil {
			return false, err
		}
		if fits {
			end := at + p.size
			s.taken[i] = true
			s.out = append(s.out, placed{p, s.buckets[b], at})
			to, start := b, align(end)
			// A bucket ends with its last parameter, or at the next multiple behind it.
			if start >= s.buckets[b].length {
				to, start = b+1, 0
			}
			if ok, err := s.from(to, start, i+1); ok || err != nil {
				return ok, err
			}
			s.taken[i] = false
			s.out = s.out[:len(s.out)-1]
		}
		if !s.free && !p.optional {
			break
		}
	}
	return false, nil
}

// fits reports whether a parameter may be at a place: borders of chunks are there, and the
// first master weights of each piece, rounded, are the weights.
func (s *search) fits(at placed) (bool, error) {
	if s.k.steps--; s.k.steps < 0 {
		return false, incompletef("%s: %w", at.bucket, errSteps)
	}
	end := at.at + at.param.size
	b := at.bucket
	if at.param.size == 0 || end > b.length || !b.borders[at.at] || !b.borders[end] {
		return false, nil
	}
	if !b.proven || s.blind {
		return true, nil
	}
	if ok, known := s.probes[at]; known {
		return ok, nil
	}
	ok, err := s.k.probe(at)
	s.probes[at] = ok
	return ok, err
}

// probe compares the first elements of the pieces of a parameter.
func (k *binder) probe(at placed) (bool, error) {
	offset := at.at
	for _, p := range at.param.pieces {
		c := recipe.Check{Source: at.bucket.states[master].FQN, Other: p.weight.FQN, Map: few(flat(p.box, []int64{offset}, 0)), Rounded: true}
		if ok, err := k.o.Match(c); !ok || err != nil {
			return false, err
		}
		offset += p.box.Volume()
	}
	return true, nil
}

// few returns the first elements of a piece.
func few(p remap.Piece) remap.Piece {
	for p.Volume() > probeElements {
		longest := 0
		for i, a := range p.Axes {
			if a.Size > p.Axes[longest].Size {
				longest = i
			}
		}
		p, _ = p.Split(longest)
	}
	return p
}

// ties notes that weights of parameters are equal, so that values do not tell which states are
// whose. known means that the order is Megatron's: then neighbours of the same size are
// enough to compare.
func (s *search) ties(known bool) error {
	if len(s.out) == 0 {
		return nil
	}
	if !s.buckets[0].proven {
		s.k.notes = append(s.k.notes, fmt.Sprintf("group %d: the states of %d weights, such as %s, are where Megatron lays them out, which no value proves", s.buckets[0].at[1], len(s.out), s.out[0].param))
		return nil
	}
	bySize := map[int64][]placed{}
	for _, p := range s.out {
		bySize[p.param.size] = append(bySize[p.param.size], p)
	}

	number, example := 0, ""
	for _, p := range s.out {
		others := bySize[p.param.size][1:]
		bySize[p.param.size] = others
		if known && len(others) > 1 {
			others = others[:1]
		}
		for _, q := range others {
			if s.k.steps--; s.k.steps < 0 {
				return incompletef("%s: %w", p.bucket, errSteps)
			}
			equal, err := s.k.probe(placed{q.param, p.bucket, p.at})
			if err != nil {
				return err
			}
			if equal {
				if number++; number == 1 {
					example = fmt.Sprintf("%s and %s", p.param, q.param)
				}
				break
			}
		}
	}
	if number == 0 {
		return nil
	}

	how := "they are assigned in the order in which Megatron registers parameters"
	if !known {
		how = "they may be exchanged, because the order of the other parameters is not an order that is known of Megatron"
	}
	s.k.notes = append(s.k.notes, fmt.Sprintf("group %d: values do not tell apart the states of weights that are equal, such as %s, %d in all: %s", s.buckets[0].at[1], example, number, how))
	return nil
}
