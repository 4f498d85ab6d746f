package inspect

import (
	"path"
	"regexp"
	"strconv"

	"github.com/cairn-ckpt/cairn/meta"
)

// rankNames match the names of files that say which rank has written them. The first group
// is the rank.
var rankNames = []*regexp.Regexp{
	regexp.MustCompile(`^[0-9a-z-]+-r(\d{5,9})-\d+\.(?:safetensors|delta)$`),                                      // cairn
	regexp.MustCompile(`^__(\d{1,9})_.*\.distcp$`),                                                                // PyTorch
	regexp.MustCompile(`^_rank(\d{1,9})_.*\.(?:safetensors|bytes)$`),                                              // hyper_parallel
	regexp.MustCompile(`^.+_rank(\d{1,9})\.bytes$`),                                                               // its older values
	regexp.MustCompile(`^(?:bf16_|fp16_)?zero_pp_rank_(\d{1,9})_mp_rank_0+_(?:\d+_)?(?:optim|model)_states\.pt$`), // DeepSpeed
	regexp.MustCompile(`^(?:model|optim|extra_state)_world_size_\d{1,6}_rank_(\d{1,6})\.pt$`),                     // verl, SkyRL
	regexp.MustCompile(`^(?:pytorch_model_fsdp|optimizer)_\d{1,3}_rank(\d{1,6})\.bin$`),                           // accelerate
	regexp.MustCompile(`^mp_rank_(0+)_(?:\d+_)?model_states\.pt$`),                                                // its first rank
}

var (
	// shardName matches the names of distributed safetensors files of PyTorch. The number
	// is the rank, counted from one.
	shardName = regexp.MustCompile(`^shard-(\d{5,9})-.*\.safetensors$`)
	// itemName matches the names of files of torch_checkpointing: a file for each item of the
	// state and each rank. Single files may have such names too.
	itemName = regexp.MustCompile(`^(.+)_(0|[1-9]\d{0,5})(\.pt|\.json|\.bin|\.safetensors)$`)
)

// rankOf returns the rank that has written a file, where its name says so, or nil.
func rankOf(file string) *int {
	name := path.Base(file)
	for _, x := range rankNames {
		if m := x.FindStringSubmatch(name); m != nil {
			return number(m[1], 0)
		}
	}
	if m := shardName.FindStringSubmatch(name); m != nil && m[1] != "00000" {
		return number(m[1], 1)
	}
	return nil
}

// number returns a text of a few digits as a number, less first.
func number(text string, first int) *int {
	n, err := strconv.Atoi(text)
	if err != nil || n < first {
		return nil
	}
	n -= first
	return &n
}

// ranksOf returns the rank of each file of a tensor that its name tells. The number in a name
// like model_3.pt is a rank only if the chunks of one tensor lie in several such files.
func ranksOf(locs []meta.Location) map[string]*int {
	out := map[string]*int{}
	items, numbered := map[string]int{}, map[string][]string{}
	for i := range locs {
		file := locs[i].File
		if _, ok := out[file]; ok {
			continue
		}
		out[file] = rankOf(file)
		if m := itemName.FindStringSubmatch(path.Base(file)); out[file] == nil && m != nil {
			items[m[1]+m[3]]++
			numbered[file] = m
		}
	}
	for file, m := range numbered {
		if items[m[1]+m[3]] > 1 {
			out[file] = number(m[2], 0)
		}
	}
	return out
}
