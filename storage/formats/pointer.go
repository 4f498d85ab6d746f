package formats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

// pointers are the files that training programs keep in the folder of a run, and that name
// the folder of the newest checkpoint. Each of folders returns the folder of one program for the
// text of the file, or "" if the text has another meaning.
var pointers = []struct {
	file    string
	folders []func(text string) string
}{
	{"latest_checkpointed_iteration.txt", []func(string) string{megatronFolder, stepFolder}}, // Megatron's and verl's
	{"latest_ckpt_global_step.txt", []func(string) string{stepFolder}},                       // SkyRL's
	{"latest", []func(string) string{deepspeedFolder}},
	{"latest_universal", []func(string) string{deepspeedFolder}}, // ds_to_universal leaves it beside the other one
}

// megatronFolder returns the folder of an iteration of Megatron, or of a converted model,
// which is "release".
func megatronFolder(text string) string {
	if text == "release" {
		return text
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("iter_%07d", n)
}

// stepFolder returns the folder of a step of verl and SkyRL.
func stepFolder(text string) string {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("global_step_%d", n)
}

// deepspeedFolder returns the folder of a tag of DeepSpeed.
func deepspeedFolder(text string) string {
	if blob.CheckName(text) != nil {
		return ""
	}
	return text
}

// maxPointer bounds the text of a pointer.
const maxPointer = 1 << 10

// Locate returns the store with the checkpoint at its root, and the format of the checkpoint:
// store itself or, if store is the folder of a run with a file that names its newest
// checkpoint, the folder below store. In the folder of a run of Orbax, which has no such file, it is the finished
// step with the highest number. The checkpoint of a step of verl or SkyRL is the folder of
// the model that the program trains: actor or policy, or else the only one. The checkpoint of
// NeMo 2 is its folder weights. Files of torch.save
// that libraries write beside a model, such as scheduler.bin, do not count beside such a file or
// folder. The errors are the errors of Detect.
func Locate(ctx context.Context, store blob.Store) (blob.Store, string, error) {
	format, auxiliary, roles, err := detect(ctx, store)
	if isSingle(store) || !errors.Is(err, storage.ErrNotFound) && !auxiliary {
		if format == Native && err == nil {
			store = native.Whole(ctx, store)
		}
		return store, format, err // a pointer by itself is not the folder of a run
	}

	at, name, pointErr := pointed(ctx, store)
	switch {
	case pointErr != nil:
		return store, "", pointErr
	case at == nil && len(roles) > 0:
		at, err := roleOf(store, roles)
		return at, FSDP, err
	case at == nil && auxiliary:
		return store, format, err
	case at == nil:
		if at, format, err := nemo(ctx, store); at != nil || err != nil {
			return at, format, err
		}
		return newestStep(ctx, store, err)
	}

	format, auxiliary, roles, err = detect(ctx, at)
	if len(roles) > 0 && (auxiliary || errors.Is(err, storage.ErrNotFound)) {
		at, err = roleOf(at, roles)
		format = FSDP
	}
	if err != nil {
		return store, "", fmt.Errorf("%s names %s: %w", name, at, err)
	}

	if format == Native {
		at = native.Whole(ctx, at)
	}
	return at, format, nil
}

// nemo returns the folder with the weights of a checkpoint of NeMo 2. It is nil if there is none.
func nemo(ctx context.Context, store blob.Store) (blob.Store, string, error) {
	at, err := blob.NewSub(store, "weights")
	if err != nil {
		return nil, "", err
	}
	for _, name := range []string{torchdcp.Files().Records[0], torchdcp.ConfigName} {
		if ok, err := exists(ctx, at, name); ok || err != nil {
			return at, TorchDCP, err
		}
	}
	return nil, "", nil
}

// newestStep returns the newest step of a run of Orbax. If store is no such run, the error is notFound.
func newestStep(ctx context.Context, store blob.Store, notFound error) (blob.Store, string, error) {
	if _, ok := errors.AsType[*UnsupportedError](notFound); ok {
		return store, "", notFound
	}
	dir, err := orbax.Newest(ctx, store)
	if err != nil {
		return store, "", err
	}
	if dir == "" {
		return store, "", notFound
	}
	at, err := blob.NewSub(store, dir)
	return at, Orbax, err
}

// roleOf returns the folder of the model that a program trains, of the folders with models below
// store.
func roleOf(store blob.Store, roles []string) (blob.Store, error) {
	for _, name := range []string{"actor", "policy"} {
		if slices.Contains(roles, name) {
			return blob.NewSub(store, name)
		}
	}
	if len(roles) > 1 {
		return store, fmt.Errorf("%w: %s holds the models %s: name the folder that is meant", storage.ErrNotFound, store, strings.Join(roles, ", "))
	}
	return blob.NewSub(store, roles[0])
}

// pointed returns the folder that a pointer at the root of store names, and the name of
// the pointer. The store is nil if there is no pointer.
func pointed(ctx context.Context, store blob.Store) (blob.Store, string, error) {
	for _, p := range pointers {
		b, err := blob.ReadAll(ctx, store, p.file, maxPointer)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if errors.Is(err, blob.ErrTooLarge) {
			err = fmt.Errorf("%w: %w", storage.ErrNotFound, err)
		}
		if err != nil {
			return nil, "", err
		}

		var dirs []string
		for _, folder := range p.folders {
			if dir := folder(strings.TrimSpace(string(b))); dir != "" {
				dirs = append(dirs, dir)
			}
		}
		if len(dirs) == 0 {
			return nil, "", fmt.Errorf("%w: %s of %s has the text %.100q, which names no folder", storage.ErrNotFound, p.file, store, b)
		}
		at, err := firstWithFiles(ctx, store, dirs)
		return at, p.file, err
	}
	return nil, "", nil
}

// firstWithFiles returns the first of several folders that has files, or else the first one.
func firstWithFiles(ctx context.Context, store blob.Store, dirs []string) (blob.Store, error) {
	first, err := blob.NewSub(store, dirs[0])
	if err != nil || len(dirs) == 1 {
		return first, err
	}
	for _, dir := range dirs {
		at, err := blob.NewSub(store, dir)
		if err != nil {
			return nil, err
		}
		for _, err := range at.List(ctx, "") {
			return at, err
		}
	}
	return first, nil
}
