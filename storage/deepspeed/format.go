// Package deepspeed reads the checkpoints of DeepSpeed: ZeRO stages 1, 2 and 3, and
// universal checkpoints. It finds the parts of each parameter in the flat partitions of
// the ranks and describes where they are, so that readers take only the bytes that they
// need. It runs no pickle, does not need DeepSpeed, and refuses by name the layouts that
// it cannot read. The contract is at Open.
package deepspeed

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// Format is DeepSpeed's format, which is only read.
type Format struct{}

var _ storage.Format = Format{}

// Name returns "deepspeed".
func (Format) Name() string { return "deepspeed" }

// NewWriter returns an error that wraps storage.ErrOptions.
func (f Format) NewWriter(blob.Store, storage.WriteOptions) (storage.Writer, error) {
	return nil, storage.RefuseIf(true, "the format %s is only read: write native, torchdcp, hf, torch or hyper instead", f.Name())
}

// Open opens the checkpoint of a tag. Its files are at the root of store. Package formats
// finds the tag that the file latest of a run names. The names are:
//
//   - model.NAME: the weights as DeepSpeed's optimizer holds them, in fp32. Frozen
//     parameters, tied names and buffers are there, too. 16-bit ones become fp32; other
//     dtypes, such as integers, stay as they are.
//   - model16.NAME: the weights in 16 bits, if the module's state has them. ZeRO 3 has none.
//   - optimizer.state.NAME.STATE: the state of the optimizer for each parameter, such as
//     exp_avg and step. A number becomes a tensor without dimensions if it is the step.
//   - optimizer.param_groups.N.OPTION: the options of the parameter groups. The option
//     params is the list of names.
//   - lr_scheduler.…: the state of the scheduler, if there is one.
//   - client.…: the client state that the program passed to save_checkpoint.
//   - deepspeed.…: the counters, the configuration and the loss scaler of DeepSpeed.
//
// All else comes from the files of rank 0. Parameters are laid out as the option
// param_shapes of the model files says. If param_slice_mappings of the optimizer files,
// which DeepSpeed's own conversion to universal checkpoints follows, contradicts it,
// Storage.Notes says so.
//
// In ZeRO 1 and 2, and in universal checkpoints made from them, the module's state is a
// second copy of the trained weights. Verify and CheckCopies compare it with the first.
//
// The error wraps storage.ErrNotFound if store holds no such checkpoint,
// storage.ErrIncomplete if the file of a rank is missing, storage.ErrCorrupt if the files
// contradict each other, and storage.ErrVersion if the layout is not read: tensor,
// pipeline or expert parallel, without ZeRO, or too old.
func (Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	src, err := reading.Watch(ctx, store, []string{modelName, modelName3}, func(ctx context.Context) (*reading.Source, error) {
		return describe(ctx, store)
	})
	if err != nil {
		return nil, err
	}
	return reading.Open(store, src), nil
}

func describe(ctx context.Context, store blob.Store) (*reading.Source, error) {
	d, err := list(ctx, store)
	if err != nil {
		return nil, err
	}

	c := &checkpoint{folder: d, b: torchfile.NewBuilder(store), weights: map[string]meta.Entry{}}
	if d.universal != nil {
		err = c.readUniversal(ctx)
	} else {
		err = c.readZeRO(ctx)
	}
	if err != nil {
		return nil, err
	}
	return c.source()
}

const (
	// maxListed bounds how many files of a checkpoint are listed.
	maxListed = 1 << 20
	// modelName and modelName3 are the model files of rank 0, up to stage 2 and in stage 3.
	modelName  = "mp_rank_00_model_states.pt"
	modelName3 = "zero_pp_rank_0_mp_rank_00_model_states.pt"
	// zeroDir is the folder of a universal checkpoint.
	zeroDir = "zero/"
	// universalGroups is the file of a universal checkpoint about all parameters.
	universalGroups = zeroDir + "optimizer_state.pt"
)

// The names of files.
var (
	optimFile    = regexp.MustCompile(`^(bf16_|fp16_)?zero_pp_rank_(\d{1,9})_mp_rank_(\d{1,9})(_\d+)?_optim_states\.pt$`)
	modelFile    = regexp.MustCompile(`^(zero_pp_rank_(\d{1,9})_)?mp_rank_(\d{1,9})(_\d+)?_model_states\.pt$`)
	pipelineFile = regexp.MustCompile(`^layer_\d+-model_\d+.*-model_states\.pt$`)
	expertFile   = regexp.MustCompile(`^((layer_\d+_)?expert_\d+_mp_rank_\d+_model_states|expp_rank_\d+_mp_rank_\d+_optim_states)\.pt$`)
)

