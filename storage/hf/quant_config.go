package hf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// quantConfig is the part of a model's configuration about its quantisation. The names of the
// fields are those of the programs that quantise.
type quantConfig struct {
	Method string  `json:"quant_method"`
	Block  []int64 `json:"weight_block_size"`

	// Of GPTQ and AWQ.
	Bits       int64                      `json:"bits"`
	GroupSize  *int64                     `json:"group_size"`
	Version    string                     `json:"version"` // of compressed-tensors, the version of the program
	ZeroPoint  *bool                      `json:"zero_point"`
	Checkpoint string                     `json:"checkpoint_format"`
	Marlin     bool                       `json:"is_marlin_format"`
	ActOrder   bool                       `json:"desc_act"`
	Dynamic    map[string]json.RawMessage `json:"dynamic"`

	// Of compressed-tensors.
	Format    string                 `json:"format"`
	Groups    map[string]configGroup `json:"config_groups"`
	Sparsity  sparsity               `json:"sparsity_config"`
	Transform struct {
		Groups map[string]json.RawMessage `json:"config_groups"`
	} `json:"transform_config"`
	Cache *struct{} `json:"kv_cache_scheme"`
}

// sparsity describes weights of which compressed-tensors stores only some.
type sparsity struct {
	Format string `json:"format"`
}

// configGroup describes how compressed-tensors has quantised the modules that targets name.
type configGroup struct {
	Format  string         `json:"format"`
	Targets []string       `json:"targets"`
	Weights *weightsConfig `json:"weights"`
}

// weightsConfig describes quantised weights.
type weightsConfig struct {
	Bits      int64   `json:"num_bits"`
	Type      string  `json:"type"`
	Strategy  string  `json:"strategy"`
	GroupSize *int64  `json:"group_size"`
	Block     []int64 `json:"block_structure"`
	Symmetric *bool   `json:"symmetric"`
	ActOrder  any     `json:"actorder"`
}

// maxConfig bounds the text of a configuration.
const maxConfig = 16 << 20

