package orbax_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/storage/orbax/ocdbt"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// record returns a record of OCDBT without compression.
func record(magic uint32, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, magic)
	b = binary.LittleEndian.AppendUint64(b, uint64(12+2+len(body)+4))
	b = append(append(b, 0, 0), body...)
	return binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b))
}

// table writes a table of one data file.
func table(w *wire.Writer, path string) {
	w.Uvarint(1)
	w.Uvarint(uint64(len(path)))
	w.Uvarint(0)
	w.B = append(w.B, path...)
}

// writeOCDBT writes a database with one leaf and all values in one data file.
func writeOCDBT(t testing.TB, s blob.Store, values map[string][]byte) {
	t.Helper()
	keys := slices.Sorted(maps.Keys(values))
	var data []byte
	var w wire.Writer
	w.Byte(0)
	table(&w, "d/values")
	w.Uvarint(uint64(len(keys)))
	for range keys[1:] {
		w.Uvarint(0)
	}
	for _, k := range keys {
		w.Uvarint(uint64(len(k)))
	}
	for _, k := range keys {
		w.B = append(w.B, k...)
	}
	for _, k := range keys {
		w.Uvarint(uint64(len(values[k])))
	}
	for range keys {
		w.Byte(1)
	}
	for range keys {
		w.Uvarint(0)
	}
	for _, k := range keys {
		w.Uvarint(uint64(len(data)))
		data = append(data, values[k]...)
	}
	node := record(0x0cdb20de, w.B)
	storagetest.Put(t, s, "d/values", data)
	storagetest.Put(t, s, "d/node", node)

	w = wire.Writer{B: make([]byte, 16)}
	for _, n := range []uint64{0, 1024, 100_000_000} {
		w.Uvarint(n)
	}
	w.Byte(4)
	w.Uvarint(0)
	table(&w, "d/node")
	w.Uvarint(1)
	w.Uvarint(1) // generation
	w.Byte(0)    // height
	for _, n := range []uint64{0, 0, uint64(len(node)), uint64(len(keys)), 0, 0} {
		w.Uvarint(n)
	}
	w.U64(1)
	w.Uvarint(0)
	storagetest.Put(t, s, ocdbt.Manifest, record(0x0cdb3a2a, w.B))
}

// written is an array of float32 of two dimensions, with the elements of its random bytes.
type written struct {
	shape, chunk, inner []int64 // inner is nil for zarr 2
	zstd                bool
	turned              bool   // the dimensions are stored in the opposite order
	data                []byte // row-major
	values              map[string][]byte
}

// newWritten returns an array with noise in the upper half of each element, which compresses a little.
func newWritten(t testing.TB, shape, chunk, inner []int64, compress, turned bool) *written {
	t.Helper()
	w := &written{shape: shape, chunk: chunk, inner: inner, zstd: compress, turned: turned, values: map[string][]byte{}}
	w.data = make([]byte, 4*shape[0]*shape[1])
	r := rand.New(rand.NewPCG(1, 2))
	for i := 2; i < len(w.data); i += 4 {
		binary.LittleEndian.PutUint16(w.data[i:], uint16(r.Uint32()))
	}
	w.encode(t, "w")
	return w
}

func (w *written) encode(t testing.TB, name string) {
	t.Helper()
	codecs := []any{map[string]any{"name": "bytes", "configuration": map[string]any{"endian": "little"}}}
	var compressor any
	order := "C"
	if w.turned {
		order = "F"
		codecs = slices.Insert(codecs, 0, any(map[string]any{"name": "transpose", "configuration": map[string]any{"order": []int{1, 0}}}))
	}
	if w.zstd {
		codecs = append(codecs, map[string]any{"name": "zstd"})
		compressor = map[string]any{"id": "zstd", "level": 1}
	}
	if w.inner == nil {
		w.values[name+"/.zarray"] = must.Get(json.Marshal(map[string]any{
			"zarr_format": 2, "shape": w.shape, "chunks": w.chunk, "dtype": "<f4", "order": order, "compressor": compressor, "fill_value": nil, "filters": nil,
		}))(t)
	} else {
		w.values[name+"/zarr.json"] = must.Get(json.Marshal(map[string]any{
			"zarr_format": 3, "node_type": "array", "shape": w.shape, "data_type": "float32", "fill_value": 0,
			"chunk_grid":         map[string]any{"name": "regular", "configuration": map[string]any{"chunk_shape": w.chunk}},
			"chunk_key_encoding": map[string]any{"name": "default"},
			"codecs": []any{map[string]any{"name": "sharding_indexed", "configuration": map[string]any{
				"chunk_shape": w.inner, "codecs": codecs, "index_codecs": []any{"bytes", "crc32c"},
			}}},
		}))(t)
	}
	for i := range w.shape[0] / w.chunk[0] {
		for j := range w.shape[1] / w.chunk[1] {
			key, cell := fmt.Sprintf("%s/%d.%d", name, i, j), w.stored(t, i*w.chunk[0], j*w.chunk[1], w.chunk)
			if w.inner != nil {
				key, cell = fmt.Sprintf("%s/c/%d/%d", name, i, j), w.shard(t, i*w.chunk[0], j*w.chunk[1])
			}
			w.values[key] = cell
		}
	}
}

// stored returns the stored form of a box.
func (w *written) stored(t testing.TB, row, col int64, sizes []int64) []byte {
	t.Helper()
	all := must.Get(tensor.FromBytes(tensor.Float32, w.shape, w.data))(t)
	part := must.Get(all.Narrow(tensor.Box{Offsets: []int64{row, col}, Sizes: sizes}))(t)
	if w.turned {
		part = must.Get(part.Transpose(0, 1))(t)
	}
	p := part.Contents()
	if !w.zstd {
		return p
	}
	z := must.Get(zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20)))(t)
	defer z.Close()
	return z.EncodeAll(p, nil)
}

// shard returns a shard.
func (w *written) shard(t testing.TB, row, col int64) (out []byte) {
	t.Helper()
	var index []byte
	for i := range w.chunk[0] / w.inner[0] {
		for j := range w.chunk[1] / w.inner[1] {
			p := w.stored(t, row+i*w.inner[0], col+j*w.inner[1], w.inner)
			index = binary.LittleEndian.AppendUint64(index, uint64(len(out)))
			index = binary.LittleEndian.AppendUint64(index, uint64(len(p)))
			out = append(out, p...)
		}
	}
	index = binary.LittleEndian.AppendUint32(index, crc32c.Checksum(index))
	return append(out, index...)
}
