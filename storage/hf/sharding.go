package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/tensor"
)

// shardingInfo is what PyTorch writes about one key of a file.
type shardingInfo struct {
	Offsets []int64 `json:"saved_offsets"`
}

// decodeSharding reads where the chunks of a file lie in their tensors.
func decodeSharding(text string) (map[string]shardingInfo, error) {
	var m map[string]shardingInfo
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return nil, fmt.Errorf("%s: %w", keySharding, err)
	}
	if m == nil {
		return nil, errors.New(keySharding + " is null")
	}
	return m, nil
}

// boxOf returns the box of its tensor that an entry of a file is.
func (f *dataFile) boxOf(e *safetensors.Entry) (tensor.Box, error) {
	if f.sharding == nil {
		return tensor.Whole(e.Shape), nil
	}
	info, ok := f.sharding[e.Name]
	if !ok {
		return tensor.Box{}, fmt.Errorf("%s does not say where %q lies", keySharding, e.Name)
	}
	if len(info.Offsets) != len(e.Shape) {
		return tensor.Box{}, fmt.Errorf("%q has %d offsets and %d dimensions", e.Name, len(info.Offsets), len(e.Shape))
	}
	for d, o := range info.Offsets {
		if o < 0 || o > math.MaxInt64-e.Shape[d] {
			return tensor.Box{}, fmt.Errorf("%q of shape %v lies at %v", e.Name, e.Shape, info.Offsets)
		}
	}
	return tensor.Box{Offsets: append([]int64{}, info.Offsets...), Sizes: e.Shape}, nil
}

// atOrigin reports whether a box begins where its tensor does.
func atOrigin(b tensor.Box) bool {
	return !slices.ContainsFunc(b.Offsets, func(o int64) bool { return o != 0 })
}
