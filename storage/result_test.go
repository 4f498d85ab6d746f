package storage_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

var codec storage.ResultCodec

// some are results of every kind.
var some = &storage.WriteResults{
	Items: []storage.WriteResult{
		{Index: meta.Index{FQN: "w", Offset: []int64{4, 0}, Hint: 1}, Loc: meta.Location{File: "f0", Offset: 4096, Length: 64, Sums: []uint32{1, 0xffffffff}}},
		{Index: meta.Index{FQN: "scalar", Offset: []int64{}}, Loc: meta.Location{File: "elsewhere", Offset: 1 << 60, Length: 4}},
		{Index: meta.Index{FQN: "step"}, Inline: []byte("12")},
		{Index: meta.Index{FQN: "nothing"}, Inline: []byte{}},
		{Index: meta.Index{FQN: "zip", Offset: []int64{0}, Hint: -1}, Loc: meta.Location{File: "f1", Length: -1, Detail: &meta.Detail{Key: "k", Transforms: []string{"zstd", ""}, StorageData: []byte("own")}}},
	},
	Files: []storage.File{{Name: "f0", Size: 1 << 40, CRC32C: 0xdeadbeef}, {Name: "f1"}},
	Coded: []storage.Coded{
		{File: storage.File{Name: "elsewhere", Size: 7, CRC32C: 1}, Stored: "f1", Refers: []storage.Reference{{Folder: "a", Name: "b", Size: 1 << 40}}, Referring: 3},
	},
	Phases: []meta.Phase{{Name: "plan", Start: -2, End: -1}, {Name: "write", Start: 0, End: 1 << 60, Bytes: 1 << 40}},
	Copies: []storage.CopySum{{Key: 1 << 63, Sum: 7}, {Key: 0, Sum: 1<<32 - 1}},
}

func TestResultsRoundTrip(t *testing.T) {
	for name, r := range map[string]*storage.WriteResults{"nothing": {Items: []storage.WriteResult{}}, "something of each kind": some} {
		b := must.Get(codec.Encode(r))(t)
		got, err := codec.Decode(b)
		if d := cmp.Diff(r, got); d != "" || err != nil {
			t.Errorf("%s: Decode(Encode), %v: -want +got\n%s", name, err, d)
		}
	}
}

func TestEncodeResultsWritesFileNamesOnce(t *testing.T) {
	r := &storage.WriteResults{Files: []storage.File{{Name: "a-file-with-a-name-of-some-length"}}}
	for i := range 100 {
		r.Items = append(r.Items, storage.WriteResult{Index: meta.Index{FQN: "w", Hint: int32(i)}, Loc: meta.Location{File: r.Files[0].Name}})
	}
	if b, _ := codec.Encode(r); len(b) > 100*12+50 {
		t.Errorf("100 items in one file take %d bytes; want its name once", len(b))
	}
}

func drawResults(t *rapid.T) *storage.WriteResults {
	name := rapid.SampledFrom([]string{"", "a", "b", "model.w", "žluť"})
	offset := rapid.SliceOfN(rapid.Int64(), 0, 5)
	r := &storage.WriteResults{}
	for range rapid.IntRange(0, 3).Draw(t, "files") {
		r.Files = append(r.Files, storage.File{
			Name: name.Draw(t, "file"), Size: rapid.Int64Min(0).Draw(t, "size"), CRC32C: rapid.Uint32().Draw(t, "crc"),
		})
	}
	for range rapid.IntRange(0, 4).Draw(t, "items") {
		it := storage.WriteResult{Index: meta.Index{FQN: name.Draw(t, "fqn"), Hint: rapid.Int32().Draw(t, "hint")}}
		if rapid.Bool().Draw(t, "tensor") {
			it.Index.Offset = append([]int64{}, offset.Draw(t, "offset")...)
		}
		if rapid.Bool().Draw(t, "inline") {
			it.Inline = append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "bytes")...)
		}
		it.Loc = meta.Location{File: name.Draw(t, "in"), Offset: rapid.Int64().Draw(t, "at"), Length: rapid.Int64().Draw(t, "length")}
		it.Loc.Sums = rapid.SliceOfN(rapid.Uint32(), 0, 3).Draw(t, "sums")
		if rapid.Bool().Draw(t, "detail") {
			it.Loc.Detail = &meta.Detail{
				Key: name.Draw(t, "key"), Transforms: rapid.SliceOfN(name, 0, 2).Draw(t, "transforms"),
				StorageData: rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "storage data"),
			}
		}
		r.Items = append(r.Items, it)
	}
	for range rapid.IntRange(0, meta.MaxPhases).Draw(t, "phases") {
		r.Phases = append(r.Phases, meta.Phase{
			Name: name.Draw(t, "phase"), Start: time.Duration(rapid.Int64().Draw(t, "start")),
			End: time.Duration(rapid.Int64().Draw(t, "end")), Bytes: rapid.Int64().Draw(t, "moved"),
		})
	}
	return r
}

