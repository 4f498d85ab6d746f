package megatron_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/megatron"
	"github.com/cairn-ckpt/cairn/recipe/remap"
	"github.com/cairn-ckpt/cairn/tensor"
)

// job is a job of Megatron with a model of two kinds of layers, which saves in buckets.
type job struct {
	tp, pp, dp, vpp, ep int
	layers              int
	fused, biases       bool
	tied, ones          bool
	bucket              int64 // the least elements of a bucket; 0: one bucket
	uneven              bool  // the first chunk of a stage has one layer less than the second
	shuffled            bool  // the parameters of a layer are in an order that no Megatron has
}

// checkpoint has the metadata of a checkpoint, and numbers for all elements.
type checkpoint struct {
	md     *meta.Metadata
	values map[string][]int64
	// weights are the numbers of the weights, and moments of their states, by name.
	weights, moments map[string][]int64
}

// local is a parameter of a rank: rows of a weight, which may be cut into halves.
type local struct {
	weight string
	shape  []int64
	pieces []tensor.Box
	expert bool
}

const hidden, ffn, vocab = 8, 12, 16

// save lays out the buckets of a job as Megatron does.
func (j job) save(t testing.TB) *checkpoint {
	t.Helper()
	c := &checkpoint{md: &meta.Metadata{}, values: map[string][]int64{}, weights: map[string][]int64{}, moments: map[string][]int64{}}
	r := rand.New(rand.NewPCG(1, 2))
	chunks := map[string]map[string]int{} // of weights: box → rank
	boxes := map[string]map[string]tensor.Box{}
	shapes := map[string][]int64{}

	perStage := j.layers / j.pp
	for _, experts := range []bool{false, true} {
		if experts && j.ep == 0 {
			continue
		}
		prefix := ""
		if j.ep > 0 {
			prefix = "chained_0."
		}
		width := j.tp
		if experts {
			prefix, width = "chained_1.", j.ep
		}
		for pp := range j.pp {
			for w := range width {
				group := w + width*pp
				rank := pp*max(j.tp*j.dp, j.ep) + w // of the first member
				for chunk := range j.vpp {
					var params []local
					n, begin := perStage/j.vpp, pp*perStage+chunk*(perStage/j.vpp)
					if j.uneven {
						n, begin = n-1+2*chunk, begin-chunk
					}
					if pp == 0 && chunk == 0 && !experts {
						params = append(params, rows("embedding.word_embeddings.weight", vocab, hidden, w, j.tp))
					}
					for i := range n {
						layer := int64(begin + i)
						params = append(params, j.layer(layer, w, experts)...)
					}
					if pp == j.pp-1 && chunk == j.vpp-1 && !experts {
						params = append(params, local{weight: "decoder.final_layernorm.weight", shape: []int64{hidden}, pieces: []tensor.Box{tensor.Whole([]int64{hidden})}})
						name := "output_layer.weight"
						if j.tied {
							name = "embedding.word_embeddings.weight"
						}
						if !j.tied || j.pp > 1 {
							params = append(params, rows(name, vocab, hidden, w, j.tp))
						}
					}
					slices.Reverse(params)
					if j.shuffled {
						r.Shuffle(len(params), func(a, b int) { params[a], params[b] = params[b], params[a] })
					}
					j.fill(c, params, prefix, group, chunk, rank, r)
					for _, p := range params {
						if chunks[p.weight] == nil {
							chunks[p.weight], boxes[p.weight] = map[string]int{}, map[string]tensor.Box{}
						}
						shapes[p.weight] = p.shape
						for _, b := range p.pieces {
							key := fmt.Sprint(b)
							if _, ok := chunks[p.weight][key]; !ok {
								chunks[p.weight][key], boxes[p.weight][key] = rank, b
							}
						}
					}
				}
			}
		}
	}

	for name, of := range chunks {
		e := meta.Entry{FQN: name, Tensor: &meta.Tensor{Properties: meta.Properties{DType: tensor.BFloat16}, Shape: shapes[name]}}
		for _, key := range slices.Sorted(maps.Keys(of)) {
			e.Tensor.Chunks = append(e.Tensor.Chunks, boxes[name][key])
			e.Tensor.Locs = append(e.Tensor.Locs, meta.Location{File: fmt.Sprintf("__%d_0.distcp", of[key])})
		}
		c.md.Entries = append(c.md.Entries, e)
	}
	slices.SortFunc(c.md.Entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	return c
}

// rows is a part of the rows of a weight.
func rows(name string, n, columns int64, rank, ranks int) local {
	size := n / int64(ranks)
	return local{weight: name, shape: []int64{n, columns}, pieces: []tensor.Box{{Offsets: []int64{size * int64(rank), 0}, Sizes: []int64{size, columns}}}}
}

// layer returns the parameters of a layer in the order of registration.
func (j job) layer(layer int64, w int, experts bool) []local {
	stacked := func(name string, inside ...tensor.Box) local {
		l := local{weight: "decoder.layers." + name, expert: experts}
		for _, b := range inside {
			l.pieces = append(l.pieces, tensor.Box{Offsets: append([]int64{layer}, b.Offsets...), Sizes: append([]int64{1}, b.Sizes...)})
		}
		return l
	}
	shape := func(l local, s ...int64) local {
		l.shape = append([]int64{int64(j.layers)}, s...)
		return l
	}
	box := func(offset, size []int64) tensor.Box { return tensor.Box{Offsets: offset, Sizes: size} }

	if experts {
		var out []local
		for e := range int64(2) {
			at := int64(w)*2 + e
			n := int64(2 * j.ep)
			out = append(out,
				shape(stacked("mlp.experts.experts.linear_fc1.weight", box([]int64{at, 0, 0}, []int64{1, ffn, hidden}), box([]int64{at, ffn, 0}, []int64{1, ffn, hidden})), n, 2*ffn, hidden),
				shape(stacked("mlp.experts.experts.linear_fc2.weight", box([]int64{at, 0, 0}, []int64{1, hidden, ffn})), n, hidden, ffn))
		}
		return out
	}

	tp, k := int64(j.tp), int64(w)
	norm := func(name string) local { return shape(stacked(name, box([]int64{0}, []int64{hidden})), hidden) }
	f := ffn / tp
	proj := []local{shape(stacked("self_attention.linear_proj.weight", box([]int64{0, k * hidden / tp}, []int64{hidden, hidden / tp})), hidden, hidden)}
	qkv := shape(stacked("self_attention.linear_qkv.weight", box([]int64{k * 2 * hidden / tp, 0}, []int64{2 * hidden / tp, hidden})), 2*hidden, hidden)
	fc1 := shape(stacked("mlp.linear_fc1.weight", box([]int64{k * f, 0}, []int64{f, hidden}), box([]int64{ffn + k*f, 0}, []int64{f, hidden})), 2*ffn, hidden)
	fc2 := shape(stacked("mlp.linear_fc2.weight", box([]int64{0, k * f}, []int64{hidden, f})), hidden, ffn)
	if j.biases {
		proj = append(proj, norm("self_attention.linear_proj.bias"))
	}
	in, pre := norm("self_attention.linear_qkv.layer_norm_weight"), norm("mlp.linear_fc1.layer_norm_weight")
	tail := []local{pre, fc1, fc2}
	if j.ep > 0 {
		tail = []local{norm("pre_mlp_layernorm.weight"), shape(stacked("mlp.router.weight", box([]int64{0, 0}, []int64{4, hidden})), 4, hidden)}
	}
	if j.fused {
		return slices.Concat(proj, []local{in, qkv}, tail)
	}
	return slices.Concat([]local{in}, proj, []local{qkv}, tail)
}

// fill writes a buffer: buckets, chunks for parameters, gaps and ranks, and numbers.
func (j job) fill(c *checkpoint, params []local, prefix string, group, buffer, rank int, r *rand.Rand) {
	type at struct {
		start, end int64
	}
	var bucket []at
	var held []local
	k := 0
	flush := func() {
		if len(bucket) == 0 {
			return
		}
		length := bucket[len(bucket)-1].end
		borders := []int64{0}
		for _, b := range bucket {
			borders = append(borders, b.start, b.end)
		}
		padded := (length + 127) / 128 * 128
		for d := range int64(j.dp) {
			borders = append(borders, min(length, d*padded/int64(j.dp)))
		}
		slices.Sort(borders)
		borders = slices.Compact(borders)

		for _, state := range []string{"exp_avg", "param"} {
			numbers := make([]int64, length)
			for i := range numbers {
				numbers[i] = -1 - r.Int64N(1000) // gaps have any value
			}
			for i, b := range bucket {
				at, of, ones := b.start, c.moments, false
				if state == "param" {
					of, ones = c.weights, j.ones
				}
				for _, p := range held[i].pieces {
					for e := range p.Volume() {
						numbers[at] = number(of, held[i], p, e, ones, r)
						at++
					}
				}
			}
			name := fmt.Sprintf("%soptimizer.distributed.dp_group_idx_%d.gbuf_idx_%d.dtype_(torch.bfloat16, torch.float32).bucket_idx_%d.%s", prefix, group, buffer, k, state)
			e := meta.Entry{FQN: name, Tensor: &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}, Shape: []int64{length}}}
			for i := range borders[1:] {
				e.Tensor.Chunks = append(e.Tensor.Chunks, tensor.Box{Offsets: []int64{borders[i]}, Sizes: []int64{borders[i+1] - borders[i]}})
				e.Tensor.Locs = append(e.Tensor.Locs, meta.Location{File: fmt.Sprintf("__%d_0.distcp", rank)})
			}
			c.md.Entries = append(c.md.Entries, e)
			c.values[name] = numbers
		}
		bucket, held = nil, nil
		k++
	}

	next := int64(0)
	for _, p := range params {
		n := int64(0)
		for _, b := range p.pieces {
			n += b.Volume()
		}
		bucket = append(bucket, at{next, next + n})
		held = append(held, p)
		next = (next + n + 63) / 64 * 64
		if j.bucket > 0 && bucket[len(bucket)-1].end >= j.bucket {
			flush()
			next = 0
		}
	}
	flush()
}

