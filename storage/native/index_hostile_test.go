package native

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// sealedBlock is a block with arbitrary contents.
type sealedBlock struct {
	first           string
	entries, chunks int
	payload         []byte
}

// sealIndex returns an index of the given blocks with checksums that match.
func sealIndex(files []string, blocks ...sealedBlock) []byte {
	out := appendIndexHeader(nil)
	var dir []indexBlock
	var t indexTail
	for _, b := range blocks {
		out = append(out, b.payload...)
		out = binary.LittleEndian.AppendUint32(out, crc32c.Checksum(b.payload))
		dir = append(dir, indexBlock{length: int64(len(b.payload)), entries: b.entries, chunks: b.chunks, first: b.first})
		t.entries += int64(b.entries)
		t.chunks += int64(b.chunks)
	}
	return sealDirectory(out, encodeDirectory(files, dir), t)
}

// sealDirectory appends a directory and a tail that fits it.
func sealDirectory(out, dir []byte, t indexTail) []byte {
	t.dirOffset, t.dirLength = int64(len(out)), int64(len(dir))
	t.dirCRC = crc32c.Checksum(dir)
	return appendIndexTail(append(out, dir...), t)
}

// oneEntry returns an index of the entry "a" with that body.
func oneEntry(chunks int, body func(w *wire.Writer)) []byte {
	var b, w wire.Writer
	body(&b)
	putFrontCoded(&w, "", "a")
	w.Bytes(b.B)
	return sealIndex([]string{"f"}, sealedBlock{"a", 1, chunks, w.B})
}

// put writes uvarints.
func put(w *wire.Writer, vs ...uint64) {
	for _, v := range vs {
		w.Uvarint(v)
	}
}

