package torchfile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// FSDP is the format of training programs that save one file of torch.save for each rank of
// FSDP: verl and SkyRL, and accelerate with use_dcp=False. It is only read.
type FSDP struct{}

var _ storage.Format = FSDP{}

// Name returns "fsdp".
func (FSDP) Name() string { return "fsdp" }

// NewWriter refuses to write.
func (f FSDP) NewWriter(blob.Store, storage.WriteOptions) (storage.Writer, error) {
	return nil, storage.RefuseIf(true, "the format %s is only read; native and torchdcp hold all that it holds", f.Name())
}

// Open opens the checkpoint with its files at the root of store. The names are:
//
//   - model.NAME: the weights and buffers, in their dtypes. The pieces of all ranks are one
//     tensor, in chunks. The models after the first one of accelerate are model_1 and so on.
//   - optimizer.state.NAME.STATE: the state of the optimizer for each parameter, such as
//     exp_avg and step. The second optimizer of accelerate is optimizer_1.
//   - optimizer.param_groups.N.OPTION: the options of the parameter groups. The option params
//     is the list of names.
//   - extra.…: the scheduler and the random states, which differ between ranks: see
//     Ranked.Open for their names.
//
// An optimizer that numbers its parameters gets names from the order of the model's
// parameters. If the shapes of its states contradict the order, or do not prove it, the names
// below optimizer are in Metadata.Missing, with the reason. The flat tensors of FSDP 1 are cut
// into parameters if their lengths permit it; Storage.Notes says that nothing proves it.
//
// Only pickles are read. Tensors that several ranks have are compared by the checksums of
// their records.
//
// The error wraps storage.ErrNotFound if there are no such files, storage.ErrIncomplete if the
// file of a rank is missing, storage.ErrCorrupt if the files contradict each other or belong to
// different saves, and storage.ErrVersion if they hold the flat pieces of LOCAL_STATE_DICT.
func (f FSDP) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	src, err := reading.Watch(ctx, store, []string{fsdpConfig}, func(ctx context.Context) (*reading.Source, error) {
		return describeFSDP(ctx, store, openAlike)
	})
	if err != nil {
		return nil, err
	}
	return reading.Open(store, src), nil
}

// fsdpConfig is a file of verl with the number of ranks.
const fsdpConfig = "fsdp_config.json"

// The names of files.
var (
	verlFile       = regexp.MustCompile(`^(model|optim|extra_state)_world_size_([1-9][0-9]{0,5})_rank_(0|[1-9][0-9]{0,5})\.pt$`)
	accelerateFile = regexp.MustCompile(`^(pytorch_model_fsdp|optimizer)_(0|[1-9][0-9]{0,2})_rank(0|[1-9][0-9]{0,5})\.bin$`)
	localFile      = regexp.MustCompile(`^pytorch_model_fsdp_rank(0|[1-9][0-9]{0,5})\.bin$`)
)

// RecognizeFSDP reports whether a file of that name describes a checkpoint of the format FSDP,
// which no file does, or holds data of one.
func RecognizeFSDP(name string) (describes, holds bool) {
	return false, verlFile.MatchString(name) || accelerateFile.MatchString(name) || localFile.MatchString(name)
}

// fsdpItem is what some files hold, one for each rank.
type fsdpItem struct {
	name string // of the item in the checkpoint, such as "model"
	kind string // of its files: "model", "optim" or "extra_state"
	file func(rank int) string
	// have are the ranks with a file, and world is the number of ranks that the names say.
	have  map[int]bool
	world int
	files []*File // of all ranks
}

// fsdpFolder is the content of a checkpoint, by the names of its files.
type fsdpFolder struct {
	items map[string]*fsdpItem
	// config is fsdp_config.json. An empty name: there is none.
	config storage.File
	local  string // a file of LOCAL_STATE_DICT
}