// number returns element e of a piece. All elements have different numbers, apart from norms
// if ones is set.
func number(of map[string][]int64, l local, p tensor.Box, e int64, ones bool, r *rand.Rand) int64 {
	if of[l.weight] == nil {
		of[l.weight] = make([]int64, tensor.Whole(l.shape).Volume())
	}
	at, stride := int64(0), int64(1)
	for d := len(l.shape) - 1; d >= 0; d-- {
		at += (p.Offsets[d] + e%p.Sizes[d]) * stride
		e /= p.Sizes[d]
		stride *= l.shape[d]
	}
	x := &of[l.weight][at]
	if *x == 0 {
		*x = 1 + r.Int64N(1<<40)
		if ones && strings.Contains(l.weight, "norm") {
			*x = 1
		}
	}
	return *x
}

// match compares the elements of a check.
func (c *checkpoint) match(k recipe.Check) (bool, error) {
	from, to := c.values[k.Source], c.weights[k.Other]
	if to == nil {
		to = c.values[k.Other]
	}
	equal := true
	each(k.Map, c.shape(k.Source), c.shape(k.Other), func(a, b int64) { equal = equal && from[a] == to[b] })
	return equal, nil
}

func (c *checkpoint) shape(name string) []int64 {
	e, _ := c.md.Find(name)
	return e.Tensor.Shape
}