// zig returns the zigzag code of v, for put.
func zig(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

const huge = math.MaxInt64

// hostile are indexes that no writer makes, all with checksums that match.
var hostile = map[string]struct {
	index []byte
	want  string
}{
	"unknown path form": {oneEntry(0, func(w *wire.Writer) { put(w, 9<<1, 2, 0, 0, 0) }), "path form"},
	"unknown dtype":     {oneEntry(0, func(w *wire.Writer) { put(w, 0, 99, 0, 0, 0) }), "dtype"},
	"dtype zero":        {oneEntry(0, func(w *wire.Writer) { put(w, 0, 0, 0, 0, 0) }), "dtype"},
	"unknown flags":     {oneEntry(0, func(w *wire.Writer) { w.B = append(w.B, 0, 2, 0x80, 0, 0) }), "flags"},
	"both key flags":    {oneEntry(0, func(w *wire.Writer) { put(w, 0, 2, flagOneKey|flagKeys, 0, 0) }), "flags"},
	"65 dimensions": {oneEntry(0, func(w *wire.Writer) {
		put(w, 0, 2, 0, 65)
		w.B = append(w.B, make([]byte, 70)...)
	}), "at most 64"},
	"shape overflows":   {oneEntry(0, func(w *wire.Writer) { put(w, 0, 2, 0, 2, huge, huge, 0) }), "more elements"},
	"shape not an int":  {oneEntry(0, func(w *wire.Writer) { put(w, 0, 2, 0, 1, 1<<63, 0) }), "does not fit"},
	"bytes after it":    {oneEntry(0, func(w *wire.Writer) { put(w, 0, 2, 0, 0, 0, 0) }), "after the end"},
	"cut short":         {oneEntry(0, func(w *wire.Writer) { put(w, 0, 2, 0, 1) }), "ends inside"},
	"chunks for no sum": {oneEntry(0, func(w *wire.Writer) { put(w, 0, 2, 0, 1, huge, 1<<40, 0, 1<<40, 0, 1<<40) }), "a count of"},
	"empty chunks without bytes": {oneEntry(0, func(w *wire.Writer) {
		put(w, 0, 2, 0, 1, 0, 3, 0, 3, 0, 3, 0, 3, 0, 3)
	}), "a count of 3"},
	"a run beyond the chunks": {oneEntry(1, func(w *wire.Writer) {
		put(w, 0, 2, 0, 1, 8, 1, 0, 1<<40, 0, 1, 0, 1)
		w.U32(1)
	}), "a count of"},
	"an empty run": {oneEntry(1, func(w *wire.Writer) {
		put(w, 0, 2, 0, 1, 8, 1, 0, 0, 0, 1, 0, 1)
		w.U32(1)
	}), "run of no values"},
	"a negative offset": {oneEntry(1, func(w *wire.Writer) {
		put(w, 0, 2, 0, 1, 8, 1, zig(-1), 1, zig(1), 1, 0, 1, 0, 1)
		w.U32(1)
	}), "negative value"},
	"an overflowing column": {oneEntry(2, func(w *wire.Writer) {
		put(w, 0, 2, 0, 1, 8, 2, zig(huge), 2)
		w.B = append(w.B, make([]byte, 8)...)
	}), "negative value"},
	"a box outside": {oneEntry(1, func(w *wire.Writer) {
		put(w, 0, 2, 0, 1, 8, 1, zig(4), 1, zig(5), 1, 0, 1, 0, 1)
		w.U32(1)
	}), "leaves"},
	"an unknown file": {oneEntry(1, func(w *wire.Writer) {
		put(w, 0, 2, 0, 1, 8, 1, 0, 1, zig(8), 1, zig(1), 1, 0, 1)
		w.U32(1)
	}), "file 1 of 1"},
	"an overflowing end": {oneEntry(1, func(w *wire.Writer) {
		put(w, 0, 2, 0, 1, 8, 1, 0, 1, zig(8), 1, 0, 1, zig(huge-31), 1)
		w.U32(1)
	}), "32 bytes at"},
	"a chunk of exbibytes": {oneEntry(1, func(w *wire.Writer) {
		put(w, 0, 17, 0, 1, huge, 1, 0, 1, zig(huge), 1, 0, 1, 0, 1)
		w.U32(1)
	}), "no checksums for"},
	"a checksum short": {oneEntry(1, func(w *wire.Writer) {
		put(w, 0, 17, 0, 1, 3<<20, 1, 0, 1, zig(3<<20), 1, 0, 1, 0, 1)
		w.U32(1)
		w.U32(1)
	}), "no checksums for"},
	"a checksum of no bytes that is not zero": {oneEntry(1, func(w *wire.Writer) {
		put(w, 0, 17, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1)
		w.U32(1)
	}), "empty chunk"},
	"a path of no steps":                  {oneEntry(0, func(w *wire.Writer) { put(w, 2<<1, 0, 2, 0, 0, 0) }), "without steps"},
	"a spelled path of no steps":          {oneEntry(0, func(w *wire.Writer) { put(w, 3<<1, 0, 2, 0, 0, 0) }), "without steps"},
	"a cut path with ints, without steps": {oneEntry(0, func(w *wire.Writer) { put(w, 4<<1, 0, 2, 0, 0, 0) }), "without steps"},
	"a key that is no integer":            {oneEntry(0, func(w *wire.Writer) { put(w, 4<<1, 1, 1<<2|2, 2, 0, 0, 0) }), "not an integer"},
	"a spelled key of no integer":         {oneEntry(0, func(w *wire.Writer) { put(w, 5<<1, 1, 2<<2|2, '0', '0', 2, 0, 0, 0) }), "not an integer"},
	"an integer beyond the body":          {oneEntry(0, func(w *wire.Writer) { put(w, 5<<1, 1, 1<<40<<2|2, 2, 0, 0, 0) }), "left"},
	"a step of the last kind":             {oneEntry(0, func(w *wire.Writer) { put(w, 4<<1, 1, 1<<2|3, 2, 0, 0, 0) }), "kind 3"},
	"a spelled step of that kind":         {oneEntry(0, func(w *wire.Writer) { put(w, 5<<1, 1, 1<<2|3, '0', 2, 0, 0, 0) }), "kind 3"},
	"a path that cuts elsewhere":          {oneEntry(0, func(w *wire.Writer) { put(w, 2<<1, 2, 0, 2, 2, 0, 0, 0) }), "does not cut"},
	"a path beyond the name":              {oneEntry(0, func(w *wire.Writer) { put(w, 2<<1, 1, 4, 2, 0, 0, 0) }), "does not cut"},
	"a position that is no number":        {oneEntry(0, func(w *wire.Writer) { put(w, 2<<1, 1, 3, 2, 0, 0, 0) }), "not a position"},
	"a path of more steps":                {oneEntry(0, func(w *wire.Writer) { put(w, 3<<1, 1<<40, 2, 0, 0, 0) }), "a count of"},
	"a key beyond the end":                {oneEntry(0, func(w *wire.Writer) { put(w, 3<<1, 1, 1<<40, 2, 0, 0, 0) }), "a key of"},
	"a value nowhere":                     {oneEntry(0, func(w *wire.Writer) { put(w, 1, 0, 4, 0) }), "place 4"},
	"storage data twice":                  {oneEntry(0, func(w *wire.Writer) { put(w, 1, 0, 3, 0, 3, 0, 0) }), "place 3"},
	"storage data beyond it":              {oneEntry(0, func(w *wire.Writer) { put(w, 1, 0, 3, 1<<40) }), "a count of"},
	"a value in an unknown file":          {oneEntry(0, func(w *wire.Writer) { put(w, 1, 0, 1, 0, 7, 0) }), "file 7 of 1"},
	"an inline value beyond it":           {oneEntry(0, func(w *wire.Writer) { put(w, 1, 0, 0, 1<<40) }), "a count of"},
	"a value of exbibytes": {oneEntry(0, func(w *wire.Writer) {
		put(w, 1, 0, 1, huge, 0, 0)
		w.U32(1)
	}), "no checksums for"},

	"no blocks for the entries":    {sealIndex(nil, sealedBlock{"a", 1, 0, nil}), "a count of 1"},
	"a block of no entries":        {sealIndex(nil, sealedBlock{"a", 0, 0, make([]byte, 9)}), "no entries"},
	"more entries than there are":  {blockOf(sealedBlock{"a", 2, 0, append(plain("a", 0), make([]byte, 9)...)}), "follow"},
	"fewer entries than there are": {blockOf(sealedBlock{"a", 1, 0, append(plain("a", 0), plain("b", 0)...)}), "after the end"},
	"another first name":           {blockOf(sealedBlock{"b", 1, 0, plain("a", 0)}), "the directory says"},
	"another number of chunks":     {blockOf(sealedBlock{"a", 1, 1, plain("a", 0)}), "the directory says 1"},
	"names that do not ascend":     {blockOf(sealedBlock{"b", 2, 0, append(plain("b", 0), plain("a", 0)...)}), "follow"},
	"a name twice":                 {blockOf(sealedBlock{"b", 2, 0, append(plain("b", 0), plain("b", 0)...)}), "follow"},
	"a name that is not UTF-8":     {blockOf(sealedBlock{"\xff", 1, 0, plain("\xff", 0)}), "UTF-8"},
	"a first name that shares":     {blockOf(sealedBlock{"a", 1, 0, plain("a", 3)}), "shares 3"},
	"blocks that overlap by name": {blockOf(
		sealedBlock{"a", 2, 0, append(plain("a", 0), plain("c", 0)...)}, sealedBlock{"b", 1, 0, plain("b", 0)}), "next one begins"},
	"blocks that do not ascend": {blockOf(
		sealedBlock{"b", 1, 0, plain("b", 0)}, sealedBlock{"a", 1, 0, plain("a", 0)}), "follow"},
	"a file outside":       {sealIndex([]string{"../f"}), "../f"},
	"files out of order":   {sealIndex([]string{"g", "f"}), "follow"},
	"files without end":    {sealDirectory(appendIndexHeader(nil), wireOf(1<<40), indexTail{}), "a count of"},
	"blocks without end":   {sealDirectory(appendIndexHeader(nil), wireOf(0, 1<<40), indexTail{}), "a count of"},
	"a block beyond it":    {sealDirectory(appendIndexHeader(nil), wireOf(0, 1, huge, 1, 1, 0, 0), indexTail{}), "leaves the file"},
	"a hole before it":     {sealDirectory(append(appendIndexHeader(nil), 0), wireOf(0, 0), indexTail{}), "add up"},
	"entries that are not": {sealDirectory(appendIndexHeader(make([]byte, 0)), wireOf(0, 0), indexTail{entries: 1}), "1 entries"},
	"chunks that are not":  {sealDirectory(append(appendIndexHeader(nil), make([]byte, 40)...), wireOf(0, 0), indexTail{chunks: 2}), "add up"},
	"a longer directory":   {sealDirectory(appendIndexHeader(nil), wireOf(0, 0, 0), indexTail{}), "after the end"},
}

// plain is a small entry of that name.
func plain(name string, shared byte) []byte {
	var w wire.Writer
	w.Byte(shared)
	w.String(name)
	w.Bytes([]byte{kindBytes, 0, bytesInline, 0})
	return w.B
}

func blockOf(blocks ...sealedBlock) []byte { return sealIndex(nil, blocks...) }

func wireOf(vs ...uint64) []byte {
	var w wire.Writer
	put(&w, vs...)
	return w.B
}

func TestHostileIndexesAreRefused(t *testing.T) {
	for name, tc := range hostile {
		t.Run(name, func(t *testing.T) {
			_, err := decodeWholeIndex(t.Context(), tc.index)
			if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("decode = %v; want ErrCorrupt with %q", err, tc.want)
			}
		})
	}
}

