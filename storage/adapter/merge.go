package adapter

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// merger finds which tensors of a base an adapter changes.
type merger struct {
	base  *meta.Metadata
	model *modelConfig
	conf  *Config
	out   map[string]*merged
	// untied is the name of an output layer that the base shares with its embedding, and the merged
	// model does not.
	untied string
	// square is a module with a weight whose shape does not tell whether it is transposed, and
	// other is one whose shape contradicts the configuration.
	square, other string
}

// merge finds the tensors of the merged model that are not those of the base, by their names.
func (g *merger) merge(t *tensors) error {
	saved := false
	for name := range t.replaced {
		saved = saved || g.conf.saves(name[:max(0, strings.LastIndexByte(name, '.'))])
	}
	switch {
	case len(g.conf.Saved) > 0 && !saved:
		return fmt.Errorf("%w: it has no tensor of %q (modules_to_save)", ErrAdapter, g.conf.Saved)
	case len(g.conf.Tokens) > 0 && len(t.rows) == 0:
		return fmt.Errorf("%w: it has no trainable_tokens_delta for its trainable_token_indices", ErrAdapter)
	}
	for _, name := range slices.Sorted(maps.Keys(t.replaced)) {
		if err := g.replace(name, t.replaced[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.rows)) {
		if err := g.rows(name, t.rows[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(t.modules), outputLast) {
		if err := g.module(t.modules[name]); err != nil {
			return err
		}
	}
	if g.square != "" && g.other != "" {
		return fmt.Errorf("%w: fan_in_fan_out does not fit the shape of %q, so it is not known which way the square weight of %q lies", ErrAdapter, g.other, g.square)
	}
	return g.separate()
}

// outputLast orders modules by name, with output layers at the end: PEFT merges them last.
func outputLast(a, b string) int {
	if x, y := isOutput(a), isOutput(b); x != y {
		if x {
			return 1
		}
		return -1
	}
	return strings.Compare(a, b)
}

// isOutput reports whether a module has the name of an output layer, which may share its weight
// with the embedding.
func isOutput(module string) bool {
	return slices.Contains([]string{"lm_head", "embed_out", "proj_out"}, module[strings.LastIndexByte(module, '.')+1:])
}

// embeddingEnds are the ends of the names of embeddings that output layers share.
var embeddingEnds = []string{"embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight", "shared.weight"}

// find returns the tensor of the base with a name of the adapter, or nil if there is none. The base
// may have been saved without the first part of the name, or the adapter with a part of the model.
func (g *merger) find(name string) (*meta.Entry, error) {
	e, ok := g.base.Find(name)
	if _, rest, cut := strings.Cut(name, "."); !ok && cut {
		e, ok = g.base.Find(rest)
	}
	if !ok {
		e = nil
		for i := range g.base.Entries {
			x := &g.base.Entries[i]
			if !strings.HasSuffix(x.FQN, "."+name) {
				continue
			}
			if e != nil {
				return nil, fmt.Errorf("%w: the base has no %q, but %q and %q", ErrAdapter, name, e.FQN, x.FQN)
			}
			e = x
		}
	}
	if e != nil && e.Tensor == nil {
		return nil, fmt.Errorf("%w: %q of the base is not a tensor", ErrAdapter, e.FQN)
	}
	return e, nil
}

// embedding returns the tensor of the base that an output layer shares, if the base lacks name and
// it is an output layer's. Otherwise it returns nil.
func (g *merger) embedding(name string) *meta.Entry {
	module, ok := strings.CutSuffix(name, ".weight")
	if !ok || !isOutput(module) {
		return nil
	}
	var out *meta.Entry
	for i := range g.base.Entries {
		e := &g.base.Entries[i]
		if e.Tensor == nil || !isEmbedding(e.FQN) {
			continue
		}
		if out != nil {
			return nil
		}
		out = e
	}
	return out
}

func isEmbedding(name string) bool {
	return slices.ContainsFunc(embeddingEnds, func(end string) bool { return name == end || strings.HasSuffix(name, "."+end) })
}

// to returns the tensor of the base with a name of the adapter, as it will be. An output layer that
// the base does not have is its embedding.
func (g *merger) to(name string) (*merged, error) {
	e, err := g.find(name)
	if err != nil {
		return nil, err
	}
	if e == nil {
		e = g.embedding(name)
	}
	if e == nil {
		return nil, fmt.Errorf("%w: the base has no %q: give the model that the adapter was trained on, with the same head", ErrAdapter, name)
	}
	m := g.out[e.FQN]
	if m == nil {
		m = &merged{base: e}
		g.out[e.FQN] = m
	}
	return m, nil
}

// replace puts a tensor of the adapter in the place of a tensor of the base.
func (g *merger) replace(name string, whole *meta.Entry) error {
	e, err := g.find(name)
	if err != nil {
		return err
	}
	var to *merged
	module := strings.TrimSuffix(name, ".weight")
	if e == nil && g.embedding(name) != nil && g.conf.saves(module) && !g.conf.EnsureTying {
		to = &merged{base: g.embedding(name)}
		g.out[name], g.untied = to, name
	} else if to, err = g.to(name); err != nil {
		return err
	}

	e = to.base
	if d := whole.Tensor.DType; d != e.Tensor.DType && checkFloat(whole) != nil {
		return checkFloat(whole)
	} else if d != e.Tensor.DType && checkFloat(e) != nil {
		return checkFloat(e)
	}
	if !slices.Equal(e.Tensor.Shape, whole.Tensor.Shape) {
		return fmt.Errorf("%w: %q has the shape %v, and %q of the base %v: a base with another vocabulary or head has to be resized first", ErrAdapter, whole.FQN, whole.Tensor.Shape, e.FQN, e.Tensor.Shape)
	}
	if to.whole == nil {
		to.whole = whole
	}
	return nil
}

// rows puts rows of the adapter, of the tokens that it trained, in the place of rows of the base.
func (g *merger) rows(module string, rows *meta.Entry) error {
	to, err := g.to(module + ".weight")
	if err != nil {
		return err
	}
	e := to.base
	for _, e := range []*meta.Entry{e, rows} {
		if err := checkFloat(e); err != nil {
			return err
		}
	}
	at, ok := g.conf.Tokens.of(module)
	if !ok {
		return fmt.Errorf("%w: trainable_token_indices does not name the tokens of %q", ErrAdapter, rows.FQN)
	}
	if s, r := e.Tensor.Shape, rows.Tensor.Shape; len(s) != 2 || !slices.Equal(r, []int64{int64(len(at)), s[1]}) {
		return fmt.Errorf("%w: %q has the shape %v for %d tokens of %q, which has the shape %v", ErrAdapter, rows.FQN, r, len(at), e.FQN, s)
	}
	seen := make(map[int64]bool, len(at))
	for _, row := range at {
		if row < 0 || row >= e.Tensor.Shape[0] || seen[row] {
			return fmt.Errorf("%w: trainable_token_indices has %d, twice or out of the %d tokens of %q", ErrAdapter, row, e.Tensor.Shape[0], e.FQN)
		}
		seen[row] = true
	}
	if to.whole != nil || to.rows != nil {
		return fmt.Errorf("%w: it has tokens of %q, and the tensor in another way too", ErrAdapter, e.FQN)
	}
	to.rows, to.at = rows, at
	return nil
}

// checkFloat refuses tensors of types for which the order of operations is not known.
func checkFloat(e *meta.Entry) error {
	if d := e.Tensor.DType; d != tensor.Float32 && d != tensor.Float16 && d != tensor.BFloat16 {
		return fmt.Errorf("%w: %q is %v: want float32, float16 or bfloat16", ErrAdapter, e.FQN, d)
	}
	return nil
}

// module adds a module of the adapter to the tensors of the base that it changes.
func (g *merger) module(m *module) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: module %q: %w", ErrAdapter, m.name, fmt.Errorf(format, args...))
	}
	switch {
	case m.a == nil:
		return fail("it has no lora_A")
	case m.b == nil:
		return fail("it has no lora_B")
	case g.conf.DoRA != (m.magnitude != nil):
		return fail("use_dora is %v, and whether it has magnitudes is %v", g.conf.DoRA, m.magnitude != nil)
	case g.conf.Bias != (m.bias != nil) && !m.embedding:
		return fail("lora_bias is %v, and whether it has a bias is %v", g.conf.Bias, m.bias != nil)
	}
	for _, e := range []*meta.Entry{m.a, m.b, m.bias, m.magnitude} {
		if e == nil {
			continue
		}
		if err := checkFloat(e); err != nil {
			return err
		}
	}

	a, b := m.a.Tensor.Shape, m.b.Tensor.Shape
	if len(a) < 2 || len(a) != len(b) || a[0] < 1 {
		return fail("its factors have the shapes %v and %v", a, b)
	}
	if a[0] != b[1] {
		return fail("its factors have the shapes %v and %v: want equal ranks. A convolution with groups cannot be merged", a, b)
	}
	if r, ok := g.conf.rank(m.name); ok && a[0] != r {
		return fail("its factors have the shapes %v and %v: want the rank %d of the configuration", a, b, r)
	}
	scale, err := g.conf.scale(m.name, a[0])
	if err != nil {
		return fail("%w", err)
	}

	to, err := g.to(m.name + ".weight")
	if err != nil {
		return err
	}
	if err := checkFloat(to.base); err != nil {
		return err
	}
	t := &term{scale: scale, early: m.embedding && m.magnitude == nil, magnitude: m.magnitude}
	if err := g.factors(t, m, to.base.Tensor.Shape); err != nil {
		return err
	}
	if n := len(to.terms); n > 0 && (t.magnitude != nil || to.terms[n-1].magnitude != nil) || to.rows != nil {
		return fail("it changes %q, which the adapter changes in another way too", to.base.FQN)
	}
	to.terms = append(to.terms, t)

	if m.bias == nil {
		return nil
	}
	if to, err = g.to(m.name + ".bias"); err != nil {
		return err
	}
	if err := checkFloat(to.base); err != nil {
		return err
	}
	if s := to.base.Tensor.Shape; len(s) != 1 || !slices.Equal(s, m.bias.Tensor.Shape) {
		return fail("the bias of lora_B has the shape %v, and %q of the base %v", m.bias.Tensor.Shape, to.base.FQN, s)
	}
	to.terms = append(to.terms, &term{bias: m.bias, scale: scale})
	return nil
}

// factors sets the factors of the product of a module, whose weight has a shape.
func (g *merger) factors(t *term, m *module, shape []int64) error {
	a, b := m.a.Tensor.Shape, m.b.Tensor.Shape
	t.left, t.right = &factor{m.b, false}, &factor{m.a, false}
	if len(a) > 2 {
		// Of a convolution. PEFT convolves one factor with the other, unless the kernel is 1×1.
		for _, n := range b[2:] {
			if n != 1 {
				return fmt.Errorf("%w: module %q: lora_B has the shape %v: want a kernel of ones", ErrAdapter, m.name, b)
			}
		}
		one := len(a) > 3 && a[2] == 1 && a[3] == 1
		if want := slices.Concat(b[:1], a[1:]); !slices.Equal(shape, want) || len(a) > 5 || one && len(a) > 4 || m.embedding {
			return fmt.Errorf("%w: module %q: factors of the shapes %v and %v, and a weight of the base of the shape %v", ErrAdapter, m.name, a, b, shape)
		}
		t.fused = !one
		return g.magnitudes(t, m, append([]int64{1, b[0]}, slices.Repeat([]int64{1}, len(a)-2)...))
	}

	turned, err := g.turned(m, shape)
	if err != nil {
		return err
	}
	if turned {
		t.left, t.right = &factor{m.a, true}, &factor{m.b, true}
	}
	t.columns = turned
	return g.magnitudes(t, m, b[:1])
}

// magnitudes checks the shape of the magnitudes of a module.
func (g *merger) magnitudes(t *term, m *module, want []int64) error {
	if t.magnitude != nil && !slices.Equal(t.magnitude.Tensor.Shape, want) {
		return fmt.Errorf("%w: module %q: its magnitudes have the shape %v: want %v", ErrAdapter, m.name, t.magnitude.Tensor.Shape, want)
	}
	return nil
}

// turned reports whether the weight of a module is [in, out].
func (g *merger) turned(m *module, shape []int64) (bool, error) {
	in, out := m.a.Tensor.Shape[1], m.b.Tensor.Shape[0]
	straight, turned := slices.Equal(shape, []int64{out, in}), slices.Equal(shape, []int64{in, out})
	switch {
	case m.embedding && turned:
		return true, nil
	case m.embedding || !straight && !turned:
		return false, fmt.Errorf("%w: module %q: factors for %d inputs and %d outputs, and a weight of the base of the shape %v", ErrAdapter, m.name, in, out, shape)
	case straight && turned:
		g.square = m.name
		return g.conf.FanInFanOut, nil
	}
	if turned != g.conf.FanInFanOut {
		g.other = m.name
	}
	return turned, nil
}

// separate gives an output layer a tensor of its own if the base shares it with an embedding that
// the adapter has replaced alone.
func (g *merger) separate() error {
	for name, m := range g.out {
		if g.untied != "" || m.whole == nil || !isEmbedding(name) || g.conf.EnsureTying || !g.conf.saves(strings.TrimSuffix(name, ".weight")) {
			continue
		}
		has := slices.ContainsFunc(g.base.Entries, func(e meta.Entry) bool { return isOutput(strings.TrimSuffix(e.FQN, ".weight")) })
		switch {
		case has || !g.model.tied():
			continue
		case !g.model.causal():
			return fmt.Errorf("%w: modules_to_save replaces %q, which other tensors of the base share: give a base that has each of them", ErrAdapter, name)
		}
		g.untied = headName
		g.out[headName] = &merged{base: m.base}
		return nil
	}
	return nil
}
