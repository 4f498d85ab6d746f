package formats

import (
	"context"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// format is one format and how it is reached.
type format struct {
	name string
	// whole says that it holds whole tensors of one rank only.
	whole bool
	open  func(ctx context.Context, s blob.Store, o *Options) (storage.Checkpoint, error)
	write func(s blob.Store, o *WriterOptions) (storage.Writer, error)
}

// list is all formats. A new one takes a row here and a rule in Detect.
var list = []format{
	{Native, false, openNative, writeNative},
	{TorchDCP, false, openTorchDCP, writeTorchDCP},
	{HF, true, openHF, writeHF},
	{Torch, true, openTorch, writeTorch},
	{Hyper, false, openHyper, writeHyper},
}

func openNative(ctx context.Context, s blob.Store, _ *Options) (storage.Checkpoint, error) {
	c, err := native.Open(ctx, s)
	if err != nil {
		return nil, err // not a nil *native.Checkpoint in an interface
	}
	return c, nil
}

func writeNative(s blob.Store, o *WriterOptions) (storage.Writer, error) {
	return native.NewWriter(s, &native.WriterOptions{
		FilesPerRank: o.Files, FileBytes: o.MaxFileBytes, BufferBytes: o.BufferBytes, FailIfExists: o.FailIfExists,
	}), nil
}

func openTorchDCP(ctx context.Context, s blob.Store, _ *Options) (storage.Checkpoint, error) {
	return torchdcp.Open(ctx, s, nil)
}

func writeTorchDCP(s blob.Store, o *WriterOptions) (storage.Writer, error) {
	return torchdcp.NewWriter(s, &torchdcp.WriterOptions{
		FilesPerRank: o.Files, MaxFileBytes: o.MaxFileBytes, BufferBytes: o.BufferBytes, FailIfExists: o.FailIfExists,
	}), nil
}

func openHF(ctx context.Context, s blob.Store, o *Options) (storage.Checkpoint, error) {
	return hf.Open(ctx, s, &hf.Options{Dequantize: o.Dequantize})
}

// writeHF never replaces anything, whatever FailIfExists says.
func writeHF(s blob.Store, o *WriterOptions) (storage.Writer, error) {
	return hf.NewWriter(s, &hf.WriterOptions{
		MaxShardBytes: o.MaxFileBytes, Shards: o.Shards, Distributed: o.Distributed, BufferBytes: o.BufferBytes, Parallel: o.Files,
	}), nil
}

func openTorch(ctx context.Context, s blob.Store, _ *Options) (storage.Checkpoint, error) {
	names, err := rootNames(ctx, s)
	if err != nil {
		return nil, err
	}
	name, err := torchFile(s, names)
	if err != nil {
		return nil, err
	}
	return torchfile.Open(ctx, s, name)
}

// torchFile returns the one file, or index of files, of torch.save among names.
func torchFile(s blob.Store, names []string) (string, error) {
	if len(names) == 1 {
		return names[0], nil
	}
	if i := slices.IndexFunc(names, isTorchIndex); i >= 0 {
		return names[i], nil
	}
	var found []string
	for _, n := range names {
		if isTorchFile(n) {
			found = append(found, n)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: %s holds no file of torch.save", storage.ErrNotFound, s)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%w: %s holds %d files of torch.save, such as %s: name the one that is meant",
		storage.ErrNotFound, s, len(found), found[0])
}

func writeTorch(s blob.Store, o *WriterOptions) (storage.Writer, error) {
	if o.File == "" {
		return nil, fmt.Errorf("the format %s is one file: it needs a name", Torch)
	}
	return torchfile.NewWriter(s, o.File, &torchfile.WriterOptions{BufferBytes: o.BufferBytes, FailIfExists: o.FailIfExists}), nil
}

func openHyper(ctx context.Context, s blob.Store, _ *Options) (storage.Checkpoint, error) {
	return hyper.Open(ctx, s)
}

func writeHyper(s blob.Store, o *WriterOptions) (storage.Writer, error) {
	return hyper.NewWriter(s, &hyper.WriterOptions{
		FilesPerRank: o.Files, MaxFileBytes: o.MaxFileBytes, BufferBytes: o.BufferBytes, FailIfExists: o.FailIfExists,
	}), nil
}
