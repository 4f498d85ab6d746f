package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// indexBytes reads an index held in memory and counts the reads and their bytes.
type indexBytes struct {
	b            []byte
	reads, bytes atomic.Int64
}

var _ blob.Reader = (*indexBytes)(nil)

func (r *indexBytes) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if off < 0 || off+int64(len(p)) > int64(len(r.b)) {
		return blob.ErrRange
	}
	r.reads.Add(1)
	r.bytes.Add(int64(len(p)))
	copy(p, r.b[off:])
	return nil
}

func (r *indexBytes) Size() int64  { return int64(len(r.b)) }
func (r *indexBytes) Close() error { return nil }

// decodeWholeIndex opens an index and reads all of it.
func decodeWholeIndex(ctx context.Context, b []byte) ([]meta.Entry, error) {
	x, err := openIndex(ctx, &indexBytes{b: b})
	if err != nil {
		return nil, err
	}
	return x.all(ctx)
}

// sumsFor returns the checksums of a chunk.
func sumsFor(sizes []int64, elem int, seed uint32) []uint32 {
	out := make([]uint32, gridOf(sizes, int64(elem)).tiles())
	for i := range out {
		out[i] = (seed + uint32(i)) * 0x9e3779b1
	}
	return out
}

// placeChunk returns a location for a chunk of t.
func placeChunk(t *meta.Tensor, b tensor.Box, file string, off int64) meta.Location {
	return meta.Location{
		File: file, Offset: off, Length: b.Volume() * int64(t.DType.Size()),
		Sums: sumsFor(b.Sizes, t.DType.Size(), uint32(off)),
	}
}

// sampleEntries hold everything that an index can: each dtype, 0-d and empty
// tensors, several chunks and files, values inline and in files, all forms of
// paths.
func sampleEntries() []meta.Entry {
	const f0, f1 = "s-r00000-0.safetensors", "s-r00001-0.safetensors"
	add := func(t *meta.Tensor, file string, off int64, box tensor.Box) *meta.Tensor {
		t.Chunks = append(t.Chunks, box)
		t.Locs = append(t.Locs, placeChunk(t, box, file, off))
		return t
	}
	out := []meta.Entry{}
	for i, d := range tensor.DTypes() {
		t := &meta.Tensor{Properties: meta.Properties{DType: d}, Shape: []int64{2, 3}}
		add(t, f0, int64(i)*64, tensor.Whole(t.Shape))
		if d == tensor.Complex64 {
			t.Locs[0].Detail = &meta.Detail{Key: "__cairn__/0"}
		}
		name := "dtype." + d.String()
		out = append(out, meta.Entry{FQN: name, Path: meta.Path{meta.Key("dtype"), meta.Key(d.String())}, Tensor: t})
	}

	scalar := &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}, Shape: []int64{}}
	add(scalar, f1, 4096, tensor.Box{Offsets: []int64{}, Sizes: []int64{}})
	empty := &meta.Tensor{Properties: meta.Properties{DType: tensor.BFloat16}, Shape: []int64{0, 4}}
	add(empty, f1, 4100, tensor.Whole(empty.Shape))
	bare := &meta.Tensor{Properties: meta.Properties{DType: tensor.Int8}, Shape: []int64{0}}

	rows := &meta.Tensor{Properties: meta.Properties{
		DType: tensor.Float8E4M3FNUZ, RequiresGrad: true, PinMemory: true, MemoryFormat: "channels_last", Layout: "strided",
	}, Shape: []int64{10, 4}}
	add(rows, f0, 8192, tensor.Box{Offsets: []int64{0, 0}, Sizes: []int64{4, 4}})
	add(rows, f1, 8192, tensor.Box{Offsets: []int64{4, 0}, Sizes: []int64{4, 4}})
	add(rows, f0, 9000, tensor.Box{Offsets: []int64{8, 0}, Sizes: []int64{2, 4}})
	add(rows, f1, 9000, tensor.Box{Offsets: []int64{10, 0}, Sizes: []int64{0, 4}})
	rows.Locs[0].Detail = &meta.Detail{Key: "__cairn__/1"}
	rows.Locs[2].Detail = &meta.Detail{Key: "__cairn__/2"}

	big := &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}, Shape: []int64{4096, 4096}}
	for c := range int64(2) {
		add(big, f1, 1<<20, tensor.Box{Offsets: []int64{0, c * 2048}, Sizes: []int64{4096, 2048}})
	}
	inFile := &meta.Bytes{Codec: "raw", Size: 3 << 20, Loc: meta.Location{File: f0, Offset: 1 << 30, Length: 3 << 20}}
	inFile.Loc.Sums = sumsFor([]int64{3 << 20}, 1, 7)
	keyed := &meta.Bytes{Codec: "pickle", Size: 5, Loc: meta.Location{File: f1, Offset: 77, Length: 5, Detail: &meta.Detail{Key: "__cairn__/9"}}}
	keyed.Loc.Sums = sumsFor([]int64{5}, 1, 9)

	out = append(out,
		meta.Entry{FQN: "", Bytes: &meta.Bytes{Codec: "", Inline: []byte{}}},
		meta.Entry{FQN: "big", Path: meta.Path{meta.Key("big")}, Tensor: big},
		meta.Entry{FQN: "empty", Path: meta.Path{meta.Key("other"), meta.Pos(3), meta.Key("")}, Tensor: empty},
		meta.Entry{FQN: "empty.bare", Tensor: bare},
		meta.Entry{FQN: "opt.state.0.step", Path: meta.Path{meta.Key("opt"), meta.Key("state"), meta.Pos(0), meta.Key("step")}, Tensor: scalar},
		meta.Entry{FQN: "opt.state.layers.0.w", Path: meta.Path{meta.Key("opt"), meta.Key("state"), meta.Key("layers.0.w")}, Tensor: rows},
		meta.Entry{FQN: "rng.0", Path: meta.Path{meta.Key("rng"), meta.Pos(0)}, Bytes: &meta.Bytes{Codec: "json", Size: 4, Inline: []byte("null")}},
		meta.Entry{FQN: "rng.1", Path: meta.Path{meta.Key("rng"), meta.Key("1")}, Bytes: inFile},
		meta.Entry{FQN: "rng.é", Path: meta.Path{meta.Key("rng.é")}, Bytes: keyed},
	)
	slices.SortFunc(out, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	return out
}

