package hyper_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// options are those of a writer. Nil means the defaults.
type options struct {
	hyper.Format
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
		Reader: func() storage.Reader { return storage.NewReader(hyper.Format{}.Open, s, ro) },
	}
}

// cannot is what hyper_parallel's format does not keep.
var cannot = &storagetest.Options{
	NoStorage: true, OwnCodecs: true,
	DTypes: []tensor.DType{
		tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16, tensor.Float8E4M3FN, tensor.Float8E5M2, tensor.Int64, tensor.Int32,
		tensor.Int16, tensor.Int8, tensor.Uint64, tensor.Uint32, tensor.Uint16, tensor.Uint8, tensor.Bool,
	},
}

func TestFormat(t *testing.T) {
	for name, open := range map[string]storagetest.OpenFunc{
		"mem": func(*testing.T) storagetest.Place { return at(new(mem.Store), nil, storage.ReadOptions{}) },
		"file": func(t *testing.T) storagetest.Place {
			s, err := file.Open(t.TempDir(), &file.Options{NoSync: true})
			if err != nil {
				t.Fatal(err)
			}
			return at(s, nil, storage.ReadOptions{})
		},
		"small budgets, many files": func(*testing.T) storagetest.Place {
			return at(new(mem.Store), &options{Format: hyper.Format{MaxFileBytes: 5000}, WriteOptions: storage.WriteOptions{FilesPerRank: 3, BufferBytes: 1}}, storage.ReadOptions{BufferBytes: 1, Parallel: 1})
		},
	} {
		t.Run(name, func(t *testing.T) { storagetest.Run(t, open, cannot) })
	}
}

func TestFormatOfOldVersions(t *testing.T) {
	old := *cannot
	old.Reserved = []string{"__metadata__"}
	storagetest.Run(t, func(*testing.T) storagetest.Place {
		return at(new(mem.Store), &options{Format: hyper.Format{Old: true}}, storage.ReadOptions{})
	}, &old)
}