func TestLookupRefusesHostileIndexes(t *testing.T) {
	for name, tc := range hostile {
		t.Run(name, func(t *testing.T) {
			x, err := openIndex(t.Context(), &indexBytes{b: tc.index})
			if err == nil {
				_, _, err = x.lookup(t.Context(), "a")
			}
			if err != nil && !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("lookup = %v; want ErrCorrupt or nothing", err)
			}
		})
	}
}

func TestIndexOfAnotherVersionIsRefused(t *testing.T) {
	b := must.Get(EncodeIndex(sampleEntries()))(t)
	for version, want := range map[uint32]string{2: "written by a newer cairn", 0: "version 0"} {
		binary.LittleEndian.PutUint32(b[len(b)-indexTailFixed:], version)
		_, err := openIndex(t.Context(), &indexBytes{b: b})
		if !errors.Is(err, storage.ErrVersion) || !strings.Contains(err.Error(), want) {
			t.Errorf("version %d: openIndex = %v; want ErrVersion with %q", version, err, want)
		}
	}
}

// The entries that take the most memory for their bytes in the file: chunks of
// many dimensions, names that share, paths of many steps.
func TestDecodeIndexMemoryIsBoundedByTheFile(t *testing.T) {
	const limit = 400
	for name, index := range map[string][]byte{
		"chunks":  oneEntry(4000, manyChunks(4000)),
		"names":   sealMany(20_000, func(w *wire.Writer) { put(w, 1, 0, 0, 0) }),
		"tensors": sealMany(20_000, func(w *wire.Writer) { put(w, 0, 17, 0, 0, 0) }),
		"paths":   oneEntry(0, manySteps(16<<10)),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, err := decodeWholeIndex(t.Context(), index)
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatalf("decode = %v; want nil", err)
			}
			runtime.KeepAlive(got)
			// Slabs and goroutines cost something for any file.
			taken := int64(after.TotalAlloc-before.TotalAlloc) - 512<<10
			if taken > limit*int64(len(index)) {
				t.Errorf("decoding %d bytes took %d bytes; want %d times as many at most", len(index), taken, limit)
			}
		})
	}
}

