package dcpmeta

import "github.com/cairn-ckpt/cairn/internal/pickle"

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

// The modules in which the classes live or lived.
const (
	torchModule    = "torch.distributed.checkpoint"
	torchOldModule = "torch.distributed._shard.checkpoint" // before PyTorch 2.0
	torchShard     = "torch.distributed._shard.sharded_tensor.metadata"
	hyperOldModule = "hyper_parallel.core.checkpoint"
	hyperModule    = "hyper_parallel.core.distributed_checkpoint"
)

var metadataFields = []string{"state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version", ownPlannerData, ownSave}

// ownPlannerData is an attribute of Metadata that only cairn writes: the data that
// a planner keeps with the checkpoint, as JSON, beside the mapping of names to
// paths. Other readers load the object with it and ignore it.
const ownPlannerData = "cairn_planner_data"

// ownSave is an attribute of the Metadata of one rank that saved without a group:
// a tuple of the number of ranks and the id of the save.
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
	fieldDType = iota // of TensorProperties, in the order of its state as a tuple
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

// classes is the schema. Classes that say how bytes are to be read are closed: a
// field that is new to us may change what the others mean.
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

// everywhere returns the names of a class of the metadata modules.
func everywhere(name string) []string {
	var out []string
	for _, m := range []string{torchModule, torchOldModule, hyperOldModule, hyperModule} {
		out = append(out, m+".metadata."+name)
	}
	return out
}
