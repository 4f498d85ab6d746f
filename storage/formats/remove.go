package formats

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// configFile is the name of the file that cairn.transformers writes beside a native checkpoint. It
// contains configMark, which a config.json of another program does not.
const (
	configFile = "config.json"
	configMark = "cairn.transformers.from_checkpoint"
	maxConfig  = 16 << 20
)

// megatronKeys is a value that cairn.megatron adds to a native checkpoint. It also writes
// megatronFiles beside the checkpoint, in which Megatron looks for a part of the contents. The last one
// is Megatron's own, with checksums (--verify-integrity).
const megatronKeys = "cairn.megatron.common"

var megatronFiles = []string{"metadata.json", "common.pt", "integrity.json"}

// Remove removes the checkpoint at the root of store, in any format: its files, its notes, the
// files of torch.save that libraries write beside a model, such as optimizer.pt, the
// config.json of cairn.transformers and the files of cairn.megatron. Other files in the folder stay. If the folder is empty then,
// Remove removes it.
//
// The removal is one atomic step for readers: until then they see the whole checkpoint, and
// then storage.ErrNotFound. A reader that has the files of a folder open goes on. The step
// is the removal of the record, the first file that goes:
//
//   - native: cairn.json.
//   - torchdcp and hyper: .metadata.
//   - hf: the index, cairn-save.json or the only file.
//   - torch: the index or the only file.
//   - torch_checkpointing: metadata.pkl.
//
// Checkpoints without such a file are hf of several files without an index, torchdcp and
// hyper with one metadata file of each rank, torch_checkpointing without metadata.pkl,
// deepspeed and orbax. For those, the step is a note in the lock of the removal, which Open reads. The
// first file that goes is then the metadata of rank 0, the model file of rank 0, or the
// first file by name: other programs see an incomplete checkpoint.
//
// Conditions and errors: see commit.Remove. The error also wraps storage.ErrNotFound,
// ErrIncomplete or ErrCorrupt if there is no checkpoint that can be opened.
func Remove(ctx context.Context, store blob.Store, opts *commit.RemoveOptions) (commit.Removed, error) {
	find := func(ctx context.Context) (*commit.Removal, error) {
		r, err := removal(ctx, store)
		return r, commit.Explain(ctx, store, err)
	}
	var o commit.RemoveOptions
	if opts != nil {
		o = *opts
	}

	check := o.Check
	o.Check = func(ctx context.Context) error {
		if err := native.CheckUnreferred(ctx, store); err != nil {
			return err
		}
		if check != nil {
			return check(ctx)
		}
		return nil
	}
	return commit.Remove(ctx, store, find, func(ctx context.Context) (map[string]bool, error) { return current(ctx, store) }, &o)
}

// Needed returns the names of files at the root of a store to which other checkpoints
// refer.
func Needed(ctx context.Context, store blob.Store) (map[string]bool, error) {
	return native.Needed(ctx, store)
}

// StoredFile is native.StoredFile: it returns the size and the checksum of a file according to the
// record in its store. ok is false if there is no record of the native format that names the file.
func StoredFile(ctx context.Context, store blob.Store, name string) (f storage.File, ok bool, err error) {
	return native.StoredFile(ctx, store, name)
}

// FinishRemovals finishes removals at the root of store after their process died. It removes
// the files if the record was gone, and otherwise only forgets the removal. See
// commit.FinishRemovals.
func FinishRemovals(ctx context.Context, store blob.Store) (commit.Removed, error) {
	left, err := commit.FinishRemovals(ctx, store, func(ctx context.Context) (map[string]bool, error) { return current(ctx, store) })
	var out commit.Removed
	for _, l := range left {
		out.Add(commit.Removed{Files: 1, Bytes: l.Size})
	}
	return out, err
}

// Reading is commit.Reading for the checkpoint that Open opens. In a folder, which Locate
// searches at no cost, it is the one that a pointer names if there is one.
func Reading(ctx context.Context, store blob.Store) (release func(), err error) {
	_, service := blob.As[blob.GapReader](store)
	if _, locks := blob.As[blob.Locker](store); locks && !service {
		at, _, err := Locate(ctx, store)
		if err != nil {
			return func() {}, nil // opening it returns the error
		}
		store = at
	}
	return commit.Reading(ctx, store)
}

// openAt opens the checkpoint at the root of store, and not one that a pointer names.
func openAt(ctx context.Context, store blob.Store) (storage.Checkpoint, string, error) {
	c, at, format, err := open(ctx, store, nil)
	if err != nil {
		return nil, "", err
	}
	if at.String() != store.String() {
		return nil, "", errors.Join(fmt.Errorf("%w: %s is the folder of a run, whose newest checkpoint is %s", storage.ErrNotFound, store, at), c.Close())
	}
	return c, format, nil
}

