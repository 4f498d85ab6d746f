package formats

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// UnsupportedError reports a checkpoint of a format that cairn does not read. It
// wraps storage.ErrNotFound.
type UnsupportedError struct {
	// Where is the place, Format the name of the format, and File the file by
	// which cairn recognised it.
	Where, Format, File string
	// Hint says how to get a checkpoint that cairn reads.
	Hint string
}

// Error names the format.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%v that cairn reads: %s is a checkpoint of %s, by its file %s", storage.ErrNotFound, e.Where, e.Format, e.File)
}

// Unwrap returns storage.ErrNotFound.
func (e *UnsupportedError) Unwrap() error { return storage.ErrNotFound }

var (
	zeroFile = regexp.MustCompile(`^(bf16_|fp16_)?zero_pp_rank_\d+_mp_rank_\d+(_\d+)?_(optim|model)_states\.pt$`)
	mpRank   = regexp.MustCompile(`^mp_rank_\d+(_\d+)?_model_states\.pt$`)
)

const (
	hintZeRO  = "zero_to_fp32.py, which DeepSpeed puts beside its checkpoints, makes a file of torch.save or safetensors of it"
	hintOrbax = "restore it with Orbax or Flax, and save its arrays as safetensors"
	hintZarr  = "Megatron's own tools convert it to the torch_dist format, which cairn reads as torchdcp"
)

// unsupported returns an *UnsupportedError if the files, by their names with at
// most one folder above them, are those of a format that is known by name only.
func unsupported(ctx context.Context, store blob.Store, names []string) error {
	found := func(format, file, hint string) error {
		return &UnsupportedError{store.String(), format, file, hint}
	}
	for _, name := range names {
		dir, base := path.Split(name)
		switch {
		case zeroFile.MatchString(base), mpRank.MatchString(base) && strings.HasPrefix(dir, "global_step"):
			return found("DeepSpeed", name, hintZeRO)
		case base == "_CHECKPOINT_METADATA", base == "manifest.ocdbt", base == "_METADATA" && dir == "":
			return found("Orbax", name, hintOrbax)
		case base == ".zarray" && dir != "" && slices.Contains(names, "common.pt"):
			return found("Megatron in its zarr format", name, hintZarr)
		case name == "metadata.json", name == "checkpoint":
			head, err := readHead(ctx, store, name, 4096)
			if err != nil {
				return err
			}
			if name == "metadata.json" && bytes.Contains(head, []byte(`"sharded_backend"`)) && bytes.Contains(head, []byte(`"zarr"`)) {
				return found("Megatron in its zarr format", name, hintZarr)
			}
			if name == "checkpoint" && isMsgpackMap(head) {
				return found("Flax", name, hintOrbax)
			}
		}
	}
	return nil
}

// isMsgpackMap reports whether bytes begin a map with entries in MessagePack. No
// text begins like this, and no pickle.
func isMsgpackMap(head []byte) bool {
	return len(head) > 0 && (head[0] > 0x80 && head[0] <= 0x8f || head[0] == 0xde || head[0] == 0xdf)
}
