package storagetest

import (
	"context"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
)

// Storage returns a description of a save with that id, step and number of ranks.
// It is the same each time, so that the files of the save are too.
func Storage(id string, step int64, ranks int) meta.Storage {
	return meta.Storage{
		SaveID: id, Step: &step, WorldSize: ranks, Writer: "storagetest 1",
		Time: time.Date(2026, 3, 14, 15, 9, 26, 535897932, time.UTC), Tags: map[string]string{"purpose": "test"},
	}
}

// Saving and Loading are the protocol, step by step, for the tests of formats.
type (
	Saving  = protocol.Saving
	Loading = protocol.Loading
)

// NewSaving returns a save by that many ranks with default planners and new
// writers. It has not begun.
func NewSaving(p Place, st meta.Storage, ranks int) *Saving {
	s := &Saving{Storage: st}
	for range ranks {
		s.Planners = append(s.Planners, new(plan.DefaultSave))
		s.Writers = append(s.Writers, p.Writer())
	}
	return s
}

// Save saves the states, one for each rank, as a checkpoint at p.
func Save(ctx context.Context, p Place, st meta.Storage, states ...plan.State) error {
	return NewSaving(p, st, len(states)).Run(ctx, states)
}

// NewLoading returns a load by that many ranks with default planners and new
// readers. It has not begun.
func NewLoading(p Place, ranks int) *Loading {
	l := &Loading{}
	for range ranks {
		l.Planners = append(l.Planners, new(plan.DefaultLoad))
		l.Readers = append(l.Readers, p.Reader())
	}
	return l
}

// Load fills the states, one for each rank, from the checkpoint at p.
func Load(ctx context.Context, p Place, states ...plan.State) error {
	return NewLoading(p, len(states)).Run(ctx, states)
}