// Recognize reports whether a file of that name, relative to a checkpoint, describes a
// checkpoint of this format, which no file does, or holds data of one.
func Recognize(name string) (describes, holds bool) {
	for _, x := range []*regexp.Regexp{optimFile, modelFile, pipelineFile, expertFile} {
		holds = holds || x.MatchString(name)
	}
	return false, holds || strings.HasPrefix(name, zeroDir) && path.Ext(name) == ".pt"
}

// folder is the content of a checkpoint, by the names of its files.
type folder struct {
	store blob.Store
	// optim are the optimizer files, by their prefix and rank. model are the model files
	// of tensor parallel ranks, and model3 those of stage 3, by rank.
	optim  map[string]map[int]string
	model  map[int]string
	model3 map[int]string
	// universal are the files of the states of a universal checkpoint, by parameter and
	// state. Nil: it is not one.
	universal map[string]map[string]string
	groups    bool // universalGroups is there
	// refused is a file of a layout that is not read, and layout its name.
	refused, layout string
}

// list lists the files of the checkpoint at the root of store.
func list(ctx context.Context, store blob.Store) (*folder, error) {
	d := &folder{store: store, optim: map[string]map[int]string{}, model: map[int]string{}, model3: map[int]string{}}
	seen := 0
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if seen++; seen > maxListed {
			return nil, fmt.Errorf("%w: %s holds more than %d files", storage.ErrVersion, store, maxListed)
		}
		d.add(info.Name)
	}

	if d.empty() {
		return nil, fmt.Errorf("%w: %s holds no files of DeepSpeed", storage.ErrNotFound, store)
	}
	return d, nil
}

func (d *folder) add(name string) {
	if rest, ok := strings.CutPrefix(name, zeroDir); ok {
		d.addUniversal(name, rest)
		return
	}

	refuse := func(layout string) {
		if d.refused == "" {
			d.refused, d.layout = name, layout
		}
	}
	if m := optimFile.FindStringSubmatch(name); m != nil {
		if number(m[3]) > 0 || m[4] != "" {
			refuse("tensor parallel")
			return
		}
		if d.optim[m[1]] == nil {
			d.optim[m[1]] = map[int]string{}
		}
		d.optim[m[1]][number(m[2])] = name
		return
	}

	if m := modelFile.FindStringSubmatch(name); m != nil {
		switch {
		case m[4] != "" || m[1] != "" && number(m[3]) > 0:
			refuse("tensor parallel")
		case m[1] != "":
			d.model3[number(m[2])] = name
		default:
			d.model[number(m[3])] = name
		}
		return
	}

	switch {
	case pipelineFile.MatchString(name):
		refuse("pipeline parallel")
	case expertFile.MatchString(name):
		refuse("expert parallel")
	}
}

// addUniversal adds a file below zeroDir.
func (d *folder) addUniversal(name, rest string) {
	if path.Ext(name) != ".pt" {
		return
	}

	if d.universal == nil {
		d.universal = map[string]map[string]string{}
	}

	if name == universalGroups {
		d.groups = true
		return
	}

	param, state := path.Split(rest)
	param = strings.TrimSuffix(param, "/")
	if param == "" {
		return
	}
	if d.universal[param] == nil {
		d.universal[param] = map[string]string{}
	}
	d.universal[param][strings.TrimSuffix(state, ".pt")] = name
}

// empty reports whether no file of DeepSpeed is there.
func (d *folder) empty() bool {
	return len(d.optim)+len(d.model)+len(d.model3) == 0 && d.universal == nil && d.refused == ""
}

// checkLayout returns an error if the files are of a layout that is not read.
func (d *folder) checkLayout() error {
	name, layout := d.refused, d.layout
	if name == "" && len(d.model) > 0 {
		for r, n := range d.model {
			if r > 0 && (name == "" || n < name) {
				name, layout = n, "tensor parallel"
			}
		}
	}

	if name == "" {
		return nil
	}
	return unsupported(name, "a %s checkpoint: DeepSpeed's ds_to_universal makes a universal checkpoint of it, which cairn reads", layout)
}

// number returns the number in a name that a pattern has matched.
func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// unsupported returns the error for a file of a kind that is not read.
func unsupported(file, format string, args ...any) error {
	return &storage.FileError{File: file, Err: fmt.Errorf("%w: %w", storage.ErrVersion, fmt.Errorf(format, args...))}
}

// incomplete returns the error for a file that is missing.
func incomplete(file, format string, args ...any) error {
	return fmt.Errorf("%w: %s is missing: %w", storage.ErrIncomplete, file, fmt.Errorf(format, args...))
}
