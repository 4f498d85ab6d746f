package formats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/orbax"
)

// pointers are the files that training programs keep in the folder of a run, and that name
// the folder of the newest checkpoint. folder returns its name for the text of the file,
// or "" if the text has another meaning.
var pointers = []struct {
	file   string
	folder func(text string) string
}{
	{"latest_checkpointed_iteration.txt", megatronFolder},
	{"latest", deepspeedFolder},
	{"latest_universal", deepspeedFolder}, // ds_to_universal leaves it beside the other one
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
// step with the highest number. Files of torch.save that libraries write beside a
// model, such as scheduler.bin, do not count beside such a file. The errors are the errors of
// Detect.
func Locate(ctx context.Context, store blob.Store) (blob.Store, string, error) {
	format, auxiliary, err := detect(ctx, store)
	if _, single := store.(*blob.Single); single || !errors.Is(err, storage.ErrNotFound) && !auxiliary {
		if format == Native && err == nil {
			store = native.Whole(ctx, store)
		}
		return store, format, err // a pointer by itself is not the folder of a run
	}

	at, name, pointErr := pointed(ctx, store)
	switch {
	case pointErr != nil:
		return store, "", pointErr
	case at == nil && auxiliary:
		return store, format, err
	case at == nil:
		return newestStep(ctx, store, err)
	}

	if format, err = Detect(ctx, at); err != nil {
		return store, "", fmt.Errorf("%s names %s: %w", name, at, err)
	}

	if format == Native {
		at = native.Whole(ctx, at)
	}
	return at, format, nil
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

		dir := p.folder(strings.TrimSpace(string(b)))
		if dir == "" {
			return nil, "", fmt.Errorf("%w: %s of %s has the text %.100q, which names no folder", storage.ErrNotFound, p.file, store, b)
		}

		at, err := blob.NewSub(store, dir)
		return at, p.file, err
	}
	return nil, "", nil
}
