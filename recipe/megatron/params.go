package megatron

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// unit is a parameter of the model: a weight, or the part of a weight that is one layer or
// one expert. Each tensor-parallel rank has a part of it, or all of it.
type unit struct {
	name          string // of the weight
	layer, expert int64  // -1: it has none
	isExpert      bool
	// parts are the pieces of each model-parallel group, by its number; anyGroup if the file
	// of a piece does not tell the group.
	parts map[int][]piece
	dtype tensor.DType
}

const anyGroup = -1

// piece is a box of a weight.
type piece struct {
	weight *meta.Entry
	box    tensor.Box
}

// param is a parameter of one rank: the pieces of a unit, one after the other.
type param struct {
	unit   *unit
	pieces []piece
	size   int64
	// as is the name by which the order of parameters is determined. optional means that the
	// model may not have the parameter.
	as       string
	optional bool
}

func newParam(u *unit, pieces []piece) *param {
	p := &param{unit: u, pieces: pieces, as: u.name}
	for _, x := range pieces {
		p.size += x.box.Volume()
	}
	return p
}

func (p *param) String() string {
	out := p.unit.name
	if p.unit.layer >= 0 && layerNumber.FindString(out) == "" {
		out += fmt.Sprintf(" of layer %d", p.unit.layer)
	}
	if p.unit.expert >= 0 {
		out += fmt.Sprintf(", expert %d", p.unit.expert)
	}
	return out
}

var (
	layerNumber  = regexp.MustCompile(`(?:^|\.)layers\.([0-9]{1,9})\.`)
	layerStack   = regexp.MustCompile(`(?:^|\.)layers\.[^0-9]`)
	expertNumber = regexp.MustCompile(`\.experts\.([0-9]{1,9})\.`)
	writer       = regexp.MustCompile(`^__([0-9]{1,9})_`)
)

// half matches the names of the halves of a gated weight, gate and up, if these are two
// tensors.
var half = regexp.MustCompile(`^(.*linear_fc1\.weight)_([wv])$`)

