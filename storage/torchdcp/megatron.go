package torchdcp

import (
	"context"
	"errors"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// commonName is the file of torch.save that Megatron writes beside a checkpoint
// with everything that is not sharded: arguments, the iteration, schedulers.
const commonName = "common.pt"

// withCommon returns src together with the content of commonName, if that file
// exists. A name that src has too gets a number behind it.
func withCommon(ctx context.Context, store blob.Store, src *reading.Source) (*reading.Source, error) {
	common, err := torchfile.Describe(ctx, store, commonName, src.Metadata)
	if errors.Is(err, storage.ErrNotFound) {
		return src, nil
	}
	if err != nil {
		return nil, err
	}
	fitPaths(src.Metadata, common.Metadata)
	return reading.Join(src, common), nil
}

// fitPaths drops the paths of common that contradict those of md, as one through a
// tensor does: one state must hold both.
func fitPaths(md, common *meta.Metadata) {
	state := plan.State{}
	for i := range md.Entries {
		if e := &md.Entries[i]; e.Path.FQN() == e.FQN {
			_ = plan.Place(state, e.Path, true) // what contradicts itself is not ours to refuse
		}
	}
	inside, dropped := common.Inside(), map[string]bool{}
	for i := range common.Entries { // a value before the tensors inside of it
		e := &common.Entries[i]
		in, ok := inside[e.FQN]
		if ok && !dropped[in] {
			continue
		}
		if ok || plan.Place(state, e.Path, true) != nil {
			e.Path, dropped[e.FQN] = nil, true
		}
	}
}
