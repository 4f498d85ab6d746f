package torchdcp

import (
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
)

// ConfigName is the file by which Megatron recognises a checkpoint of its format torch_dist.
const ConfigName = "metadata.json"

// megatronConfig is the contents of ConfigName. Newer releases ignore the last two members.
const megatronConfig = `{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}`

// megatronVersion is the version of the contents of a checkpoint. Megatron's loader takes a
// checkpoint without a version for one of version 0, and reorders its rows.
const megatronVersion = 3.0

// numberedLayer is the beginning of the name of a tensor of one layer. Without a number, the
// tensor has all layers.
var numberedLayer = regexp.MustCompile(`^(language_model\.)?decoder\.layers\.[0-9]+\.`)

// MegatronFiles returns the files that Megatron's loader needs beside a checkpoint with these
// names of tensors, which has no arguments and no training state: ConfigName and CommonName.
// The content_metadata of CommonName tells the loader which names to expect. step is the
// iteration of the checkpoint; nil: it has none.
func MegatronFiles(names []string, step *int64) (map[string][]byte, error) {
	content := map[string]any{
		"singleton_local_shards":     slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, ".linear_fc1.weight_w") }),
		"chained_optim_avoid_prefix": true,
	}
	if slices.ContainsFunc(names, numberedLayer.MatchString) {
		content["non_homogeneous_layers"] = true
	}

	common := map[string]any{"checkpoint_version": megatronVersion, "content_metadata": content}
	if step != nil {
		common["iteration"] = *step
	}

	text, err := torchsave.Marshal(common)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{ConfigName: []byte(megatronConfig), CommonName: text}, nil
}
