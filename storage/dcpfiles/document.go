package dcpfiles

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
)

// Dialect identifies the library of a document's metadata.
type Dialect int

// The dialects.
const (
	// Torch is torch.distributed.checkpoint, including its older names.
	Torch Dialect = iota
	// HyperOld is hyper_parallel.core.checkpoint.
	HyperOld
	// Hyper is hyper_parallel.core.distributed_checkpoint.
	Hyper
)

// String returns the name of the dialect's package.
func (d Dialect) String() string {
	switch d {
	case Torch:
		return torchModule
	case HyperOld:
		return hyperOldModule
	case Hyper:
		return hyperModule
	}
	return fmt.Sprintf("dialect(%d)", int(d))
}

// The codecs of the values in a checkpoint.
const (
	// CodecTorch is the output of torch.save.
	CodecTorch = "torch.save"
	// CodecPickle is a pickle.
	CodecPickle = "pickle"
)

var (
	// ErrInvalid reports bytes that are not a valid metadata document.
	ErrInvalid = errors.New("invalid checkpoint metadata")
	// ErrConflict reports documents that contradict each other.
	ErrConflict = errors.New("metadata documents contradict each other")
)

// Document is a metadata document.
type Document struct {
	// Meta has the sorted entries. Their paths come from the planner data.
	// Planner data that is not a mapping of names to paths is in
	// Meta.PlannerData, as encoded by package value, and so is the JSON that
	// cairn writes in addition to the mapping. Every chunk and value has a
	// Location, with a Detail if it has a key or transformations. The codec of
	// values is CodecTorch or CodecPickle. Meta.Storage has only the ID and the
	// SaveID, if the document has them.
	//
	// hyper_parallel does not store the position of a chunk in a safetensors
	// file: its Location has the offset zero and the length of the chunk.
	Meta *meta.Metadata
	// Dialect is the dialect of the document.
	Dialect Dialect
	// Version is the version in the document, or "" if it has no version.
	Version string
	// Ranks is the number of ranks of a save without a group, if cairn wrote the
	// document for one of these ranks. Otherwise 0. Meta.Storage has the SaveID,
	// which is the same for all ranks.
	Ranks int
	// Modules are the modules in PyTorch's StorageMeta.
	Modules []string
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// The classes of a metadata document, in the order of the schema.
const (
	classTorch = iota // Metadata, one for each dialect
	classHyperOld
	classHyper
	classTensor     // TensorStorageMetadata
	classBytes      // BytesStorageMetadata
	classChunk      // ChunkStorageMetadata
	classProperties // TensorProperties
	classIndex      // MetadataIndex
	classPlace      // StorageInfo
	classSave       // StorageMeta
)

// The modules of the classes, in current and older releases.
const (
	torchModule    = "torch.distributed.checkpoint"
	torchOldModule = "torch.distributed._shard.checkpoint" // before PyTorch 2.0
	torchShard     = "torch.distributed._shard.sharded_tensor.metadata"
	hyperOldModule = "hyper_parallel.core.checkpoint"
	hyperModule    = "hyper_parallel.core.distributed_checkpoint"
)

var metadataFields = []string{"state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version", ownPlannerData, ownSave}

// ownPlannerData is an attribute of Metadata that only cairn writes: the
// planner's data as JSON, in addition to the mapping of names to paths. Other
// readers ignore it.
const ownPlannerData = "cairn_planner_data"

// ownSave is an attribute that cairn writes to the Metadata of a rank that saved
// without a group: a tuple of the number of ranks and the id of the save.
const ownSave = "cairn_rank_local"

// The positions of the fields.
const (
	fieldEntries = iota // of Metadata
	fieldPlanner
	fieldPlaces
	fieldSave
	fieldVersion
	fieldOwnPlanner
	fieldOwnSave
)

const (
	fieldDType = iota // of TensorProperties, in the order of its state tuple
	fieldLayout
	fieldRequiresGrad
	fieldMemoryFormat
	fieldPinMemory
)

const (
	fieldFile = iota // of StorageInfo
	fieldOffset
	fieldLength
	fieldTransforms
	fieldKey
)

// classes is the schema. Classes that determine how bytes are read are closed,
// because an unknown field may change the meaning of the others.
var classes = []pickle.Class{
	classTorch: {
		Names:  []string{torchModule + ".metadata.Metadata", torchOldModule + ".metadata.Metadata"},
		Fields: metadataFields, Open: true,
	},
	classHyperOld:   {Names: []string{hyperOldModule + ".metadata.Metadata"}, Fields: metadataFields, Open: true},
	classHyper:      {Names: []string{hyperModule + ".metadata.Metadata"}, Fields: metadataFields, Open: true},
	classTensor:     {Names: everywhere("TensorStorageMetadata"), Fields: []string{"properties", "size", "chunks"}},
	classBytes:      {Names: everywhere("BytesStorageMetadata")},
	classChunk:      {Names: everywhere("ChunkStorageMetadata"), Fields: []string{"offsets", "sizes"}},
	classProperties: {Names: append(everywhere("TensorProperties"), torchShard+".TensorProperties"), Fields: propertyFields, Open: true},
	classIndex:      {Names: everywhere("MetadataIndex"), Fields: []string{"fqn", "offset", "index"}},
	classPlace:      {Names: placeNames, Fields: []string{"relative_path", "offset", "length", "transform_descriptors", "tensor_key"}},
	classSave:       {Names: everywhere("StorageMeta"), Fields: []string{"checkpoint_id", "save_id", "load_id", "modules"}, Open: true},
}

var propertyFields = []string{"dtype", "layout", "requires_grad", "memory_format", "pin_memory"}

var placeNames = []string{
	torchModule + ".filesystem._StorageInfo", torchOldModule + ".filesystem._StorageInfo",
	hyperOldModule + ".storage.StorageInfo", hyperModule + ".storage.StorageInfo",
}

// everywhere returns the names of a class in all metadata modules.
func everywhere(name string) []string {
	var out []string
	for _, m := range []string{torchModule, torchOldModule, hyperOldModule, hyperModule} {
		out = append(out, m+".metadata."+name)
	}
	return out
}

// Merge returns the union of documents that the ranks of one save wrote
// independently. Of equal chunks and values it keeps the first document's.
// The error wraps ErrConflict if documents differ in their dialect or in the
// kind, dtype, shape or path of a name. Properties of the whole save come from
// the first document. The result shares memory with docs. Merging no documents is
// an error that wraps ErrInvalid.
func Merge(docs []*Document) (*Document, error) {
	if len(docs) == 0 {
		return nil, invalid("there is no document")
	}
	if len(docs) == 1 {
		return docs[0], nil
	}

	out := *docs[0]
	entries := map[string]*merged{}
	for i, d := range docs {
		if d.Dialect != out.Dialect {
			return nil, fmt.Errorf("%w: document %d is of %v, the first of %v", ErrConflict, i, d.Dialect, out.Dialect)
		}
		for j := range d.Meta.Entries {
			if err := merge(entries, &d.Meta.Entries[j]); err != nil {
				return nil, fmt.Errorf("%w: document %d: %w", ErrConflict, i, err)
			}
		}
	}

	m := *docs[0].Meta
	m.Entries = make([]meta.Entry, 0, len(entries))
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		m.Entries = append(m.Entries, entries[name].Entry)
	}

	out.Meta = &m
	return &out, nil
}

