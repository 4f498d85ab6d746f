package torchfile_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cannot is what a file of torch.save does not hold.
var cannot = &storagetest.Options{NoStorage: true, OneRank: true}

// options are those of a writer. Nil means the defaults.
type options struct {
	torchfile.Format
	storage.WriteOptions
}

func newWriter(s blob.Store, name string, o *options) storage.Writer {
	if o == nil {
		o = &options{}
	}
	f := o.Format
	f.File = name
	return storagetest.NewWriter(f, s, o.WriteOptions)
}

// at returns the place of a file in a store.
func at(s blob.Store, name string, o *options) storagetest.Place {
	return storagetest.Place{
		Writer: func() storage.Writer { return newWriter(s, name, o) },
		Reader: func() storage.Reader {
			return storage.NewReader(torchfile.Format{File: name}.Open, s, storage.ReadOptions{})
		},
	}
}

func TestConformance(t *testing.T) {
	t.Run("nested, in memory", func(t *testing.T) {
		storagetest.Run(t, func(*testing.T) storagetest.Place { return at(new(mem.Store), "model.pt", nil) }, cannot)
	})
	t.Run("nested, on disk, small buffers", func(t *testing.T) {
		storagetest.Run(t, func(t *testing.T) storagetest.Place {
			s, err := file.Open(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return at(s, "a/model.pt", &options{WriteOptions: storage.WriteOptions{BufferBytes: 1}})
		}, cannot)
	})
}