// nilIsEmpty treats nil and empty lists as equal, but not for Offset and Inline, which
// have a meaning for both.
var nilIsEmpty = cmp.FilterPath(func(p cmp.Path) bool {
	switch p.Last().String() {
	case ".Sums", ".Transforms", ".StorageData", ".Items", ".Files":
		return true
	}
	return false
}, cmpopts.EquateEmpty())

func TestAnyResultsRoundTrip(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		r := drawResults(t)
		b := must.Get(codec.Encode(r))(t)
		got, err := codec.Decode(b)
		if d := cmp.Diff(r, got, nilIsEmpty); d != "" || err != nil {
			t.Fatalf("Decode(Encode), %v: -want +got\n%s", err, d)
		}
		for n := range b {
			if _, err := codec.Decode(b[:n]); !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("Decode of the first %d of %d bytes: %v; want ErrMalformed", n, len(b), err)
			}
		}
	})
}

func TestDecodeResultsBoundsMemory(t *testing.T) {
	const huge = "\xff\xff\xff\xff\x0f" // 2³²-1
	for name, in := range map[string]string{
		"files": huge, "items": "\x00" + huge, "a name": "\x00\x01" + huge + "aaaaaaaaaaaa",
		"dimensions": "\x00\x01\x01a\x01" + huge + "aaaaaaaaaa", "dimensions that are not there": "\x00\x01\x01a\x01\x40aaaaaaaaaa",
		"inline": "\x00\x01\x01a\x00\x00\x01" + huge + "aaaa", "file number": "\x00\x01\x01a\x00\x00\x00" + huge + "aaaa",
		"sums": "\x00\x01\x01a\x00\x00\x00\x00\x01f\x00\x00" + huge, "transforms": "\x00\x01\x01a\x00\x00\x00\x00\x01f\x00\x00\x00\x01\x01k" + huge,
		"a hint": "\x00\x01\x01a\x00\xff" + huge + "\x00\x00\x01f\x00\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			n := allocated(func() {
				if _, err := codec.Decode([]byte(in)); !errors.Is(err, wire.ErrMalformed) {
					t.Errorf("Decode(%q) = %v; want ErrMalformed", in, err)
				}
			})
			if n > 1<<16 {
				t.Errorf("Decode(%q) took %d bytes", in, n)
			}
		})
	}
}

// allocated returns the bytes that fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestTotals(t *testing.T) {
	if got := some.Bytes(); got != 1<<40 {
		t.Errorf("Bytes = %d; want the bytes of the files", got)
	}
	s := storage.ReadStats{Needed: 1, Rounded: 2, Read: 3, Requests: 4, Received: 5}
	s.Add(storage.ReadStats{Needed: 10, Rounded: 20, Read: 30, Requests: 40, Received: 50})
	if want := (storage.ReadStats{Needed: 11, Rounded: 22, Read: 33, Requests: 44, Received: 55}); s != want {
		t.Errorf("Add = %+v; want %+v", s, want)
	}
}

func TestErrorsAreDistinct(t *testing.T) {
	all := []error{
		storage.ErrNotFound, storage.ErrIncomplete, storage.ErrCorrupt, storage.ErrVersion, storage.ErrUncertain,
		storage.ErrChanged, storage.ErrExists,
	}
	for i, a := range all {
		for j, b := range all {
			if errors.Is(fmt.Errorf("file: %w", a), b) != (i == j) {
				t.Errorf("errors.Is(%v, %v) = %v", a, b, i != j)
			}
		}
	}
}

func FuzzDecodeResults(f *testing.F) {
	b := must.Get(codec.Encode(some))(f)
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := codec.Decode(b)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("Decode: %v; want ErrMalformed", err)
			}
			return
		}
		again, err := codec.Encode(r)
		if err != nil {
			t.Fatalf("Encode of what was decoded: %v", err)
		}
		s, err := codec.Decode(again)
		if d := cmp.Diff(r, s); d != "" || err != nil {
			t.Fatalf("decoded again, %v: -first +second\n%s", err, d)
		}
	})
}