func TestIndexReadsAsWritten(t *testing.T) {
	want := sampleEntries()
	b, err := EncodeIndex(want)
	if err != nil {
		t.Fatalf("encodeIndex = %v; want nil", err)
	}
	x, err := openIndex(t.Context(), &indexBytes{b: b})
	if err != nil {
		t.Fatalf("openIndex = %v; want nil", err)
	}
	got, err := x.all(t.Context())
	if err != nil {
		t.Fatalf("all = %v; want nil", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"s-r00000-0.safetensors", "s-r00001-0.safetensors"}, x.names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for i := range want {
		e, ok, err := x.lookup(t.Context(), want[i].FQN)
		if err != nil || !ok {
			t.Fatalf("lookup(%q) = %v, %v; want it", want[i].FQN, ok, err)
		}
		if diff := cmp.Diff(&want[i], e); diff != "" {
			t.Errorf("lookup(%q) (-want +got):\n%s", want[i].FQN, diff)
		}
	}
	for _, fqn := range []string{"a", "dtype", "dtype.float", "dtype.float64x", "rng.2", "zzz"} {
		if _, ok, err := x.lookup(t.Context(), fqn); ok || err != nil {
			t.Errorf("lookup(%q) = %v, %v; want not found", fqn, ok, err)
		}
	}
}

func TestEmptyIndex(t *testing.T) {
	b := must.Get(EncodeIndex(nil))(t)
	got, err := decodeWholeIndex(t.Context(), b)
	if err != nil || len(got) != 0 {
		t.Errorf("decode = %v, %v; want nothing", got, err)
	}
	x := must.Get(openIndex(t.Context(), &indexBytes{b: b}))(t)
	if _, ok, err := x.lookup(t.Context(), "a"); ok || err != nil {
		t.Errorf("lookup = %v, %v; want not found", ok, err)
	}
}

func TestAnyIndexReadsAsWritten(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		want := drawEntries(t)
		b, err := EncodeIndex(want)
		if err != nil {
			t.Fatalf("encodeIndex = %v; want nil", err)
		}
		got, err := decodeWholeIndex(context.Background(), b)
		if err != nil {
			t.Fatalf("decode = %v; want nil", err)
		}
		if len(want)+len(got) == 0 {
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("decode(encode) (-want +got):\n%s", diff)
		}
	})
}