// removal describes the files of the checkpoint at the root of store.
func removal(ctx context.Context, store blob.Store) (*commit.Removal, error) {
	all := map[string]blob.Info{} // before the checkpoint is opened, so that a later change is noticed
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		all[info.Name] = info
	}

	c, format, err := openAt(ctx, store)
	if err != nil {
		return nil, err
	}
	defer c.Close()

	r := &commit.Removal{Format: format, SaveID: c.Storage().SaveID}
	files := filesOf(format, c, all)
	if _, ok := all[configFile]; ok && format == Native {
		data, err := blob.ReadAll(ctx, store, configFile, maxConfig)
		if err == nil && bytes.Contains(data, []byte(configMark)) { // a file that cannot be read stays
			files[configFile] = true
		}
	}
	if md, err := c.Metadata(ctx); err == nil && format == Native {
		if _, ok := md.Find(megatronKeys); ok {
			for _, name := range megatronFiles {
				if _, ok := all[name]; ok {
					files[name] = true
				}
			}
		}
	}

	for name := range files {
		info := all[name]
		r.Files = append(r.Files, commit.RemovedFile{Name: name, Size: info.Size, Version: info.Version})
	}

	if len(r.Files) == 0 {
		return nil, fmt.Errorf("%w: the files of %s were removed meanwhile", storage.ErrNotFound, store)
	}

	slices.SortFunc(r.Files, func(a, b commit.RemovedFile) int {
		return cmp.Or(cmp.Compare(rank(format, a.Name), rank(format, b.Name)), strings.Compare(a.Name, b.Name))
	})
	r.HasRecord = len(r.Files) == 1 || isRecord(format, r.Files[0].Name)
	return r, nil
}

// filesOf returns the names of the files in all that belong to a checkpoint.
func filesOf(format string, c storage.Checkpoint, all map[string]blob.Info) map[string]bool {
	out := map[string]bool{}
	for _, name := range storage.StoredFiles(c) {
		if _, ok := all[name]; ok {
			out[name] = true
		}
	}

	// The metadata of a rank does not name the copies of values that other ranks hold too.
	ranks := (format == TorchDCP || format == Hyper) && !hasRecord(format, c)
	for name := range all {
		if name == storage.NotesFile || ranks && Knows(format, name) || format == Native && WriteOrder(format, name) > 1 || (format == HF || format == Torch) && torchfile.Auxiliary(name) {
			out[name] = true
		}
	}

	return out
}

// hasRecord reports whether a checkpoint has a file that isRecord.
func hasRecord(format string, c storage.Checkpoint) bool {
	return slices.ContainsFunc(c.Files(), func(f storage.File) bool { return isRecord(format, f.Name) })
}

// isRecord reports whether the removal of a file of that name makes a checkpoint of several
// files incomplete for all readers.
func isRecord(format, name string) bool {
	if WriteOrder(format, name) > 1 {
		return true
	}
	describes, _ := recognize(format, name)
	return describes && (format == HF || format == Torch || format == TorchRanked)
}

// rank returns when a file is removed relative to other files: first the record, then the
// files that describe the checkpoint or are beside it, and then the data.
func rank(format, name string) int {
	describes, holds := recognize(format, name)
	switch {
	case isRecord(format, name):
		return 0
	case describes, format == DeepSpeed && strings.HasSuffix(name, "_model_states.pt"):
		return 1
	case !holds:
		return 2
	}

	return 3
}

// checkRemains returns an error that wraps storage.ErrNotFound if the checkpoint that was
// opened is only a leftover of another one, after a removal.
func checkRemains(ctx context.Context, store blob.Store, format string, c storage.Checkpoint) error {
	if _, single := store.(*blob.Single); single || hasRecord(format, c) {
		return nil // a removal removes the record first
	}

	var files []string
	for _, f := range c.Files() {
		files = append(files, f.Name)
	}

	if removed, err := commit.IsRemoved(ctx, store, files); removed && err == nil {
		return commit.Explain(ctx, store, storage.ErrNotFound)
	}
	return nil
}

// notRemains returns err, the error of opening a checkpoint in a format. If all files of the
// format are leftovers of a removed checkpoint, it returns an error that wraps
// storage.ErrNotFound instead.
func notRemains(ctx context.Context, store blob.Store, format string, err error) error {
	if _, single := store.(*blob.Single); single || ctx.Err() != nil {
		return err
	}

	var files []string
	for info, listErr := range store.List(ctx, "") {
		if listErr != nil {
			return err
		}
		if Knows(format, info.Name) || format == Torch && isTorchFile(info.Name) {
			files = append(files, info.Name)
		}
	}

	if removed, lockErr := commit.IsRemoved(ctx, store, files); removed && lockErr == nil {
		return commit.Explain(ctx, store, storage.ErrNotFound)
	}
	if _, _, now := locateAgain(ctx, store); errors.Is(now, storage.ErrNotFound) { // a removal has ended meanwhile
		return now
	}
	return err
}

// current returns the names of the files of the checkpoint at the root of store, if there
// is one.
func current(ctx context.Context, store blob.Store) (map[string]bool, error) {
	c, at, _, err := open(ctx, store, nil)
	if err != nil {
		for _, absent := range []error{storage.ErrNotFound, storage.ErrIncomplete, storage.ErrCorrupt} {
			if errors.Is(err, absent) {
				return nil, nil
			}
		}
		return nil, err
	}
	defer c.Close()

	out := map[string]bool{}
	if at.String() == store.String() { // the store of a checkpoint that refers to others is another one
		for _, name := range storage.StoredFiles(c) {
			out[name] = true
		}
	}
	return out, nil
}