// manyChunks is a tensor of n empty chunks of 64 dimensions.
func manyChunks(n uint64) func(w *wire.Writer) {
	return func(w *wire.Writer) {
		put(w, 0, 17, 0, tensor.MaxDims)
		w.B = append(w.B, make([]byte, tensor.MaxDims)...)
		put(w, n)
		for range 2*tensor.MaxDims + 2 {
			put(w, 0, n)
		}
		w.B = append(w.B, make([]byte, 4*n)...)
	}
}

// manySteps is a value with a path of n steps.
func manySteps(n uint64) func(w *wire.Writer) {
	return func(w *wire.Writer) {
		put(w, 1|3<<1, n)
		w.B = append(w.B, make([]byte, n)...)
		put(w, 0, 0, 0)
	}
}

// sealMany is an index of n entries. Their names share as many bytes as possible.
func sealMany(n int, body func(w *wire.Writer)) []byte {
	var b, w wire.Writer
	body(&b)
	prefix, prev := strings.Repeat("x", maxShared), ""
	for i := range n {
		name := fmt.Sprintf("%s%06d", prefix[6:], i)
		putFrontCoded(&w, prev, name)
		w.Bytes(b.B)
		prev = name
	}
	return sealIndex(nil, sealedBlock{prefix[6:] + "000000", n, 0, w.B})
}

