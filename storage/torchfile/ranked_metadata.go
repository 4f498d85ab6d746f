package torchfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// rankedMetadata is the metadata.pkl of torch_checkpointing: a pickle of dicts, lists,
// strings and integers.
type rankedMetadata struct {
	version string
	world   int
	items   map[string]*rankedItem
	meshes  map[string]map[int]int // the places of ranks, by the ranks of a mesh in their order
}

// rankedItem describes an item. Only items that can be resharded are described.
type rankedItem struct {
	files map[int]rankedFile // by rank
	// tensors are the records of each tensor, by the key of its path below the item.
	tensors map[string][]holding
	paths   map[string]meta.Path // below the item, by the same key
	names   map[string]meta.Path // the same, by name: safetensors have only names
}

// record returns the record of a tensor that rank holds, and the place of the rank in its
// layout.
func (it *rankedItem) record(key string, rank int) (r *holding, place int, ok bool) {
	for i := range it.tensors[key] {
		r := &it.tensors[key][i]
		if place, ok := r.places[rank]; ok {
			return r, place, true
		}
	}
	return nil, 0, false
}

// rankedFile is where a rank keeps an item. An empty name is the default.
type rankedFile struct{ name, kind string }

// holding says how some ranks hold a tensor.
type holding struct {
	dtype  tensor.DType
	shape  []int64
	layout shard.Layout
	places map[int]int // the place in the layout, by rank
	key    string      // distinguishes the records of a tensor
}

// The bounds of a metadata.pkl.
const (
	maxMetadata = 256 << 20
	maxRanks    = 1 << 20
)

// decodeRanked decodes a metadata.pkl.
func decodeRanked(data []byte) (md *rankedMetadata, err error) {
	defer pickle.Catch(&err)

	v, err := pickle.Decode(data, nil)
	if err != nil {
		return nil, err
	}

	root := dictOf(v, "the root")
	md = &rankedMetadata{version: textOf(root["version"], "version"), items: map[string]*rankedItem{}, meshes: map[string]map[int]int{}}
	md.world = int(intOf(root["world_size"], 1, maxRanks, "world_size"))
	switch md.version {
	case "1.0":
		md.readV1(root)
	case "2.0":
		for name, v := range dictOf(root["metadata"], "metadata") {
			it, d := md.item(name), dictOf(v, name)
			for rank, file := range byRank(d["rank_to_layout_info"], md.world) {
				it.addFile(rank, file)
			}
			for path, records := range dictOf(d["nested_path_to_metadata"], name) {
				it.addTensor(md, pathOf(path), records)
			}
		}
	default:
		return nil, fmt.Errorf("%w: version %q; known are 1.0 and 2.0", errRankedVersion, md.version)
	}

	return md, nil
}

// readV1 reads the older form: paths begin with the item, and files are listed by rank
// first.
func (md *rankedMetadata) readV1(root map[string]any) {
	for path, records := range dictOf(root["metadata"], "metadata") {
		p := pathOf(path)
		if len(p) == 0 {
			pickle.Fail("a path without an item")
		}
		md.item(p[0].Key).addTensor(md, p[1:], records)
	}
	for rank, files := range byRank(root["rank_to_layout_info_mappings"], md.world) {
		for name, file := range dictOf(files, "the files of a rank") {
			md.item(name).addFile(rank, file)
		}
	}
}

func (md *rankedMetadata) item(name string) *rankedItem {
	it := md.items[name]
	if it == nil {
		it = &rankedItem{files: map[int]rankedFile{}, tensors: map[string][]holding{}, paths: map[string]meta.Path{}, names: map[string]meta.Path{}}
		md.items[name] = it
	}
	return it
}

func (it *rankedItem) addFile(rank int, v any) {
	if v == nil {
		it.files[rank] = rankedFile{}
		return
	}

	d := dictOf(v, "the file of a rank")
	f := rankedFile{textOf(d["file_path"], "file_path"), textOf(dictOf(d["serialization_format"], "serialization_format")["type"], "type")}
	if err := blob.CheckName(f.name); err != nil {
		pickle.Fail("file_path: %w", err)
	}
	it.files[rank] = f
}

func (it *rankedItem) addTensor(md *rankedMetadata, path meta.Path, records any) {
	key := pathKey(path)
	if _, ok := it.names[path.FQN()]; !ok || len(path) < len(it.names[path.FQN()]) {
		it.names[path.FQN()] = path
	}
	it.paths[key] = path

	for _, v := range listOf(records, key) {
		d := dictOf(v, key)
		m := dictOf(d["sharding_metadata"], "sharding_metadata")
		data := dictOf(m["data"], "data")
		r := holding{dtype: dtypeOf(data["dtype"]), shape: shapeOf(data["global_shape"], "global_shape"), key: strconv.Itoa(len(it.tensors[key]))}
		switch kind := textOf(m["type"], "type"); kind {
		case "DTensorShardingMetadata":
			r.layout, r.places = md.meshLayout(data)
			it.tensors[key] = append(it.tensors[key], r)
		case "default_tensor_v1":
			for _, n := range listOf(d["ranks"], "ranks") {
				it.addExplicit(key, r, int(intOf(n, 0, int64(md.world)-1, "rank")), partsOf(data))
			}
		default:
			pickle.Fail("%s is sharded as %q, which is unknown", key, kind)
		}
	}
}