// writerOf returns the rank that wrote a chunk, or -1.
func writerOf(l *meta.Location) int {
	m := writer.FindStringSubmatch(l.File)
	if m == nil {
		return -1
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// units returns the parameters of the model. groupOf returns the group of a rank.
func (k *binder) units(groupOf func(rank int, expert bool) int) []*unit {
	var out []*unit
	found := map[string]*unit{}
	for _, e := range k.weights() {
		for i, c := range e.Tensor.Chunks {
			u := unitOf(e, c)
			key := fmt.Sprint(u.name, " ", u.layer, " ", u.expert)
			if found[key] == nil {
				found[key] = u
				out = append(out, u)
			}
			g := anyGroup
			if i < len(e.Tensor.Locs) {
				g = groupOf(writerOf(&e.Tensor.Locs[i]), u.isExpert)
			}
			u = found[key]
			u.parts[g] = append(u.parts[g], piece{e, c})
		}
	}
	for _, u := range out {
		for _, pieces := range u.parts {
			slices.SortFunc(pieces, func(a, b piece) int {
				// Gate is before up: _w is before _v.
				return cmp.Or(strings.Compare(b.weight.FQN, a.weight.FQN), slices.Compare(a.box.Offsets, b.box.Offsets))
			})
		}
	}
	return out
}

// unitOf returns the parameter that a chunk of a weight belongs to.
func unitOf(e *meta.Entry, c tensor.Box) *unit {
	u := &unit{name: e.FQN, layer: -1, expert: -1, isExpert: strings.Contains(e.FQN, ".experts."), parts: map[int][]piece{}, dtype: e.Tensor.DType}
	if m := half.FindStringSubmatch(e.FQN); m != nil {
		u.name = m[1]
	}
	axis := 0
	if m := layerNumber.FindStringSubmatch(u.name); m != nil {
		u.layer, _ = strconv.ParseInt(m[1], 10, 64)
	} else if layerStack.MatchString(u.name) && len(c.Sizes) > 1 && c.Sizes[0] == 1 {
		u.layer = c.Offsets[0]
		axis = 1
	}
	if m := expertNumber.FindStringSubmatch(u.name); m != nil {
		u.expert, _ = strconv.ParseInt(m[1], 10, 64)
	} else if u.isExpert && len(c.Sizes) > axis+1 && c.Sizes[axis] == 1 {
		u.expert = c.Offsets[axis]
	}
	return u
}

// style is an order in which modules register their parameters.
type style struct {
	// fused means that a norm is registered by the linear layer behind it, as in the layers of
	// Transformer Engine.
	fused bool
	// grouped means that a layer registers the first weights of all experts before the second
	// ones.
	grouped bool
}

var styles = []style{{false, false}, {true, false}, {false, true}, {true, true}}

// modules are the parts of a layer in the order of registration.
var modules = []struct {
	at   int
	name *regexp.Regexp
}{
	{10, regexp.MustCompile(`\binput_layernorm\.`)},
	{20, regexp.MustCompile(`\bself_attention\.core_attention\.`)},
	{21, regexp.MustCompile(`\bself_attention\.linear_proj\.`)},
	{22, regexp.MustCompile(`\bself_attention\.linear_qkv\.`)},
	{23, regexp.MustCompile(`\bself_attention\.linear_q_proj\.`)},
	{24, regexp.MustCompile(`\bself_attention\.linear_q_down_proj\.`)},
	{25, regexp.MustCompile(`\bself_attention\.linear_q_up_proj\.`)},
	{26, regexp.MustCompile(`\bself_attention\.linear_kv_down_proj\.`)},
	{27, regexp.MustCompile(`\bself_attention\.linear_kv_up_proj\.`)},
	{28, regexp.MustCompile(`\bself_attention\.q_layernorm\.`)},
	{29, regexp.MustCompile(`\bself_attention\.(k|kv)_layernorm\.`)},
	{30, regexp.MustCompile(`\bself_attention\.`)},
	{40, regexp.MustCompile(`\bpost_self_attn_layernorm\.`)},
	{50, regexp.MustCompile(`\bpre_mlp_layernorm\.`)},
	{60, regexp.MustCompile(`\bmlp\.router\.`)},
	{70, regexp.MustCompile(`\bmlp\.experts\.`)},
	{71, regexp.MustCompile(`\bmlp\.shared_experts\.linear_fc1\.`)},
	{72, regexp.MustCompile(`\bmlp\.shared_experts\.linear_fc2\.`)},
	{73, regexp.MustCompile(`\bmlp\.shared_experts\.`)},
	{80, regexp.MustCompile(`\bmlp\.linear_fc1\.`)},
	{81, regexp.MustCompile(`\bmlp\.linear_fc2\.`)},
	{90, regexp.MustCompile(`\bpost_mlp_layernorm\.`)},
}

// Positions of parts of a model in the order of registration.
const (
	atEmbedding = iota
	atLayers
	atNorm
	atMTP
	atOutput
)

// section returns the part of the model that a name belongs to.
func section(name string) int {
	switch {
	case strings.Contains(name, "output_layer."):
		return atOutput
	case strings.HasPrefix(name, "mtp.") || strings.Contains(name, ".mtp."):
		return atMTP
	case layerNumber.MatchString(name), layerStack.MatchString(name):
		return atLayers
	case strings.Contains(name, "embedding"):
		return atEmbedding
	}
	return atNorm
}

// place is the position of a parameter in the order of registration.
func (p *param) place(s style) []int64 {
	u, name := p.unit, p.as
	at := len(modules)
	for _, m := range modules {
		if m.name.MatchString(name) {
			at = m.at
			break
		}
	}

	last := name[strings.LastIndexByte(name, '.')+1:]
	inside := int64(2)
	switch {
	case strings.HasSuffix(last, "layer_norm_weight"):
		inside = 0
	case strings.HasSuffix(last, "layer_norm_bias"):
		inside = 1
	case strings.HasPrefix(last, "bias"):
		inside = 3
	}
	if inside < 2 && !s.fused { // a norm of its own, which the checkpoint names after the linear layer
		switch at {
		case 22, 23, 24:
			at = 10
		case 25:
			at = 28
		case 27:
			at = 29
		case 80, 70, 60:
			at = 50
		}
	}

	second := int64(0)
	if strings.Contains(name, "linear_fc2.") {
		second = 1
	}
	a, b := u.expert, second
	if s.grouped {
		a, b = second*4+inside/3, u.expert
		if at != 70 {
			a = 0
		}
	}
	return []int64{int64(section(name)), u.layer, int64(at), a, b, inside}
}

// registered sorts parameters in the reverse order of registration, in which buffers have
// them.
func registered(list []*param, s style) {
	at := make(map[*param][]int64, len(list))
	for _, p := range list {
		at[p] = p.place(s)
	}
	slices.SortStableFunc(list, func(a, b *param) int {
		return cmp.Or(slices.Compare(at[b], at[a]), strings.Compare(b.as, a.as))
	})
}
