package hf

import (
	"cmp"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// at returns the place at the root of a store.
func at(s blob.Store, o *options) storagetest.Place {
	return storagetest.Place{
		Writer: func() storage.Writer { return newWriter(s, *cmp.Or(o, &options{})) },
		Reader: func() storage.Reader { return storage.NewReader(Format{}.Open, s, storage.ReadOptions{}) },
	}
}

// able has the limits of the format.
func able() *storagetest.Options {
	o := &storagetest.Options{NoValues: true, NoPaths: true, Reserved: []string{"__metadata__"}}
	for _, d := range tensor.DTypes() {
		if _, ok := safetensors.DTypeName(d); ok {
			o.DTypes = append(o.DTypes, d)
		}
	}
	return o
}

func TestFormat(t *testing.T) {
	for name, o := range map[string]*options{
		"as it comes":        nil,
		"distributed":        {Format: Format{Distributed: true}},
		"small files":        {Format: Format{MaxShardBytes: 1000}},
		"three files":        {Format: Format{Shards: 3}, WriteOptions: storage.WriteOptions{BufferBytes: 1}},
		"distributed, small": {Format: Format{Distributed: true, MaxShardBytes: 1000}, WriteOptions: storage.WriteOptions{FilesPerRank: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			storagetest.Run(t, func(*testing.T) storagetest.Place { return at(new(mem.Store), o) }, able())
		})
	}
	t.Run("in files", func(t *testing.T) {
		storagetest.Run(t, func(t *testing.T) storagetest.Place {
			s := must.Get(file.Open(t.TempDir(), &file.Options{NoSync: true}))(t)
			return at(s, nil)
		}, able())
	})
}