// drawEntries draws entries of any sort.
func drawEntries(t *rapid.T) []meta.Entry {
	name := rapid.StringMatching(`([a-c]{1,3}|[0-9]{1,2})?(\.([a-c]{1,3}|[0-9]{1,2}))*`)
	names := rapid.SliceOfNDistinct(name, 0, 12, rapid.ID).Draw(t, "names")
	slices.Sort(names)
	var out []meta.Entry
	for _, fqn := range names {
		e := meta.Entry{FQN: fqn, Path: drawPath(t, fqn)}
		if rapid.Bool().Draw(t, "value") {
			p := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "inline")
			e.Bytes = &meta.Bytes{Codec: rapid.SampledFrom([]string{"", "json", "raw"}).Draw(t, "codec"), Size: int64(len(p)), Inline: append([]byte{}, p...)}
			if rapid.Bool().Draw(t, "in a file") {
				e.Bytes.Inline = nil
				e.Bytes.Loc = meta.Location{File: "v", Offset: 9, Length: e.Bytes.Size, Sums: sumsFor([]int64{e.Bytes.Size}, 1, 3)}
				if rapid.Bool().Draw(t, "keyed") {
					e.Bytes.Loc.Detail = &meta.Detail{Key: "k"}
				}
			}
			drawStorageData(t, &e.Bytes.Loc)
		} else {
			e.Tensor = drawTensor(t)
		}
		out = append(out, e)
	}
	return out
}

func drawPath(t *rapid.T, fqn string) meta.Path {
	switch rapid.IntRange(0, 2).Draw(t, "path") {
	case 0:
		return nil
	case 1:
		return meta.Path{meta.Key(fqn)}
	}
	var p meta.Path
	for s := range strings.SplitSeq(fqn, ".") {
		if s == "7" {
			p = append(p, rapid.SampledFrom([]meta.Step{meta.Pos(7), meta.IntKey(7)}).Draw(t, "seven"))
			continue
		}
		p = append(p, meta.Key(s))
	}
	if rapid.Bool().Draw(t, "odd") {
		p = append(p, meta.Pos(rapid.IntRange(0, 1<<40).Draw(t, "pos")))
	}
	if rapid.Bool().Draw(t, "numbered") {
		p = append(p, meta.IntKey(rapid.Int64().Draw(t, "number")))
	}
	return p
}

func drawTensor(t *rapid.T) *meta.Tensor {
	dtype := rapid.SampledFrom(tensor.DTypes()).Draw(t, "dtype")
	out := &meta.Tensor{Properties: meta.Properties{DType: dtype}}
	out.Shape = append([]int64{}, rapid.SliceOfN(rapid.Int64Range(0, 3000), 0, 3).Draw(t, "shape")...)
	for range rapid.IntRange(0, 6).Draw(t, "chunks") {
		b := tensor.Box{Offsets: []int64{}, Sizes: []int64{}}
		for _, n := range out.Shape {
			o := rapid.Int64Range(0, n).Draw(t, "offset")
			b.Offsets = append(b.Offsets, o)
			b.Sizes = append(b.Sizes, rapid.Int64Range(0, n-o).Draw(t, "size"))
		}
		l := placeChunk(out, b, rapid.SampledFrom([]string{"a", "b/c", "d"}).Draw(t, "file"), rapid.Int64Range(0, 1<<50).Draw(t, "at"))
		if key := rapid.SampledFrom([]string{"", "k", "l"}).Draw(t, "key"); key != "" {
			l.Detail = &meta.Detail{Key: key}
		}
		drawStorageData(t, &l)
		out.Chunks, out.Locs = append(out.Chunks, b), append(out.Locs, l)
	}
	return out
}

// drawStorageData gives some locations storage data.
func drawStorageData(t *rapid.T, l *meta.Location) {
	if data := rapid.SampledFrom([]string{"", "", "own", "\x00"}).Draw(t, "storage data"); data != "" {
		l.SetStorageData([]byte(data))
	}
}

// longEntries need several blocks and a directory beyond the first read.
func longEntries() []meta.Entry {
	var out []meta.Entry
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		e := meta.Entry{FQN: fmt.Sprintf("model.layers.%06d.weight", i)}
		t := &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}, Shape: []int64{64, 64}}
		for c := range int64(4) {
			b := tensor.Box{Offsets: []int64{16 * c, 0}, Sizes: []int64{16, 64}}
			t.Chunks = append(t.Chunks, b)
			t.Locs = append(t.Locs, placeChunk(t, b, fmt.Sprintf("%d/%08x", i, rng.Uint32()), int64(rng.Uint32())))
		}
		e.Tensor = t
		out = append(out, e)
	}
	return out
}