// addExplicit adds the boxes that a rank lists. Together with the boxes of the other
// ranks they are one layout.
func (it *rankedItem) addExplicit(key string, r holding, rank int, parts []shard.Part) {
	i := slices.IndexFunc(it.tensors[key], func(o holding) bool {
		_, ok := o.layout.(shard.Explicit)
		return ok && o.dtype == r.dtype && slices.Equal(o.shape, r.shape)
	})
	if i < 0 {
		i = len(it.tensors[key])
		r.layout, r.places = shard.Explicit{ByRank: map[int][]shard.Part{}}, map[int]int{}
		it.tensors[key] = append(it.tensors[key], r)
	}

	all := &it.tensors[key][i]
	all.places[rank] = rank
	all.layout.(shard.Explicit).ByRank[rank] = parts
}

// meshLayout returns the layout of a DTensor, by places in its mesh, and the places of
// the ranks.
func (md *rankedMetadata) meshLayout(data map[string]any) (shard.Layout, map[int]int) {
	var p shard.Placed
	mesh := dictOf(data["mesh_spec"], "mesh_spec")
	total := int64(1)
	for _, n := range listOf(mesh["mesh_shape"], "mesh_shape") {
		size := intOf(n, 1, maxMesh/total, "mesh_shape")
		p.Mesh.Shape, total = append(p.Mesh.Shape, int(size)), total*size
	}

	for _, v := range listOf(data["placements"], "placements") {
		d := dictOf(v, "placements")
		made, err := placement(textOf(d["type"], "type"), d)
		if err != nil {
			pickle.Fail("%w", err)
		}
		p.Placements = append(p.Placements, made)
	}

	ranks := listOf(mesh["mesh_data"], "mesh_data")
	if int64(len(ranks)) != total {
		pickle.Fail("a mesh of %v has %d ranks", p.Mesh.Shape, len(ranks))
	}

	key := fmt.Sprint(ranks)
	places := md.meshes[key]
	if places == nil {
		places = make(map[int]int, len(ranks))
		for i, n := range ranks {
			places[int(intOf(n, 0, maxRanks, "mesh_data"))] = i
		}
		md.meshes[key] = places
	}
	return p, places
}

// partsOf returns the parts of a tensor that lists its own boxes.
func partsOf(data map[string]any) []shard.Part {
	at, local, sizes := listOf(data["global_offsets"], "global_offsets"), listOf(data["local_offsets"], "local_offsets"), listOf(data["local_sizes"], "local_sizes")
	if len(at) != len(local) || len(at) != len(sizes) {
		pickle.Fail("%d offsets, %d local offsets and %d sizes", len(at), len(local), len(sizes))
	}

	out := make([]shard.Part, len(at))
	for i := range at {
		out[i] = shard.Part{
			Box:   tensor.Box{Offsets: shapeOf(at[i], "global_offsets"), Sizes: shapeOf(sizes[i], "local_sizes")},
			Local: shapeOf(local[i], "local_offsets"),
		}
	}

	return out
}

// pathOf decodes a path: a list of strings and integers in JSON. An integer is a position
// in a list, or a key.
func pathOf(text string) meta.Path {
	var steps []any
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	if err := d.Decode(&steps); err != nil || d.More() {
		pickle.Fail("path %.100q: %v", text, err)
	}

	out := make(meta.Path, len(steps))
	for i, s := range steps {
		switch s := s.(type) {
		case string:
			out[i] = meta.Key(s)
		case json.Number:
			n, err := strconv.ParseInt(s.String(), 10, 64)
			if err != nil {
				pickle.Fail("path %.100q: %w", text, err)
			}
			out[i] = meta.IntKey(n)
		default:
			pickle.Fail("path %.100q has a step of %T", text, s)
		}
	}

	return out
}

// pathKey returns a text that identifies a path. Positions and integers are the same.
func pathKey(p meta.Path) string {
	texts := make([]string, len(p))
	for i, s := range p {
		if texts[i] = s.String(); !s.List && !s.Int {
			texts[i] = strconv.Quote(s.Key)
		}
	}
	return strings.Join(texts, ",")
}

// byRank returns the values of a dict by ranks.
func byRank(v any, world int) map[int]any {
	d, ok := v.(*value.Dict)
	if !ok {
		if m, is := v.(map[string]any); !is || len(m) > 0 {
			pickle.Fail("%T in place of a dict of ranks", v)
		}
		return nil
	}

	out := make(map[int]any, len(d.Pairs))
	for _, p := range d.Pairs {
		out[int(intOf(p.Key, 0, int64(world)-1, "rank"))] = p.Value
	}

	return out
}

func dictOf(v any, what string) map[string]any {
	if m, ok := v.(map[string]any); ok {
		return m
	}
	if d, ok := v.(*value.Dict); !ok || len(d.Pairs) > 0 {
		pickle.Fail("%.100s is %T in place of a dict", what, v)
	}
	return nil
}

func listOf(v any, what string) []any {
	l, ok := list(v)
	if !ok {
		pickle.Fail("%.100s is %T in place of a list", what, v)
	}
	return l
}

func textOf(v any, what string) string {
	s, ok := v.(string)
	if !ok {
		pickle.Fail("%s is %T in place of a string", what, v)
	}
	return s
}

func intOf(v any, least, most int64, what string) int64 {
	n, ok := v.(int64)
	if !ok || n < least || n > most {
		pickle.Fail("%s is %v; want an integer from %d to %d", what, v, least, most)
	}
	return n
}

func shapeOf(v any, what string) []int64 {
	s, ok := integers(v)
	if ok {
		_, err := tensor.NumElements(s)
		ok = err == nil && len(s) <= maxDims
	}
	if !ok {
		pickle.Fail("%s is %v", what, v)
	}
	return s
}

func dtypeOf(v any) tensor.DType {
	d, err := tensor.ParseDType(textOf(v, "dtype"))
	if err != nil {
		pickle.Fail("%w", err)
	}
	return d
}
