package torchfile_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cannot has the limits of a file of torch.save.
var cannot = &storagetest.Options{NoStorage: true, OneRank: true}

// at returns the place of a file in a store.
func at(s blob.Store, name string) storagetest.Place {
	return storagetest.Setup{Format: torchfile.Format{File: name}}.At(s)
}

func TestConformance(t *testing.T) {
	storagetest.RunSetups(t, map[string]storagetest.Setup{
		"plain":                        {Format: torchfile.Format{File: "model.pt"}},
		"in a subfolder, small buffer": {Format: torchfile.Format{File: "a/model.pt"}, Write: storage.WriteOptions{BufferBytes: 1}},
	}, cannot)
}
