// Package storagetest holds the contracts of storage.Writer and storage.Reader
// as a test, and carries the two protocols out step by step for tests of
// formats. It knows no format and no group: the ranks of a test are a loop. The
// words it checks are in package storage.
package storagetest

import (
	"testing"

	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Place is one place for a checkpoint.
type Place struct {
	// Writer and Reader return what one rank uses for its saves and loads
	// there.
	Writer func() storage.Writer
	Reader func() storage.Reader
}

// OpenFunc returns an empty place. What it must undo goes to t.Cleanup.
type OpenFunc func(t *testing.T) Place

// Options say what a format cannot do. Nil is the same as the zero value: there
// is nothing that it cannot do.
type Options struct {
	// DTypes are the element types that the format holds. Nil: all.
	DTypes []tensor.DType
	// NoValues is for formats that hold tensors only.
	NoValues bool
	// NoPaths is for formats that do not keep where in a nested state a value
	// stood.
	NoPaths bool
	// Reserved are names that the format keeps for itself.
	Reserved []string
	// NoStorage is for formats that do not keep what describes a save: its id,
	// step, time and tags.
	NoStorage bool
	// OneRank is for formats that hold whole tensors of the coordinator only:
	// anything else is refused with storage.ErrNotRepresentable.
	OneRank bool
	// OwnCodecs is for formats that encode values in their own way: the metadata
	// tells the codec and size of that encoding.
	OwnCodecs bool
	// OneChunk is for formats in which a rank holds at most one chunk of a name.
	OneChunk bool
}

func (o *Options) withDefaults() Options {
	var v Options
	if o != nil {
		v = *o
	}
	if v.DTypes == nil {
		v.DTypes = tensor.DTypes()
	}
	return v
}

// Run tests that the writers and readers of a format keep the contracts.
func Run(t *testing.T, open OpenFunc, opts *Options) {
	s := &suite{opts.withDefaults()}
	for name, test := range map[string]func(*testing.T, Place){
		"all kinds come back":                     s.allKinds,
		"shards come back whole":                  s.shards,
		"copies come back, or are refused":        s.copies,
		"boxes come back in any memory":           s.boxes,
		"metadata comes back":                     s.metadata,
		"nothing is an empty checkpoint":          s.nothing,
		"a rank may have nothing to do":           s.idleRank,
		"an empty place holds no checkpoint":      s.emptyPlace,
		"nothing appears before Finish":           s.beforeFinish,
		"Abort leaves nothing":                    s.abort,
		"Abort after Finish keeps it":             s.abortAfterFinish,
		"a new checkpoint replaces the old":       s.replace,
		"saves at once do not disturb each other": s.atOnce,
		"writers and readers serve again":         s.again,
		"plans stay as they were":                 s.plansStay,
		"Finish refuses results that do not fit":  s.badResults,
		"Resolve's errors end the save":           s.badResolver,
		"content that changed is refused":         s.changedContent,
		"every item is handed over once":          s.handedOver,
		"a long box is handed over once":          s.handedOverInParts,
		"a receiver's errors end the load":        s.badReceiver,
		"items that do not fit are refused":       s.badItems,
		"a finished context ends every step":      s.cancelled,
		"progress sums up to the plan":            s.progress,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

type suite struct{ Options }