func TestIndexWithALongDirectory(t *testing.T) {
	want := longEntries()
	b := must.Get(EncodeIndex(want))(t)
	r := &indexBytes{b: b}
	x := must.Get(openIndex(t.Context(), r))(t)
	if n := r.reads.Load(); x.tail.dirLength < indexFirstRead || n != 2 {
		t.Errorf("opening a directory of %d bytes took %d reads; want a long one and 2", x.tail.dirLength, n)
	}
	if len(x.blocks) < 3 {
		t.Errorf("%d blocks; want some", len(x.blocks))
	}
	got := must.Get(x.all(t.Context()))(t)
	if !reflect.DeepEqual(want, got) {
		t.Errorf("all (-want +got):\n%s", cmp.Diff(want, got))
	}
	for i := 0; i < len(want); i += 97 {
		e, ok, err := x.lookup(t.Context(), want[i].FQN)
		if err != nil || !ok || !reflect.DeepEqual(&want[i], e) {
			t.Errorf("lookup(%q) = %v, %v, %v; want it", want[i].FQN, e, ok, err)
		}
		if _, ok, err := x.lookup(t.Context(), want[i].FQN+"x"); ok || err != nil {
			t.Errorf("lookup(%q) = %v, %v; want not found", want[i].FQN+"x", ok, err)
		}
	}
}

func TestSmallIndexTakesOneRead(t *testing.T) {
	b := must.Get(EncodeIndex(sampleEntries()))(t)
	r := &indexBytes{b: b}
	x := must.Get(openIndex(t.Context(), r))(t)
	must.Get(x.all(t.Context()))(t)
	if _, ok, err := x.lookup(t.Context(), "big"); !ok || err != nil {
		t.Fatalf("lookup(big) = %v, %v; want it", ok, err)
	}
	if n := r.reads.Load(); n != 1 {
		t.Errorf("%d reads; want 1", n)
	}
}

func TestLargeIndexIsReadInPieces(t *testing.T) {
	var want []meta.Entry
	for i := range 60 {
		p := bytes.Repeat([]byte{byte(i)}, indexBlockTarget)
		want = append(want, meta.Entry{FQN: fmt.Sprintf("%02d", i), Bytes: &meta.Bytes{Codec: "raw", Size: int64(len(p)), Inline: p}})
	}
	b := must.Get(EncodeIndex(want))(t)
	r := &indexBytes{b: b}
	x := must.Get(openIndex(t.Context(), r))(t)
	got := must.Get(x.all(t.Context()))(t)
	if !reflect.DeepEqual(want, got) {
		t.Error("all returned other entries than were written")
	}
	if n := r.reads.Load(); n < 3 || n > 1+int64(len(b))/indexMinRead+1 {
		t.Errorf("%d reads for %d bytes; want large pieces", n, len(b))
	}
	b[len(b)/2] ^= 1
	if _, err := x.all(t.Context()); !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "block") {
		t.Errorf("all of a damaged file = %v; want ErrCorrupt naming the block", err)
	}
}

