package native

import (
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/blob/meter"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// at returns the place at the root of a store.
func at(s blob.Store, wo *options, ro *ReaderOptions) storagetest.Place {
	return storagetest.Place{
		Writer: func() storage.Writer { return newWriter(s, wo) },
		Reader: func() storage.Reader { return NewReader(s, ro) },
	}
}

// gapStore is a store whose requests are dear.
type gapStore struct{ blob.Store }

func (gapStore) ReadGap() int64 { return 64 << 10 }

func TestFormat(t *testing.T) {
	files := func(t *testing.T) blob.Store {
		s, err := file.Open(t.TempDir(), &file.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, open := range map[string]func(t *testing.T) storagetest.Place{
		"mem":   func(*testing.T) storagetest.Place { return at(new(mem.Store), nil, nil) },
		"file":  func(t *testing.T) storagetest.Place { return at(files(t), nil, nil) },
		"meter": func(*testing.T) storagetest.Place { return at(meter.New(new(mem.Store)), nil, nil) },
		"dear requests": func(*testing.T) storagetest.Place {
			return at(gapStore{new(mem.Store)}, nil, nil)
		},
		"small budgets, many files": func(*testing.T) storagetest.Place {
			return at(new(mem.Store), &options{WriteOptions: storage.WriteOptions{FilesPerRank: 3, BufferBytes: 1}}, &ReaderOptions{BufferBytes: 1, Parallel: 1})
		},
	} {
		t.Run(name, func(t *testing.T) { storagetest.Run(t, open, nil) })
	}
}
