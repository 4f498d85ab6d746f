package torchdcp_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// options are those of a writer. Nil means the defaults.
type options struct {
	torchdcp.Format
	storage.WriteOptions
}

func newWriter(s blob.Store, o *options) storage.Writer {
	if o == nil {
		o = &options{}
	}
	return storagetest.NewWriter(o.Format, s, o.WriteOptions)
}

// at returns the place at the root of a store.
func at(s blob.Store, wo *options, ro storage.ReadOptions) storagetest.Place {
	return storagetest.Place{
		Writer: func() storage.Writer { return newWriter(s, wo) },
		Reader: func() storage.Reader { return storage.NewReader(torchdcp.Format{}.Open, s, ro) },
	}
}

// cannot is what PyTorch's format does not keep: a step, a time, tags, and a
// planner's data beside the paths.
var cannot = &storagetest.Options{NoStorage: true, OwnCodecs: true}

func TestFormat(t *testing.T) {
	files := func(t *testing.T) blob.Store {
		s, err := file.Open(t.TempDir(), &file.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, open := range map[string]storagetest.OpenFunc{
		"mem":  func(*testing.T) storagetest.Place { return at(new(mem.Store), nil, storage.ReadOptions{}) },
		"file": func(t *testing.T) storagetest.Place { return at(files(t), nil, storage.ReadOptions{}) },
		"a file for each": func(*testing.T) storagetest.Place {
			return at(new(mem.Store), &options{Format: torchdcp.Format{FilePerTensor: true}}, storage.ReadOptions{})
		},
		"small budgets, many files": func(*testing.T) storagetest.Place {
			return at(new(mem.Store), &options{Format: torchdcp.Format{MaxFileBytes: 5000}, WriteOptions: storage.WriteOptions{FilesPerRank: 3, BufferBytes: 1}}, storage.ReadOptions{BufferBytes: 1, Parallel: 1})
		},
	} {
		t.Run(name, func(t *testing.T) { storagetest.Run(t, open, cannot) })
	}
}
