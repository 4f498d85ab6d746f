package torchdcp_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plain is the format without options.
var plain = storagetest.Setup{Format: torchdcp.Format{}}

// cannot has the limits of PyTorch's format. It keeps no step, time and tags, and no
// planner's data beside the paths.
var cannot = &storagetest.Options{NoStorage: true, OwnCodecs: true}

func TestFormat(t *testing.T) {
	storagetest.RunSetups(t, map[string]storagetest.Setup{
		"plain":                     plain,
		"a file for each":           {Format: torchdcp.Format{FilePerTensor: true}},
		"small budgets, many files": {Format: torchdcp.Format{MaxFileBytes: 5000}, Write: storage.WriteOptions{FilesPerRank: 3, BufferBytes: 1}, Read: storage.ReadOptions{BufferBytes: 1, Parallel: 1}},
	}, cannot)
}