// each calls fn for each pair of elements of a piece, by their places in a flat tensor.
func each(p remap.Piece, fromShape, toShape []int64, fn func(from, to int64)) {
	flat := func(shape, at []int64) int64 {
		n := int64(0)
		for d, size := range shape {
			n = n*size + at[d]
		}
		return n
	}
	for i := range p.Volume() {
		from, to := slices.Clone(p.From), slices.Clone(p.To)
		for _, a := range p.Axes {
			x := i % a.Size
			i /= a.Size
			from[a.From] += x * a.FromStep
			to[a.To] += x * a.ToStep
		}
		fn(flat(fromShape, from), flat(toShape, to))
	}
}

// TestBuckets lays out buckets of many jobs and finds all states again.
func TestBuckets(t *testing.T) {
	base := job{tp: 1, pp: 1, dp: 1, vpp: 1, layers: 4}
	for claim, change := range map[string]func(*job){
		"one rank":                          func(*job) {},
		"tensor parallel":                   func(j *job) { j.tp = 2 },
		"tensor parallel, buckets, ones":    func(j *job) { j.tp, j.dp, j.bucket, j.ones = 2, 3, 200, true },
		"pipeline":                          func(j *job) { j.pp = 2 },
		"pipeline, tied":                    func(j *job) { j.pp, j.tied = 4, true },
		"tensor and pipeline, tied":         func(j *job) { j.tp, j.pp, j.tied = 2, 2, true },
		"interleaved":                       func(j *job) { j.pp, j.vpp = 2, 2 },
		"interleaved, ones":                 func(j *job) { j.pp, j.vpp, j.ones = 2, 2, true },
		"interleaved, uneven, ones":         func(j *job) { j.pp, j.vpp, j.layers, j.uneven, j.ones = 2, 2, 8, true, true },
		"interleaved, uneven, buckets":      func(j *job) { j.vpp, j.layers, j.uneven, j.bucket, j.tied = 2, 6, true, 200, true },
		"norms of Transformer Engine":       func(j *job) { j.fused, j.biases = true, true },
		"norms of Transformer Engine, ones": func(j *job) { j.fused, j.ones, j.dp = true, true, 2 },
		"biases":                            func(j *job) { j.biases, j.bucket = true, 100 },
		"experts":                           func(j *job) { j.ep = 2 },
		"experts, pipeline, buckets":        func(j *job) { j.ep, j.pp, j.bucket, j.dp = 2, 2, 150, 2 },
	} {
		t.Run(claim, func(t *testing.T) {
			j := base
			change(&j)
			c := j.save(t)
			b, notes, err := megatron.Bind(c.md, megatron.Options{Sharding: "dp_reshardable", Match: c.match})
			must.Do(t, err)
			if tied := slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, "equal") }); tied != j.ones {
				t.Errorf("notes %q", notes)
			}
			if slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, "exchanged") }) {
				t.Errorf("the order of Megatron is not known: notes %q", notes)
			}
			for _, k := range b.Checks {
				if ok := must.Get(c.match(k))(t); !ok {
					t.Errorf("the check of %s and %s fails", k.Source, k.Other)
				}
			}
			c.compare(t, b)
		})
	}
}

