package hyper_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plain is the format without options.
var plain = storagetest.Setup{Format: hyper.Format{}}

// cannot has the limits of hyper_parallel's format.
var cannot = &storagetest.Options{
	NoStorage: true, OwnCodecs: true,
	DTypes: []tensor.DType{
		tensor.Float32, tensor.Float64, tensor.Float16, tensor.BFloat16, tensor.Float8E4M3FN, tensor.Float8E5M2, tensor.Int64, tensor.Int32,
		tensor.Int16, tensor.Int8, tensor.Uint64, tensor.Uint32, tensor.Uint16, tensor.Uint8, tensor.Bool,
		tensor.Complex64, tensor.Float8E8M0FNU, tensor.Float8E4M3FNUZ, tensor.Float8E5M2FNUZ,
	},
}

func TestFormat(t *testing.T) {
	storagetest.RunSetups(t, map[string]storagetest.Setup{
		"plain":                     plain,
		"small budgets, many files": {Format: hyper.Format{MaxFileBytes: 5000}, Write: storage.WriteOptions{FilesPerRank: 3, BufferBytes: 1}, Read: storage.ReadOptions{BufferBytes: 1, Parallel: 1}},
	}, cannot)
}

func TestFormatOfOldVersions(t *testing.T) {
	old := *cannot
	old.Reserved = []string{"__metadata__"}
	storagetest.Run(t, func(*testing.T) storagetest.Place {
		return storagetest.Setup{Format: hyper.Format{Old: true}}.At(new(mem.Store))
	}, &old)
}
