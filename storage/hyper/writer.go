package hyper

import (
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/dcpmeta"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// options are the options of a writer: those of the format and those of all formats.
type options struct {
	Format
	storage.WriteOptions
}

// metadataVersion is the version that hyper_parallel itself writes.
const metadataVersion = "1.0"

// newWriter returns a writer of checkpoints at the root of store that
// hyper_parallel's own reader loads. Tensors are in safetensors files, so their
// element types must be among those of safetensors. Values of bytes are pickled like
// all other values: hyper_parallel writes them as they are, but its reader expects a
// pickle.
func newWriter(store blob.Store, o options) *dcpfiles.Writer {
	o.WriteOptions = o.WithDefaults()
	if o.MaxFileBytes <= 0 {
		o.MaxFileBytes = 1<<63 - 1
	}
	e := dcpfiles.Encoding{Dialect: dcpmeta.Hyper, Version: metadataVersion, Check: o.checkTensor, Value: encodeValue, Files: o.layOut}
	if o.Old {
		e.Dialect = dcpmeta.HyperOld
	}
	return dcpfiles.NewWriter(store, Files(), e, o.WriteOptions)
}

// Files describes the files of this format.
func Files() *publish.Format {
	return files.Published(Format{}.Name(), dataPrefix, ".rank0_metadata", files.RankName(0))
}

// checkTensor returns an error unless a tensor can be written.
func (o *options) checkTensor(it *plan.WriteItem) error {
	if it.Kind == plan.KindBytes {
		return nil
	}
	if _, ok := safetensors.DTypeName(it.Info.DType); !ok {
		return &storage.NotRepresentable{FQN: it.FQN(), Why: "elements of type " + it.Info.DType.String()}
	}
	if o.Old && it.FQN() == reservedKey {
		return &storage.NotRepresentable{FQN: it.FQN(), Why: "the name is a file's own"}
	}
	return nil
}

// layOut lays out the data files of a rank.
func (o *options) layOut(p *plan.SavePlan, data storage.Resolver, rank int, infix string) ([]*datafile.File, error) {
	files, err := o.layValues(p, data, rank, infix)
	if err != nil {
		return nil, err
	}
	tensors, err := o.layTensors(p, rank, infix)
	return append(files, tensors...), err
}