// FuzzDecodeIndex decodes arbitrary files, and the same files with correct checksums, so
// that the code after the checks of checksums is reached.
func FuzzDecodeIndex(f *testing.F) {
	b := must.Get(EncodeIndex(sampleEntries()))(f)
	f.Add(b)
	f.Add(oneEntry(0, func(w *wire.Writer) { put(w, 5<<1|1, 2, 2<<2|2, '-', '7', 3<<2|1, 0, bytesInline, 0) }))
	for _, tc := range hostile {
		f.Add(tc.index)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkIndexDecode(t, b)
		checkIndexDecode(t, reseal(b))
	})
}

// checkIndexDecode fails unless b is refused properly, or is an index with entries that can
// be encoded and decoded again.
func checkIndexDecode(t *testing.T, b []byte) {
	ctx := context.Background()
	got, err := decodeWholeIndex(ctx, b)
	if err != nil {
		if !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrVersion) {
			t.Fatalf("decode(%x) = %v; want ErrCorrupt or ErrVersion", b, err)
		}
		return
	}
	again, err := EncodeIndex(got)
	if err != nil {
		t.Fatalf("encode(decode(%x)) = %v; want nil", b, err)
	}
	back, err := decodeWholeIndex(ctx, again)
	if err != nil {
		t.Fatalf("decode(encode(decode(%x))) = %v; want nil", b, err)
	}
	if !reflect.DeepEqual(got, back) {
		t.Fatalf("decode(encode(decode(%x))) (-want +got):\n%s", b, cmp.Diff(got, back))
	}
	x := must.Get(openIndex(ctx, &indexBytes{b: b}))(t)
	for i := range got {
		if e, ok, err := x.lookup(ctx, got[i].FQN); err != nil || !ok || !reflect.DeepEqual(*e, got[i]) {
			t.Fatalf("lookup(%q) in %x = %v, %v; want %v", got[i].FQN, b, ok, err, got[i])
		}
	}
}

// reseal returns b with the checksums that it should have, as far as its
// structure can be followed.
func reseal(b []byte) []byte {
	if len(b) < indexHeaderSize+indexTailSize {
		return b
	}
	out := appendIndexHeader(nil)
	out = append(out, b[indexHeaderSize:len(b)-indexTailSize]...)
	tail := b[len(b)-indexTailSize:]
	r := wire.NewReader(tail)
	at := r.U64()
	if at < indexHeaderSize || at > uint64(len(out)) {
		return b
	}
	_ = r.U64()
	t := indexTail{entries: int64(r.U64()), chunks: int64(r.U64())}
	resealBlocks(out[:at], out[at:])
	return sealDirectory(out[:at:at], out[at:], t)
}

// resealBlocks corrects the checksums of the blocks that dir describes.
func resealBlocks(out, dir []byte) {
	r := wire.NewReader(dir)
	for range r.Count(2) {
		r.Byte()
		r.Bytes()
	}
	at := uint64(indexHeaderSize)
	for range r.Count(5) {
		n := r.Uvarint()
		r.Uvarint()
		r.Uvarint()
		r.Byte()
		r.Bytes()
		if r.Err() != nil || n > uint64(len(out)) || at+n+crcSize > uint64(len(out)) {
			return
		}
		binary.LittleEndian.PutUint32(out[at+n:], crc32c.Checksum(out[at:at+n]))
		at += n + crcSize
	}
}
