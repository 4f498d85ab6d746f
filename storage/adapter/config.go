package adapter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
)

// ErrAdapter reports an adapter that cannot be merged: of a kind that is not known, or one that
// does not fit its base.
var ErrAdapter = errors.New("cannot merge the adapter")

// Config is the description of a LoRA adapter, as PEFT writes it.
type Config struct {
	Type         string          `json:"peft_type"`
	Rank         int64           `json:"r"`
	Alpha        float64         `json:"lora_alpha"`
	RSLoRA       bool            `json:"use_rslora"`
	DoRA         bool            `json:"use_dora"`
	FanInFanOut  bool            `json:"fan_in_fan_out"`
	RankPattern  patterns        `json:"rank_pattern"`
	AlphaPattern patterns        `json:"alpha_pattern"`
	Bias         bool            `json:"lora_bias"`
	Init         json.RawMessage `json:"init_lora_weights"`
	Saved        []string        `json:"modules_to_save"`
	EnsureTying  bool            `json:"ensure_weight_tying"`
	Tokens       tokens          `json:"trainable_token_indices"`
}

// ConfigName is the file with the description of an adapter, beside its tensors.
const ConfigName = "adapter_config.json"

// maxConfig bounds the text of a description.
const maxConfig = 16 << 20

// patterns are numbers for modules with names that match a regular expression. The first pattern
// that matches counts.
type patterns []pattern

type pattern struct {
	text  string
	name  *regexp.Regexp // nil: the text has what Go's regular expressions lack
	value float64
}

// UnmarshalJSON decodes an object, in its order.
func (p *patterns) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	first, err := d.Token()
	if err != nil || first == nil {
		return err
	}
	if first != json.Delim('{') {
		return fmt.Errorf("a pattern is %v: want an object", first)
	}

	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		x := pattern{}
		if err := d.Decode(&x.value); err != nil {
			return err
		}
		x.text = fmt.Sprint(key)
		x.name, _ = regexp.Compile(`^(?:.*\.)?(?:` + x.text + `)$`)
		*p = append(*p, x)
	}
	return nil
}

// of returns the number for a module. The error is about a pattern that cannot be matched.
func (p patterns) of(module string, otherwise float64) (float64, error) {
	for _, x := range p {
		if x.name == nil {
			return 0, fmt.Errorf("the pattern %q is not a regular expression that is known here: write it without lookarounds and back references", x.text)
		}
		if x.name.MatchString(module) {
			return x.value, nil
		}
	}
	return otherwise, nil
}

// tokens are the tokens of which an adapter has the rows, by the ends of the names of their
// modules. An empty name is of all modules.
type tokens map[string][]int64

// UnmarshalJSON decodes a list, or an object with a list for each module.
func (t *tokens) UnmarshalJSON(b []byte) error {
	var list []int64
	if json.Unmarshal(b, &list) == nil {
		if *t = nil; len(list) > 0 {
			*t = tokens{"": list}
		}
		return nil
	}
	return json.Unmarshal(b, (*map[string][]int64)(t))
}

// of returns the tokens of a module.
func (t tokens) of(module string) ([]int64, bool) {
	for _, end := range slices.Backward(slices.Sorted(maps.Keys(t))) {
		if strings.HasSuffix(module, end) {
			return t[end], true
		}
	}
	return nil, false
}

// unknown are the fields of a description that change what the weights mean, in a way that is not
// known here. They have to be absent, null, false or empty.
var unknown = []string{
	"target_parameters", "layer_replication", "alora_invocation_tokens", "arrow_config", "use_qalora", "use_bdlora", "kasa_config",
	"monteclora_config", "velora_config",
}

// inits are the ways to begin an adapter that leave the weights of the base as they are.
var inits = []string{"gaussian", "eva", "orthogonal"}

// DecodeConfig decodes an adapter_config.json. The error wraps ErrAdapter if the adapter is of a
// kind that is not known.
func DecodeConfig(b []byte) (*Config, error) {
	c := &Config{Type: "LORA", Alpha: math.NaN()}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("%w: its configuration: %w", ErrAdapter, err)
	}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("%w: its configuration: %w", ErrAdapter, err)
	}

	for _, name := range unknown {
		if v := string(bytes.TrimSpace(all[name])); !slices.Contains([]string{"", "null", "false", "[]", "{}"}, v) {
			return nil, fmt.Errorf("%w: its configuration has %q, which is not known", ErrAdapter, name)
		}
	}
	return c, c.check()
}

func (c *Config) check() error {
	var init string
	if json.Unmarshal(c.Init, &init) == nil && init != "" && !slices.Contains(inits, strings.ToLower(init)) {
		return fmt.Errorf("%w: init_lora_weights %q changes the weights of the base: save the adapter with path_initial_model_for_weight_conversion, which makes a plain one of it", ErrAdapter, init)
	}

	switch {
	case !strings.EqualFold(c.Type, "LORA"):
		return fmt.Errorf("%w: it is of the kind %q; only LORA is known", ErrAdapter, c.Type)
	case c.Rank <= 0:
		return fmt.Errorf("%w: its rank r is %d", ErrAdapter, c.Rank)
	case math.IsNaN(c.Alpha): // JSON has no such number
		return fmt.Errorf("%w: its configuration has no lora_alpha", ErrAdapter)
	}
	return nil
}

// rank returns the rank of a module, if its patterns tell.
func (c *Config) rank(module string) (int64, bool) {
	r, err := c.RankPattern.of(module, float64(c.Rank))
	return int64(r), err == nil
}

// scale returns the number by which the product of a module of a rank is multiplied.
func (c *Config) scale(module string, rank int64) (float32, error) {
	alpha, err := c.AlphaPattern.of(module, c.Alpha)
	r := float64(rank)
	if c.RSLoRA {
		r = math.Sqrt(r)
	}
	return float32(alpha / r), err
}

// saves reports whether the adapter has a copy of a module that was trained as a whole.
func (c *Config) saves(module string) bool {
	return slices.ContainsFunc(c.Saved, func(end string) bool { return strings.HasSuffix(module, end) })
}
