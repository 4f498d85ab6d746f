package hf

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The suffixes of the names that quantised weights and their scales have.
const (
	scaleInv    = "_scale_inv" // after the name of the weight
	scaleOther  = "_scale"     // after the name of a weight of another kind
	blocksEnd   = "_blocks"
	scalesEnd   = "_scales"
	blockDigits = 128 // rows and columns of a block, unless the configuration says otherwise
)

// methods are the kinds of quantisation whose form is known.
var methods = []string{"", "fp8", "mxfp4"}

// quantConfig is what a model's configuration says of its quantisation.
type quantConfig struct {
	Method string  `json:"quant_method"`
	Block  []int64 `json:"weight_block_size"`
}

// maxConfig bounds the text of a configuration.
const maxConfig = 16 << 20

// readConfig reads the configuration of the model, if there is one.
func readConfig(ctx context.Context, store blob.Store) (quantConfig, error) {
	b, err := blob.ReadAll(ctx, store, configName, maxConfig)
	if err != nil {
		return quantConfig{}, err
	}
	c, err := decodeConfig(b)
	if err != nil {
		return c, fmt.Errorf("%w: %s: %w", ErrQuantized, configName, err)
	}
	return c, nil
}

// decodeConfig returns what a configuration says of quantisation, with the
// defaults where it says nothing.
func decodeConfig(b []byte) (quantConfig, error) {
	var doc struct {
		Quant *quantConfig `json:"quantization_config"`
		Text  struct {
			Quant *quantConfig `json:"quantization_config"`
		} `json:"text_config"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return quantConfig{}, err
	}
	c := defaultConfig()
	for _, q := range []*quantConfig{doc.Text.Quant, doc.Quant} {
		if q == nil {
			continue
		}
		c.Method = q.Method
		if q.Block != nil {
			c.Block = q.Block
		}
	}
	if !slices.Contains(methods, c.Method) {
		return c, fmt.Errorf("weights of the kind %q", c.Method)
	}
	if len(c.Block) != 2 || c.Block[0] <= 0 || c.Block[1] <= 0 {
		return c, fmt.Errorf("blocks of %v", c.Block)
	}
	return c, nil
}

func defaultConfig() quantConfig { return quantConfig{Block: []int64{blockDigits, blockDigits}} }

// dequantize replaces the quantised weights among the entries by the numbers
// that they stand for, and drops their scales.
func (s *source) dequantize(ctx context.Context, dir *folder, to tensor.DType) error {
	if err := s.md.CheckWhole(nil); err != nil { // a scale may be missing
		return err
	}
	conf := defaultConfig()
	if size, ok := dir.other[configName]; ok {
		var err error
		if conf, err = readConfig(ctx, s.store); err != nil {
			return err
		}
		s.add(configName, size)
	}
	s.made = map[string]reading.Maker{}
	scales := map[string]bool{}
	out := slices.Clone(s.md.Entries)
	for i := range out {
		e := &out[i]
		scale, make, err := s.pair(e, conf)
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrQuantized, e.FQN, err)
		}
		if scale == nil {
			continue
		}
		m, shape, err := make(e, scale)
		if err != nil {
			return fmt.Errorf("%w: %q with %q: %w", ErrQuantized, e.FQN, scale.FQN, err)
		}
		scales[scale.FQN] = true
		s.made[e.FQN] = m
		t := *e.Tensor
		t.DType, t.Shape, t.Chunks = to, shape, []tensor.Box{tensor.Whole(shape)}
		e.Tensor = &t
	}
	s.md.Entries = slices.DeleteFunc(out, func(e meta.Entry) bool { return scales[e.FQN] })
	return nil
}

// pairing makes the maker of a weight from it and its scales, and returns the
// shape of what is made.
type pairing func(weight, scale *meta.Entry) (reading.Maker, []int64, error)

// pair returns the scales of an entry and what makes numbers of the two, or none
// where the entry is not quantised.
func (s *source) pair(e *meta.Entry, conf quantConfig) (*meta.Entry, pairing, error) {
	d := e.Tensor.DType
	if scale, ok := s.md.Find(e.FQN + scaleInv); ok && isFloat8(d) {
		return scale, func(w, sc *meta.Entry) (reading.Maker, []int64, error) { return s.newBlocks(w, sc, conf.Block) }, nil
	}
	if _, ok := s.md.Find(e.FQN + scaleOther); ok && isFloat8(d) {
		return nil, nil, fmt.Errorf("scaled by %q, which is not known", e.FQN+scaleOther)
	}
	if base, ok := strings.CutSuffix(e.FQN, blocksEnd); ok && d == tensor.Uint8 {
		if scale, ok := s.md.Find(base + scalesEnd); ok {
			return scale, s.newGroups, nil
		}
	}
	return nil, nil, nil
}

func isFloat8(d tensor.DType) bool {
	switch d {
	case tensor.Float8E4M3FN, tensor.Float8E4M3FNUZ, tensor.Float8E5M2, tensor.Float8E5M2FNUZ:
		return true
	}
	return false
}

// whole returns the region of a tensor that is not sharded.
func whole(e *meta.Entry) (*reading.Region, error) {
	t := e.Tensor
	if len(t.Chunks) != 1 {
		return nil, fmt.Errorf("%q is cut into %d chunks", e.FQN, len(t.Chunks))
	}
	l := &t.Locs[0]
	return &reading.Region{File: l.File, Offset: l.Offset, End: l.Offset + l.Length, DType: t.DType}, nil
}

// bothWhole returns the regions of a weight and of its scales.
func bothWhole(weight, scale *meta.Entry) (w, s *reading.Region, err error) {
	if w, err = whole(weight); err != nil {
		return nil, nil, err
	}
	s, err = whole(scale)
	return w, s, err
}

// partElements bounds the numbers that are made at once: enough to hide the cost
// of a request.
const partElements = 4 << 20

// cutBox cuts a box into parts of at most most elements each, along its first
// dimensions.
func cutBox(box tensor.Box, most int64) []tensor.Box {
	n := box.Volume()
	d := slices.IndexFunc(box.Sizes, func(s int64) bool { return s > 1 })
	if n <= most || d < 0 {
		return []tensor.Box{box}
	}
	per := max(1, most/(n/box.Sizes[d]))
	var out []tensor.Box
	for at := box.Offsets[d]; at < box.End(d); at += per {
		p := tensor.Box{Offsets: slices.Clone(box.Offsets), Sizes: slices.Clone(box.Sizes)}
		p.Offsets[d], p.Sizes[d] = at, min(per, box.End(d)-at)
		out = append(out, cutBox(p, most)...)
	}
	return out
}

// cutFor cuts a box into parts whose making takes about budget bytes: a number
// on its way takes its four bytes, and less than that for what it is made of.
func cutFor(box tensor.Box, budget int64) []tensor.Box {
	return cutBox(box, max(1, min(partElements, budget/8)))
}
