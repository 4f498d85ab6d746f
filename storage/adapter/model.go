package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
)

// modelConfig is the part of a model's configuration about tensors that it shares.
type modelConfig struct {
	Tied          *bool    `json:"tie_word_embeddings"`
	Architectures []string `json:"architectures"`
}

// headName is the weight of the output layer of a causal model.
const headName = "lm_head.weight"

// readModel reads the configuration of the model in a store. Without one, nothing is known.
func readModel(ctx context.Context, store blob.Store) (*modelConfig, error) {
	text, err := blob.ReadAll(ctx, store, "config.json", maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return &modelConfig{}, nil
	}
	if err != nil {
		return nil, err
	}
	c := &modelConfig{}
	if json.Unmarshal(text, c) != nil {
		return &modelConfig{}, nil
	}
	return c, nil
}

// generates reports whether the model has an output layer for tokens.
func (c *modelConfig) generates() bool {
	return c.causal() || c.has("ForConditionalGeneration", "ForMaskedLM")
}

// causal reports whether the model is a causal one, whose output layer has the name headName.
func (c *modelConfig) causal() bool { return c.has("ForCausalLM", "LMHeadModel") }

func (c *modelConfig) has(ends ...string) bool {
	return slices.ContainsFunc(c.Architectures, func(a string) bool {
		return slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(a, end) })
	})
}

// tied reports whether a model without a tensor for its output layer shares its embedding.
func (c *modelConfig) tied() bool { return c.generates() && (c.Tied == nil || *c.Tied) }