// listFSDP lists the files at the root of store.
func listFSDP(ctx context.Context, store blob.Store) (*fsdpFolder, error) {
	d, worlds := &fsdpFolder{items: map[string]*fsdpItem{}}, map[int]string{}
	var names []string
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if strings.Contains(info.Name, "/") {
			continue
		}
		if names = append(names, info.Name); len(names) > maxFSDPFiles {
			return nil, fmt.Errorf("%w: %s holds more than %d files", storage.ErrVersion, store, maxFSDPFiles)
		}
		if m := verlFile.FindStringSubmatch(info.Name); m != nil {
			n, _ := strconv.Atoi(m[2])
			worlds[n] = cmp.Or(worlds[n], info.Name)
		}
	}

	world, err := d.worldOf(ctx, store, worlds)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		d.add(name, world)
	}
	if len(d.items) == 0 && d.local == "" {
		return nil, fmt.Errorf("%w: %s holds no file of a rank of FSDP", storage.ErrNotFound, store)
	}
	return d, nil
}

// maxFSDPFiles bounds the files of a checkpoint.
const maxFSDPFiles = 1 << 20

// worldOf returns the number of ranks of a checkpoint of verl. Its folder can hold files of a
// save with another number of ranks; then fsdp_config.json says which ones count.
func (d *fsdpFolder) worldOf(ctx context.Context, store blob.Store, worlds map[int]string) (int, error) {
	if len(worlds) == 0 {
		return 0, nil
	}
	sizes := slices.Sorted(maps.Keys(worlds))
	var config struct {
		World int `json:"world_size"`
	}
	b, err := blob.ReadAll(ctx, store, fsdpConfig, 1<<20)
	switch {
	case err == nil:
		d.config = storage.File{Name: fsdpConfig, Size: int64(len(b)), Unsummed: true}
		if err := json.Unmarshal(b, &config); err != nil {
			return 0, reading.Damaged(fsdpConfig, "%w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return 0, err
	}

	switch {
	case worlds[config.World] != "":
		return config.World, nil
	case config.World > 0:
		return 0, reading.Damaged(worlds[sizes[0]], "it belongs to another save than %s, which is about %d ranks", fsdpConfig, config.World)
	case len(sizes) > 1:
		return 0, reading.Damaged(worlds[sizes[1]], "it belongs to another save than %s, and no %s says which one counts: remove the files of the other save", worlds[sizes[0]], fsdpConfig)
	}
	return sizes[0], nil
}

// add adds a file. Beside files of verl, files of verl with another number of ranks and files of
// accelerate do not count.
func (d *fsdpFolder) add(name string, world int) {
	if localFile.MatchString(name) && (d.local == "" || name < d.local) {
		d.local = name
	}
	if m := verlFile.FindStringSubmatch(name); m != nil && m[2] == strconv.Itoa(world) {
		it := d.item(map[string]string{"model": "model", "optim": "optimizer", "extra_state": "extra"}[m[1]], m[1])
		it.file, it.world = func(rank int) string { return fmt.Sprintf("%s_world_size_%d_rank_%d.pt", m[1], world, rank) }, world
		it.have[atoi(m[3])] = true
	}
	if m := accelerateFile.FindStringSubmatch(name); m != nil && world == 0 {
		item, kind := "model", "model"
		if m[1] == "optimizer" {
			item, kind = "optimizer", "optim"
		}
		if m[2] != "0" {
			item += "_" + m[2]
		}
		it := d.item(item, kind)
		it.file = func(rank int) string { return fmt.Sprintf("%s_%s_rank%d.bin", m[1], m[2], rank) }
		it.have[atoi(m[3])] = true
		it.world = max(it.world, atoi(m[3])+1)
	}
}

func (d *fsdpFolder) item(name, kind string) *fsdpItem {
	it := d.items[name]
	if it == nil {
		it = &fsdpItem{name: name, kind: kind, have: map[int]bool{}}
		d.items[name] = it
	}
	return it
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// of returns the items of a kind, in the order of their names.
func (d *fsdpFolder) of(kind string) []*fsdpItem {
	var out []*fsdpItem
	for _, name := range slices.Sorted(maps.Keys(d.items)) {
		if d.items[name].kind == kind {
			out = append(out, d.items[name])
		}
	}
	return out
}

// check returns an error if the file of a rank is missing, as far as names say, or if there is
// no model.
func (d *fsdpFolder) check() error {
	if d.local != "" {
		return &storage.FileError{File: d.local, Err: errLocal}
	}

	world := 0
	for _, it := range d.items {
		world = max(world, it.world)
	}
	for _, kind := range []string{"model", "optim", "extra_state"} {
		for _, it := range d.of(kind) {
			if err := it.checkRanks(world); err != nil {
				return err
			}
		}
	}

	for _, it := range d.items {
		if d.items["model"] == nil {
			name := strings.NewReplacer("optim_", "model_", "extra_state_", "model_", "optimizer_", "pytorch_model_fsdp_").Replace(it.file(0))
			return fmt.Errorf("%w: %s is missing: the names of all parameters are in it", storage.ErrIncomplete, name)
		}
	}
	return nil
}

// errLocal is the error for files of LOCAL_STATE_DICT.
var errLocal = fmt.Errorf("%w: LOCAL_STATE_DICT of FSDP 1: its flat pieces have neither names nor shapes of parameters; load it with the same program, and save it as SHARDED_STATE_DICT or FULL_STATE_DICT", storage.ErrVersion)

// checkRanks returns an error if the file of a rank is missing.
func (it *fsdpItem) checkRanks(world int) error {
	for rank := range world {
		if !it.have[rank] {
			return fmt.Errorf("%w: %s is missing: the checkpoint is of %d ranks", storage.ErrIncomplete, it.file(rank), world)
		}
	}
	for rank := range it.have {
		if rank >= world {
			return reading.Damaged(it.file(rank), "a save of %d ranks has no rank %d", world, rank)
		}
	}
	return nil
}

// openFunc opens files, like OpenFiles.
type openFunc func(ctx context.Context, store blob.Store, names []string) ([]*File, reading.LostFiles, error)

// open opens the files of all items. alike opens files with a part of each parameter.
func (d *fsdpFolder) open(ctx context.Context, store blob.Store, alike openFunc) error {
	for _, name := range slices.Sorted(maps.Keys(d.items)) {
		it := d.items[name]
		names := make([]string, len(it.have))
		for rank := range names {
			names[rank] = it.file(rank)
		}
		open := OpenFiles
		if it.kind != "extra_state" {
			open = alike
		}

		files, lost, err := open(ctx, store, names)
		if err == nil {
			err = lost.Err()
		}
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := checkSavedAs(f); err != nil {
				return err
			}
		}
		it.files = files
	}
	return nil
}

// checkSavedAs returns an error if a file has the name of another rank, or of another number of
// ranks, than it was saved as.
func checkSavedAs(f *File) error {
	saved := f.Folder + path.Ext(f.Name)
	if _, ok := RecognizeFSDP(saved); !ok || saved == f.Name {
		return nil // another program may have written the file without its name
	}
	return reading.Damaged(f.Name, "it was saved as %s: give each file the name that it was saved as, because the name says which rank it belongs to", saved)
}

// describeFSDP reads everything about the checkpoint except its data.
func describeFSDP(ctx context.Context, store blob.Store, alike openFunc) (*reading.Source, error) {
	d, err := listFSDP(ctx, store)
	if err != nil {
		return nil, err
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	if err := d.open(ctx, store, alike); err != nil {
		return nil, err
	}

	c := &fsdpSave{fsdpFolder: d, store: store, b: NewBuilder(store), world: len(d.items["model"].files)}
	for _, kind := range []string{"model", "optim", "extra_state"} {
		for _, it := range d.of(kind) {
			for _, f := range it.files {
				c.b.AddFile(f)
			}
		}
	}
	if d.config.Name != "" {
		c.b.files = append(c.b.files, d.config)
	}
	if err := c.read(ctx); err != nil {
		return nil, err
	}

	for _, it := range d.items {
		for _, f := range it.files {
			f.Forget() // the pickles of all ranks are large
		}
	}
	src := c.b.Source("FSDP, one file for each rank")
	src.Metadata.Storage.WorldSize, src.Metadata.Storage.Notes, src.Metadata.Missing = c.world, c.notes, c.missing
	return src, nil
}
