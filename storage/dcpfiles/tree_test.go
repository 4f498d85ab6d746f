package dcpfiles_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

// names are the classes of one dialect.
type names struct{ metadata, properties, format, place string }

const (
	torch    = "torch.distributed.checkpoint"
	torchOld = "torch.distributed._shard.checkpoint"
	sharded  = "torch.distributed._shard.sharded_tensor.metadata"
	hyper    = "hyper_parallel.core.distributed_checkpoint"
	hyperOld = "hyper_parallel.core.checkpoint"
)

var (
	torchNames    = names{torch + ".metadata", torch + ".metadata", torch + ".metadata._MEM_FORMAT_ENCODING", torch + ".filesystem._StorageInfo"}
	torchOldNames = names{torchOld + ".metadata", sharded, sharded + ".MEM_FORMAT_ENCODING", torchOld + ".filesystem._StorageInfo"}
	hyperNames    = names{hyper + ".metadata", hyper + ".metadata", "", hyper + ".storage.StorageInfo"}
)

// object returns an instance of the class with that state.
func object(class string, state any) *value.Object {
	i := len(class) - 1
	for class[i] != '.' {
		i--
	}
	return &value.Object{Module: class[:i], Name: class[i+1:], Call: true, New: true, State: state}
}

func called(class string, args ...any) *value.Object {
	o := object(class, nil)
	o.New, o.Args = false, args
	return o
}

func size(v ...int64) any { return called("torch.Size", tuple(v...)) }

func tuple(v ...int64) value.Tuple {
	out := value.Tuple{}
	for _, n := range v {
		out = append(out, n)
	}
	return out
}

type state = map[string]any

// tree is a document as the objects that Python would pickle: a tensor "w" of
// two chunks and a value "v".
type tree struct {
	names
	root, tensor, chunk, index, place *value.Object
	places                            *value.Dict
}

func newTree(n names) *tree {
	t := &tree{names: n}
	props := object(n.properties+".TensorProperties", state{"dtype": "Float32", "requires_grad": true, "memory_format": nil})
	if n.format != "" {
		props.State = value.Tuple{&value.Object{Module: "torch", Name: "float32"},
			called("torch.serialization._get_layout", "torch.strided"), true, called(n.format, int64(1)), false}
	}
	t.chunk = object(n.metadata+".ChunkStorageMetadata", state{"offsets": size(0, 0), "sizes": size(2, 3)})
	second := object(n.metadata+".ChunkStorageMetadata", state{"offsets": size(2, 0), "sizes": size(2, 3)})
	t.tensor = object(n.metadata+".TensorStorageMetadata", state{"properties": props, "size": size(4, 3), "chunks": []any{t.chunk, second}})
	t.index = t.at("w", size(0, 0), int64(0))
	t.place = t.in("__0_0.distcp", 0, 100)
	t.places = &value.Dict{Pairs: []value.Pair{
		{Key: t.index, Value: t.place},
		{Key: t.at("w", size(2, 0), nil), Value: t.in("__1_0.distcp", 50, 100)},
		{Key: t.at("v", nil, nil), Value: t.in("__0_0.distcp", 100, 7)},
	}}
	t.root = object(n.metadata+".Metadata", state{
		"state_dict_metadata": state{"w": t.tensor, "v": object(n.metadata+".BytesStorageMetadata", nil)},
		"planner_data":        state{"w": value.Tuple{"model", int64(0), "w"}, "v": value.Tuple{"v"}},
		"storage_data":        t.places,
	})
	return t
}

// at returns an index.
func (t *tree) at(name string, offset, hint any) *value.Object {
	return object(t.metadata+".MetadataIndex", state{"fqn": name, "offset": offset, "index": hint})
}

// in returns a place.
func (t *tree) in(file string, offset, length int64) *value.Object {
	return object(t.names.place, state{"relative_path": file, "offset": offset, "length": length})
}

// field returns the state of an object, to be changed.
func field(o *value.Object) state { return o.State.(state) }

// bytes returns the pickle of the document.
func (t *tree) bytes(tb testing.TB, protocol int) []byte {
	tb.Helper()
	b := must.Get(pickle.Encode(t.root, &pickle.EncodeOptions{Protocol: protocol, Allow: func(string, string) bool { return true }}))(tb)
	return b
}
