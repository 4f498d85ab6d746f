package formats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/adapter"
	"github.com/cairn-ckpt/cairn/storage/hf"
)

// based is a format whose checkpoints may be adapters. With a base, an adapter opens as its base
// with the adapter merged into it; other checkpoints open as they are.
type based struct {
	storage.Format
	opts Options // of the base
	base string  // the address of the base
}

// The files of an adapter, beside its description.
const (
	adapterFile = "adapter_model.safetensors"
	trainMeta   = "lora_train_meta.json" // of an adapter in ranked files
	maxMeta     = 16 << 20
)

// withBase returns a format that merges adapters into the base of the options, if they have one.
func withBase(f storage.Format, o *Options) storage.Format {
	if o.Base == "" {
		return f
	}
	switch f.Name() {
	case HF, Torch, FSDP:
		out := &based{Format: f, opts: *o, base: o.Base}
		out.opts.Base = ""
		return out
	}
	return f
}

// Open opens the checkpoint at the root of store.
func (b *based) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	conf, err := b.config(ctx, store)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", store, err)
	}
	if conf == nil {
		return b.Format.Open(ctx, store)
	}

	f, before := b.Format, ""
	if own, ok := f.(hf.Format); ok {
		if own.Dequantize = false; own.File == "" { // the option is about the base
			if ok, err := exists(ctx, store, adapterFile); err != nil {
				return nil, err
			} else if ok {
				own.File = adapterFile
			}
		}
		f = own
	}
	if f.Name() == FSDP {
		before = "model."
	}

	c, err := f.Open(ctx, store)
	if err != nil {
		return nil, err
	}
	out, err := b.merge(ctx, adapter.Side{Checkpoint: c, Store: store}, conf, before)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return out, nil
}

// config returns the description of the adapter at the root of store, or nil if it holds no
// adapter.
func (b *based) config(ctx context.Context, store blob.Store) (*adapter.Config, error) {
	name := adapter.ConfigName
	if b.Name() == FSDP {
		name = trainMeta
	}
	text, err := blob.ReadAll(ctx, store, name, maxMeta)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return adapter.DecodeConfig(text)
}

// merge opens the base and merges an adapter into it.
func (b *based) merge(ctx context.Context, from adapter.Side, conf *adapter.Config, before string) (storage.Checkpoint, error) {
	store, err := blob.OpenAddress(ctx, b.base)
	if err != nil {
		return nil, err
	}
	c, at, err := OpenLocated(ctx, store, &b.opts)
	if err != nil {
		return nil, fmt.Errorf("the base %s: %w", blob.Redact(b.base), err)
	}
	out, err := adapter.Open(ctx, adapter.Side{Checkpoint: c, Store: at}, from, conf, before)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s with the base %s: %w", from.Store, blob.Redact(b.base), err), c.Close())
	}
	return out, nil
}