// merged is an entry under construction.
type merged struct {
	meta.Entry
	boxes map[string]bool // the boxes of its chunks
}

func merge(entries map[string]*merged, e *meta.Entry) error {
	have := entries[e.FQN]
	if have == nil {
		have = &merged{Entry: *e}
		if e.Tensor != nil {
			t := *e.Tensor
			t.Chunks, t.Locs = nil, nil
			have.Tensor, have.boxes = &t, map[string]bool{}
		}
		entries[e.FQN] = have
	}

	if err := have.agrees(e); err != nil {
		return err
	}
	if e.Tensor == nil {
		return nil
	}

	t := have.Tensor
	for i, c := range e.Tensor.Chunks {
		k := key(c.Offsets) + key(c.Sizes)
		if have.boxes[k] {
			continue
		}
		have.boxes[k] = true
		t.Chunks = append(t.Chunks, c)
		t.Locs = append(t.Locs, e.Tensor.Locs[i])
	}

	return nil
}

// agrees returns an error unless e has the same description.
func (m *merged) agrees(e *meta.Entry) error {
	switch {
	case (m.Tensor == nil) != (e.Tensor == nil):
		return fmt.Errorf("%q is a tensor here and a value there", e.FQN)
	case !m.Path.Equal(e.Path):
		return fmt.Errorf("%q stands at %v here and at %v there", e.FQN, m.Path, e.Path)
	case m.Tensor == nil:
		return nil
	case m.Tensor.DType != e.Tensor.DType:
		return fmt.Errorf("%q is of %v here and of %v there", e.FQN, m.Tensor.DType, e.Tensor.DType)
	case !slices.Equal(m.Tensor.Shape, e.Tensor.Shape):
		return fmt.Errorf("%q has the shape %v here and %v there", e.FQN, m.Tensor.Shape, e.Tensor.Shape)
	}
	return nil
}
