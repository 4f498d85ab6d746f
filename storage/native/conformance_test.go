package native

import (
	"cmp"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// at returns the place at the root of a store.
func at(s blob.Store, wo *options, ro storage.ReadOptions) storagetest.Place {
	return storagetest.Place{
		Writer: func() storage.Writer { return newWriter(s, *cmp.Or(wo, &options{})) },
		Reader: func() storage.Reader { return storage.NewReader(Format{}.Open, s, ro) },
	}
}

// gapStore is a store with slow requests.
type gapStore struct{ blob.Store }

func (gapStore) ReadGap() int64 { return 64 << 10 }

func TestFormat(t *testing.T) {
	files := func(t *testing.T) blob.Store {
		s := must.Get(file.Open(t.TempDir(), &file.Options{NoSync: true}))(t)
		return s
	}
	for name, open := range map[string]func(t *testing.T) storagetest.Place{
		"mem":  func(*testing.T) storagetest.Place { return at(new(mem.Store), nil, storage.ReadOptions{}) },
		"file": func(t *testing.T) storagetest.Place { return at(files(t), nil, storage.ReadOptions{}) },
		"dear requests": func(*testing.T) storagetest.Place {
			return at(gapStore{new(mem.Store)}, nil, storage.ReadOptions{})
		},
		"small budgets, many files": func(*testing.T) storagetest.Place {
			return at(new(mem.Store), &options{WriteOptions: storage.WriteOptions{FilesPerRank: 3, BufferBytes: 1}}, storage.ReadOptions{BufferBytes: 1, Parallel: 1})
		},
	} {
		t.Run(name, func(t *testing.T) { storagetest.Run(t, open, nil) })
	}
}