func TestIndexReturnsTheCauseOfItsContext(t *testing.T) {
	b := must.Get(EncodeIndex(sampleEntries()))(t)
	x := must.Get(openIndex(t.Context(), &indexBytes{b: b}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, openErr := openIndex(ctx, &indexBytes{b: b})
	_, _, lookupErr := x.lookup(ctx, "big")
	_, allErr := x.all(ctx)
	for _, err := range []error{openErr, lookupErr, allErr} {
		if !errors.Is(err, context.Canceled) || errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("with a cancelled context: %v; want context.Canceled", err)
		}
	}
}

func TestEncodeIndexRefuses(t *testing.T) {
	good := func() *meta.Tensor {
		t := &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}, Shape: []int64{4}}
		b := tensor.Whole(t.Shape)
		t.Chunks, t.Locs = []tensor.Box{b}, []meta.Location{placeChunk(t, b, "f", 0)}
		return t
	}
	with := func(change func(*meta.Tensor)) []meta.Entry {
		t := good()
		change(t)
		return []meta.Entry{{FQN: "a", Tensor: t}}
	}
	value := func(v meta.Bytes) []meta.Entry { return []meta.Entry{{FQN: "a", Bytes: &v}} }
	if _, err := EncodeIndex(with(func(*meta.Tensor) {})); err != nil {
		t.Fatalf("encodeIndex of the unchanged entry = %v; want nil", err)
	}
	for name, tc := range map[string]struct {
		entries []meta.Entry
		want    string
	}{
		"names out of order":   {[]meta.Entry{{FQN: "b", Tensor: good()}, {FQN: "a", Tensor: good()}}, `"a" after "b"`},
		"a name twice":         {[]meta.Entry{{FQN: "a", Tensor: good()}, {FQN: "a", Tensor: good()}}, `"a" after "a"`},
		"a name not UTF-8":     {[]meta.Entry{{FQN: "\xff", Tensor: good()}}, "UTF-8"},
		"neither":              {[]meta.Entry{{FQN: "a"}}, "neither"},
		"both":                 {[]meta.Entry{{FQN: "a", Tensor: good(), Bytes: &meta.Bytes{Inline: []byte{}}}}, "both"},
		"no locations":         {with(func(t *meta.Tensor) { t.Locs = nil }), "0 locations for 1 chunks"},
		"no file":              {with(func(t *meta.Tensor) { t.Locs[0].File = "" }), "name"},
		"a file outside":       {with(func(t *meta.Tensor) { t.Locs[0].File = "../f" }), "../f"},
		"an unknown dtype":     {with(func(t *meta.Tensor) { t.DType = 99 }), "dtype"},
		"a negative shape":     {with(func(t *meta.Tensor) { t.Shape = []int64{-4} }), "negative"},
		"a box outside":        {with(func(t *meta.Tensor) { t.Chunks[0].Offsets = []int64{1} }), "leaves"},
		"a wrong length":       {with(func(t *meta.Tensor) { t.Locs[0].Length++ }), "want 16"},
		"a negative offset":    {with(func(t *meta.Tensor) { t.Locs[0].Offset = -1 }), "at -1"},
		"an overflowing end":   {with(func(t *meta.Tensor) { t.Locs[0].Offset = 1<<63 - 1 }), "want 16"},
		"a missing checksum":   {with(func(t *meta.Tensor) { t.Locs[0].Sums = nil }), "0 checksums, want 1"},
		"a transform":          {with(func(t *meta.Tensor) { t.Locs[0].Detail = &meta.Detail{Transforms: []string{"zstd"}} }), "transforms"},
		"a negative position":  {[]meta.Entry{{FQN: "a", Path: meta.Path{meta.Pos(-1)}, Tensor: good()}}, "position -1"},
		"a key that is no int": {[]meta.Entry{{FQN: "a", Path: meta.Path{{Key: "a", Int: true}}, Tensor: good()}}, "not an integer"},
		"a position too far": {
			[]meta.Entry{{FQN: "a", Path: meta.Path{meta.IntKey(1), meta.Pos(1 << 62)}, Tensor: good()}}, "position 4611686018427387904",
		},
		"a wrong inline size":  {value(meta.Bytes{Size: 3, Inline: []byte("ab")}), "2 bytes inline of 3"},
		"a negative size":      {value(meta.Bytes{Size: -1, Loc: meta.Location{File: "f", Length: -1}}), "size of -1"},
		"a value without sums": {value(meta.Bytes{Size: 1, Loc: meta.Location{File: "f", Length: 1}}), "0 checksums, want 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := EncodeIndex(tc.entries)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("encodeIndex = %v; want an error with %q", err, tc.want)
			}
			if !errors.Is(err, meta.ErrInvalid) {
				t.Errorf("encodeIndex = %v; want ErrInvalid", err)
			}
		})
	}
}

func TestIndexDetectsEveryChangedByte(t *testing.T) {
	b := must.Get(EncodeIndex(sampleEntries()))(t)
	check := func(what string, mutant []byte) {
		t.Helper()
		_, err := decodeWholeIndex(t.Context(), mutant)
		if !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrVersion) {
			t.Fatalf("%s: decode = %v; want ErrCorrupt or ErrVersion", what, err)
		}
	}
	for i := range b {
		for bit := range 8 {
			mutant := bytes.Clone(b)
			mutant[i] ^= 1 << bit
			check(fmt.Sprintf("bit %d of byte %d", bit, i), mutant)
		}
	}
	for n := range b {
		check(fmt.Sprintf("the first %d bytes", n), b[:n])
		check(fmt.Sprintf("without the first %d bytes", n+1), b[n+1:])
	}
	check("a byte more", append(bytes.Clone(b), 0))
}
