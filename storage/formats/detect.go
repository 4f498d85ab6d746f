package formats

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// maxListed bounds how many names of a place are looked at: a folder above many
// checkpoints is none itself.
const maxListed = 20_000

// The files by which formats are told apart.
const (
	nativeRecord = "cairn.json"
	dcpMetadata  = ".metadata"
	hfCommit     = "cairn-save.json"
)

var (
	nativeData = regexp.MustCompile(`^[0-9a-z-]+-(r[0-9]{5,}-[0-9]+\.safetensors|index\.cairn)$`)
	torchRank  = regexp.MustCompile(`^__[0-9]+\.metadata$`)
	torchData  = regexp.MustCompile(`^__[0-9]+_.*\.distcp$`)
	hyperRank  = regexp.MustCompile(`^(\.rank[0-9]+_metadata|[0-9]+\.metadata)$`)
	hyperData  = regexp.MustCompile(`^_rank[0-9]+_.*\.(safetensors|bytes)$`)
)

func isTorchIndex(name string) bool { return strings.HasSuffix(name, ".bin.index.json") }

func isTorchFile(name string) bool { return slices.Contains(torchfile.Extensions(), path.Ext(name)) }

// Detect returns the name of the format of the checkpoint at the root of store.
// Where there is none the error wraps storage.ErrNotFound. A place with the data
// of a format but without what makes it a checkpoint has that format: opening it
// says what is missing.
func Detect(ctx context.Context, store blob.Store) (string, error) {
	for _, probe := range []func(context.Context, blob.Store) (string, error){byRecord, byNames} {
		name, err := probe(ctx, store)
		if name != "" || err != nil {
			return name, err
		}
	}
	return "", fmt.Errorf("%w: %s holds no file of a known format", storage.ErrNotFound, store)
}

// byRecord looks for the files that only one format has, without a list.
func byRecord(ctx context.Context, store blob.Store) (string, error) {
	if ok, err := exists(ctx, store, nativeRecord); ok || err != nil {
		return Native, err
	}
	if ok, err := exists(ctx, store, dcpMetadata); !ok || err != nil {
		return "", err
	}
	return dialect(ctx, store, dcpMetadata)
}

func exists(ctx context.Context, store blob.Store, name string) (bool, error) {
	_, err := store.Stat(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// dialect tells the two kinds of metadata files apart by the module that the
// beginning names.
func dialect(ctx context.Context, store blob.Store, name string) (string, error) {
	head, err := readHead(ctx, store, name, 4096)
	if err != nil {
		return "", err
	}
	if bytes.Contains(head, []byte("hyper_parallel.")) {
		return Hyper, nil
	}
	return TorchDCP, nil
}

// readHead returns the first n bytes of an object, or all of a shorter one.
func readHead(ctx context.Context, store blob.Store, name string, n int64) ([]byte, error) {
	r, err := store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p := make([]byte, min(n, r.Size()))
	return p, r.ReadAt(ctx, p, 0)
}

// byNames goes by the names at the root of the store.
func byNames(ctx context.Context, store blob.Store) (string, error) {
	names, below, err := listNames(ctx, store)
	if err != nil {
		return "", err
	}
	if len(names) == 1 && len(below) == 0 && path.Ext(names[0]) != ".json" {
		if err := otherKind(ctx, store, names[0]); err != nil {
			return "", err
		}
	}
	rules := []struct {
		format string
		is     func(name string) bool
	}{
		{Native, nativeData.MatchString},
		{TorchDCP, torchRank.MatchString},
		{Hyper, hyperRank.MatchString},
		{TorchDCP, torchData.MatchString},
		{Hyper, hyperData.MatchString},
		{HF, func(n string) bool { return strings.HasSuffix(n, ".safetensors.index.json") }},
		{HF, func(n string) bool { return strings.HasSuffix(n, ".safetensors") || n == hfCommit }},
		{Torch, isTorchIndex},
	}
	for _, r := range rules {
		if slices.ContainsFunc(names, r.is) {
			return r.format, nil
		}
	}
	if len(names)+len(below) > 1 && !slices.Contains(names, "pytorch_model.bin") {
		if err := unsupported(ctx, store, append(below, names...)); err != nil {
			return "", err
		}
	}
	if len(names) == 1 {
		return byContent(ctx, store, names[0])
	}
	if slices.ContainsFunc(names, isTorchFile) {
		if _, err := torchfile.Find(ctx, store); err != nil {
			return "", err
		}
		return Torch, nil
	}
	return "", nil
}

// listNames returns the names at the root of the store, and those one folder below.
func listNames(ctx context.Context, store blob.Store) (root, below []string, err error) {
	seen := 0
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, nil, err
		}
		if seen++; seen > maxListed {
			break
		}
		switch strings.Count(info.Name, "/") {
		case 0:
			root = append(root, info.Name)
		case 1:
			below = append(below, info.Name)
		}
	}
	return root, below, nil
}

// otherKind returns an error if the file is of a kind that no format uses,
// whatever its name is.
func otherKind(ctx context.Context, store blob.Store, name string) error {
	r, err := store.Open(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()
	kind, err := storage.OtherKind(ctx, r)
	if err == nil && kind != "" {
		err = fmt.Errorf("%w: %s is %s", storage.ErrNotFound, name, kind)
	}
	return err
}

// byContent goes by the first bytes of the only file there is.
func byContent(ctx context.Context, store blob.Store, name string) (string, error) {
	head, err := readHead(ctx, store, name, 16)
	if err != nil {
		return "", err
	}
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte{0x80, 0x02}):
		return Torch, nil
	case len(head) > 8 && head[8] == '{' && binary.LittleEndian.Uint64(head) < 1<<32:
		return HF, nil
	case isTorchFile(name):
		return Torch, nil // opening it says what is wrong
	}
	return "", nil
}