// decodeConfig returns the part of a configuration about quantisation, with defaults for
// fields that it does not contain.
func decodeConfig(b []byte) (*quantConfig, error) {
	var doc struct {
		Quant *quantConfig `json:"quantization_config"`
		Old   *quantConfig `json:"compression_config"` // of early versions of compressed-tensors
		Text  struct {
			Quant *quantConfig `json:"quantization_config"`
		} `json:"text_config"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}

	c := &quantConfig{}
	for _, q := range []*quantConfig{doc.Old, doc.Text.Quant, doc.Quant} {
		if q != nil {
			c = q
		}
	}
	if c.Block == nil {
		c.Block = []int64{128, 128}
		if doc.Text.Quant != nil && doc.Text.Quant.Block != nil {
			c.Block = doc.Text.Quant.Block
		}
	}

	scheme, ok := schemes[c.Method]
	if !ok {
		return nil, fmt.Errorf("weights of the kind %q; known are %s", c.Method, strings.Join(slices.Sorted(maps.Keys(schemes))[1:], ", "))
	}
	if scheme.check != nil {
		if err := scheme.check(c); err != nil {
			return nil, fmt.Errorf("weights of the kind %q: %w", c.Method, err)
		}
	}
	if len(c.Block) != 2 || c.Block[0] <= 0 || c.Block[1] <= 0 {
		return nil, fmt.Errorf("blocks of %v", c.Block)
	}
	return c, nil
}

// groupRows returns the numbers of a group in a dimension of the size n: group_size, or n if
// that is -1.
func (c *quantConfig) groupRows(n int64) int64 {
	if *c.GroupSize < 0 {
		return max(1, n)
	}
	return *c.GroupSize
}

// checkGroupSize returns an error if there is no valid group_size.
func checkGroupSize(size *int64) error {
	if size == nil || *size != -1 && *size <= 0 {
		return fmt.Errorf("group_size %s: want a size, or -1", text(size))
	}
	return nil
}

func text(n *int64) string {
	if n == nil {
		return "null"
	}
	return fmt.Sprint(*n)
}

// checkGPTQ refuses forms of GPTQ other than whole numbers of 4 or 8 bits in 32-bit words.
func checkGPTQ(c *quantConfig) error {
	c.Checkpoint = cmp.Or(c.Checkpoint, c.Format)
	switch {
	case c.Bits != 4 && c.Bits != 8:
		return fmt.Errorf("%d bits: want 4 or 8", c.Bits)
	case c.Marlin:
		return fmt.Errorf("the order of Marlin")
	case !slices.Contains([]string{"", "gptq", "gptq_v2"}, c.Checkpoint):
		return fmt.Errorf("checkpoint_format %q: want gptq or gptq_v2", c.Checkpoint)
	case len(c.Dynamic) > 0:
		return fmt.Errorf("modules with settings of their own (dynamic)")
	}
	return checkGroupSize(c.GroupSize)
}

// checkAWQ refuses forms of AWQ other than gemm.
func checkAWQ(c *quantConfig) error {
	for _, version := range []string{c.Version, c.Checkpoint, c.Format} {
		if version != "" && !strings.EqualFold(version, "gemm") {
			return fmt.Errorf("version %q: want gemm", version)
		}
	}
	switch {
	case c.Bits != 4:
		return fmt.Errorf("%d bits: want 4", c.Bits)
	case c.ZeroPoint != nil && !*c.ZeroPoint:
		return fmt.Errorf("no zero points")
	}
	return checkGroupSize(c.GroupSize)
}

// The formats of compressed-tensors that can be decoded.
const (
	formatInt   = "int-quantized"
	formatFloat = "float-quantized"
	formatNaive = "naive-quantized"
	formatPack  = "pack-quantized"
	formatNVFP4 = "nvfp4-pack-quantized"
	formatMXFP4 = "mxfp4-pack-quantized"
	formatMXFP8 = "mxfp8-quantized"
)

// checkCompressed refuses forms of compressed-tensors that are not known.
func checkCompressed(c *quantConfig) error {
	if f := c.Sparsity.Format; f != "" && f != "dense" {
		return fmt.Errorf("sparse weights of the format %q", f)
	}
	if len(c.Transform.Groups) > 0 {
		return fmt.Errorf("weights that are transformed (transform_config)")
	}

	for _, name := range slices.Sorted(maps.Keys(c.Groups)) {
		g := c.Groups[name]
		if g.Weights == nil {
			continue
		}
		if err := g.Weights.check(c.formatOf(&g)); err != nil {
			return fmt.Errorf("config_groups, %s: %w", name, err)
		}
	}
	return nil
}

// formatOf returns the format of the weights of a group.
func (c *quantConfig) formatOf(g *configGroup) string {
	if g.Format != "" {
		return g.Format
	}
	return c.Format
}

// check returns an error if weights of a format cannot be decoded.
func (w *weightsConfig) check(format string) error {
	bits, kind := []int64{8}, "float"
	switch format {
	case formatInt:
		kind = "int"
	case formatFloat, formatMXFP8:
	case formatNaive:
		kind = w.Type
	case formatPack:
		bits, kind = []int64{1, 2, 3, 4, 5, 6, 7, 8}, "int"
	case formatNVFP4, formatMXFP4:
		bits = []int64{4}
	default:
		return fmt.Errorf("the format %q", format)
	}
	if w.Type != kind || !slices.Contains(bits, w.Bits) {
		return fmt.Errorf("the format %s with weights of type %q and %d bits", format, w.Type, w.Bits)
	}

	_, err := w.blocks([]int64{1, 1})
	return err
}

// groupOf returns the description of the weights of a module: of the group that names the
// module, of the first whose pattern matches it, or of the only group of a class of modules.
func (c *quantConfig) groupOf(module string) (*configGroup, error) {
	var classes []*configGroup
	var byPattern *configGroup
	for _, name := range slices.Sorted(maps.Keys(c.Groups)) {
		g := c.Groups[name]
		if g.Weights == nil {
			continue
		}

		isClass := false
		for _, t := range g.Targets {
			pattern, isPattern := strings.CutPrefix(t, "re:")
			switch {
			case t == module:
				return &g, nil
			case isPattern:
				re, err := regexp.Compile(`^(?:` + pattern + `)`)
				if err != nil {
					return nil, fmt.Errorf("config_groups, %s: %w", name, err)
				}
				if byPattern == nil && re.MatchString(module) {
					byPattern = &g
				}
			case !strings.Contains(t, "."):
				isClass = true
			}
		}
		if isClass {
			classes = append(classes, &g)
		}
	}

	switch {
	case byPattern != nil:
		return byPattern, nil
	case len(classes) == 1:
		return classes[0], nil
	case len(classes) == 0:
		return nil, fmt.Errorf("config_groups has no group of the module %q", module)
	}
	return nil, fmt.Errorf("config_groups has %d groups for classes of modules, and does not say which one is of %q", len(classes), module)
}