// compare compares the states of a binding with the states of the job.
func (c *checkpoint) compare(t *testing.T, b *recipe.Binding) {
	t.Helper()
	found := 0
	for _, x := range b.Tensors {
		name, ok := strings.CutPrefix(x.Name, "optimizer.state.exp_avg.")
		if !ok {
			continue
		}
		found++
		got := make([]int64, tensor.Whole(x.Shape).Volume())
		for _, p := range x.Parts {
			each(p.Map, c.shape(p.Source), x.Shape, func(from, to int64) { got[to] = c.values[p.Source][from] })
		}
		if !slices.Equal(got, c.moments[name]) {
			t.Errorf("%s differs", x.Name)
		}
	}
	if found != len(c.moments) {
		t.Errorf("%d states; want %d", found, len(c.moments))
	}
}

// TestRefused binds checkpoints that are damaged, or that no values prove.
func TestRefused(t *testing.T) {
	for claim, c := range map[string]struct {
		do   func(c *checkpoint, o *megatron.Options)
		want string
	}{
		"chunks that are no parameters": {func(c *checkpoint, _ *megatron.Options) {
			for i := range c.md.Entries {
				if e := &c.md.Entries[i]; megatron.IsState(e.FQN) {
					e.Tensor.Chunks, e.Tensor.Locs = []tensor.Box{tensor.Whole(e.Tensor.Shape)}, e.Tensor.Locs[:1]
				}
			}
		}, "no sequence of parameters"},
		"a bucket is missing": {func(c *checkpoint, _ *megatron.Options) {
			c.md.Entries = slices.DeleteFunc(c.md.Entries, func(e meta.Entry) bool { return strings.Contains(e.FQN, "bucket_idx_0.") })
		}, "no bucket 0"},
		"a state is missing": {func(c *checkpoint, _ *megatron.Options) {
			i := slices.IndexFunc(c.md.Entries, func(e meta.Entry) bool { return strings.HasSuffix(e.FQN, ".exp_avg") })
			c.md.Entries = slices.Delete(c.md.Entries, i, i+1)
		}, "buckets have the state exp_avg"},
		"weights of 8 bits": {func(c *checkpoint, _ *megatron.Options) {
			for i := range c.md.Entries {
				c.md.Entries[i].FQN = strings.Replace(c.md.Entries[i].FQN, "torch.bfloat16", "torch.uint8", 1)
			}
		}, "--set unproven=true"},
		"pickled states": {func(_ *checkpoint, o *megatron.Options) { o.Sharding = "dp_zero_gather_scatter" }, "one pickled object"},
		"no states at all": {func(c *checkpoint, _ *megatron.Options) {
			c.md.Entries = slices.DeleteFunc(c.md.Entries, func(e meta.Entry) bool { return megatron.IsState(e.FQN) })
		}, "no optimizer states"},
	} {
		t.Run(claim, func(t *testing.T) {
			x := job{tp: 2, pp: 1, dp: 2, vpp: 1, layers: 2, bucket: 200}.save(t)
			o := megatron.Options{Match: x.match}
			c.do(x, &o)
			_, _, err := megatron.Bind(x.md, o)
			if !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Bind = %v; want %v with %q", err, recipe.ErrIncomplete, c.want)
			}
		})
	}
}
