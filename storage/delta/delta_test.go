package delta

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

// folderOf returns a folder of a run.
func folderOf(t testing.TB, run blob.Store, i int) blob.Store {
	return must.Get(blob.NewSub(run, fmt.Sprintf("step-%d", i)))(t)
}

// write writes data as save i of a run: whole with its hashes if i is 0, and otherwise on
// the base of the save before. The data is one range of elements of width bytes.
func write(t testing.TB, run blob.Store, i int, data []byte, width int) *Table {
	t.Helper()
	return writeWith(t, run, i, data, width, MaxBodies, nil)
}

// writeWith is write with a bound and a cache.
func writeWith(t testing.TB, run blob.Store, i int, data []byte, width, maxBodies int, c *Cache) *Table {
	t.Helper()
	ctx, store := t.Context(), folderOf(t, run, i)
	segs := c.Of(store, "data")
	rng := Range{Len: int64(len(data)), Width: width}
	if i == 0 {
		h := NewHasher("data", []Range{rng}, segs)
		for at, step := 0, 100_000; at < len(data); at += step { // not the cuts of segments
			h.Add(data[at:min(at+step, len(data))], int64(at))
		}
		must.Get(blob.WriteAll(ctx, store, "data", data, nil))(t)
		table := h.Finish(int64(len(data)), crc32c.Checksum(data))
		must.Get(blob.WriteAll(ctx, store, "data.delta", table.Append(nil), nil))(t)
		return table
	}
	var folders []string
	for k := range i {
		folders = append(folders, fmt.Sprintf("step-%d", k))
	}
	rng.Base = must.Get(OpenSource(ctx, folderOf(t, run, i-1), folders[i-1], "data.delta", segs))(t)
	defer rng.Base.Close()
	e := NewEncoder("data.delta", []Range{rng}, folders, maxBodies, segs)
	var out []byte
	at := 0
	code := make([]byte, SegmentBytes+SegmentBytes/4)
	for k, n := range e.Lengths() {
		p := must.Get(e.Encode(ctx, k, data[at:at+n], code))(t)
		if len(p) > 0 {
			e.Stored(k, int64(len(out)))
			out = append(out, p...)
		}
		at += n
	}
	table := e.Finish(int64(len(data)), crc32c.Checksum(data))
	must.Get(blob.WriteAll(ctx, store, "data.delta", table.Append(out), nil))(t)
	return table
}

// mutate changes data in one of several ways.
func mutate(data []byte, width int, r *rand.Rand) {
	switch r.IntN(4) {
	case 0:
	case 1:
		change(data, width, 0.01, r)
	case 2:
		change(data[:len(data)/2/width*width], width, 0.01, r)
	case 3:
		for k := range data[:len(data)/3] {
			data[k] = byte(r.Uint32())
		}
	}
}

// change changes a share of the elements in their last bit.
func change(data []byte, width int, share float64, r *rand.Rand) {
	for range int(share * float64(len(data)/width)) {
		data[r.IntN(len(data)/width)*width] ^= 1
	}
}

// A file is read as it was written, at any place, after each of several saves with changes
// of several kinds.
func TestReadsWhatWasWritten(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		r := rand.New(rand.NewPCG(seed, 1))
		width := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(rt, "width")
		data := make([]byte, rapid.IntRange(1, 5*SegmentBytes).Draw(rt, "length"))
		for i := range data {
			data[i] = byte(r.NormFloat64() * 20)
		}
		run := new(mem.Store)
		for i := range rapid.IntRange(2, 11).Draw(rt, "saves") {
			if i > 0 {
				mutate(data, width, r)
			}
			table := write(t, run, i, data, width)
			checkBounds(rt, table, i, MaxBodies)
			if i == 0 {
				continue
			}
			rd := must.Get(Open(t.Context(), folderOf(t, run, i), "data.delta", nil))(t)
			for range 8 {
				off := r.IntN(len(data))
				n := 1 + r.IntN(len(data)-off)
				p := make([]byte, n)
				if err := rd.ReadAt(t.Context(), p, int64(off)); err != nil || !bytes.Equal(p, data[off:off+n]) {
					rt.Fatalf("save %d: ReadAt of %d bytes at %d: %v, or other bytes", i, n, off, err)
				}
			}
			if err := rd.ReadAt(t.Context(), make([]byte, 2), int64(len(data)-1)); !errors.Is(err, blob.ErrRange) {
				rt.Fatalf("ReadAt beyond the end = %v", err)
			}
			must.Do(t, rd.Close())
			if err := rd.ReadAt(t.Context(), make([]byte, 1), 0); !errors.Is(err, blob.ErrClosed) {
				rt.Fatalf("ReadAt after Close = %v", err)
			}
		}
	})
}

func checkBounds(t *rapid.T, table *Table, save, maxBodies int) {
	for i, s := range table.Segments {
		if len(s.Bodies) > maxBodies || save > 0 && len(s.Bodies) > save+1 {
			t.Fatalf("save %d: segment %d has %d bodies", save, i, len(s.Bodies))
		}
	}
}

// Equal segments are referred to, segments that changed in few bits are differences, and
// others are stored whole.
func TestHowSegmentsAreStored(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 3*SegmentBytes)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	run := new(mem.Store)
	write(t, run, 0, data, 2)
	change(data[SegmentBytes:2*SegmentBytes], 2, 0.01, r)
	for i := range data[2*SegmentBytes:] {
		data[2*SegmentBytes+i] = byte(r.Uint32())
	}
	table := write(t, run, 1, data, 2)
	if d := cmp.Diff([]File{{Folder: "step-0", Name: "data", Size: int64(len(data))}}, table.Files); d != "" {
		t.Errorf("Files: -want +got\n%s", d)
	}
	kinds := ""
	for _, s := range table.Segments {
		for _, b := range s.Bodies {
			kinds += fmt.Sprintf(" %d in %d", b.Kind, b.File)
		}
		kinds += ";"
	}
	if want := " 0 in 1; 0 in 1 1 in 0; 0 in 0;"; kinds != want {
		t.Errorf("the bodies are%s; want%s", kinds, want)
	}
	if got := table.Segments[1].Bodies[1].Len; got > SegmentBytes/25 {
		t.Errorf("the difference has %d bytes", got)
	}
}

// A missing, shorter or damaged file is named by the error.
func TestDamagedBase(t *testing.T) {
	data := bytes.Repeat([]byte("some bytes"), 100_000)
	for claim, c := range map[string]struct {
		change func(t *testing.T, s blob.Store)
		want   string
	}{
		"gone":    {func(t *testing.T, s blob.Store) { must.Do(t, s.Remove(t.Context(), "data")) }, "which is gone"},
		"shorter": {func(t *testing.T, s blob.Store) { must.Get(blob.WriteAll(t.Context(), s, "data", data[:10], nil))(t) }, "which has 10 bytes instead of"},
	} {
		t.Run(claim, func(t *testing.T) {
			run := new(mem.Store)
			write(t, run, 0, data, 1)
			write(t, run, 1, data, 1)
			c.change(t, folderOf(t, run, 0))
			_, err := Open(t.Context(), folderOf(t, run, 1), "data.delta", nil)
			if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "step-0") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open = %v; want %v and %q", err, storage.ErrCorrupt, c.want)
			}
		})
	}
}

// A base that was damaged is not used for differences.
func TestDamagedBaseIsNotExtended(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, SegmentBytes)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	run := new(mem.Store)
	write(t, run, 0, data, 2)
	bad := bytes.Clone(data)
	bad[77] ^= 8
	must.Get(blob.WriteAll(t.Context(), folderOf(t, run, 0), "data", bad, nil))(t)
	change(data, 2, 0.01, r)
	table := write(t, run, 1, data, 2)
	if b := table.Segments[0].Bodies; len(b) != 1 || b[0].File != 0 {
		t.Errorf("the bodies are %+v; want the segment as a whole", b)
	}
}

var sampleTable = &Table{
	Size: SegmentBytes + 70, CRC32C: 0xdeadbeef, Files: []File{{Folder: "step-1", Name: "a.safetensors", Size: 1 << 40}, {Name: "b.delta", Size: 99}},
	Segments: []Segment{
		{Len: SegmentBytes, Width: 2, Hash: Hash{1, 2}, Bodies: []Body{{1, 1 << 39, SegmentBytes, Whole}, {2, 9, 80, Diff}, {0, 5, 7, Diff}}},
		{Len: 70, Width: 16, Hash: Hash{3}, Bodies: []Body{{0, 12, 70, Whole}}},
	},
}

// stepTable is a table with steps.
var stepTable = &Table{
	Size: 100, CRC32C: 0x12345678, Files: []File{{Folder: "step-1", Name: "a.delta", Size: 1000}}, Past: []File{{Folder: "step-0", Name: "z.delta"}, {Name: "y"}},
	Segments: []Segment{
		{Len: 40, Width: 2, Hash: Hash{1}, Bodies: []Body{{1, 100, 40, Whole}, {0, 0, 9, Diff}}, Step: &Step{Body{0, 77, 0, Diff}, Body{1, 140, 3, Diff}}},
		{Len: 50, Width: 4, Hash: Hash{2}, Bodies: []Body{{0, 9, 50, Whole}}, Step: &Step{Body{1, 5, 0, Whole}, Body{0, 59, 11, Diff}}},
		{Len: 10, Width: 1, Hash: Hash{3}, Bodies: []Body{{1, 143, 10, Whole}}},
	},
}

func TestTableRoundTrip(t *testing.T) {
	for name, table := range map[string]*Table{"table": sampleTable, "steps": stepTable} {
		b := table.Append(make([]byte, 100))
		golden(t, name, b[100:])
		store := new(mem.Store)
		must.Get(blob.WriteAll(t.Context(), store, "x", b, nil))(t)
		r := must.Get(store.Open(t.Context(), "x"))(t)
		defer r.Close()
		got, err := ReadTable(t.Context(), r)
		if d := cmp.Diff(table, got); err != nil || d != "" {
			t.Errorf("%s: ReadTable: %v -want +got\n%s", name, err, d)
		}
		// Every damaged byte of table and tail is noticed.
		for i := 100; i < len(b); i++ {
			bad := bytes.Clone(b)
			bad[i] ^= 1 << (i % 8)
			must.Get(blob.WriteAll(t.Context(), store, "x", bad, nil))(t)
			r := must.Get(store.Open(t.Context(), "x"))(t)
			if _, err := ReadTable(t.Context(), r); !errors.Is(err, ErrTable) && !errors.Is(err, storage.ErrVersion) {
				t.Errorf("%s: byte %d was changed: %v", name, i, err)
			}
			r.Close()
		}
	}
}

var update = flag.Bool("update", false, "write the golden files")

// golden compares b with a golden file.
func golden(t *testing.T, name string, b []byte) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name+".hex")
	text := hex.Dump(b)
	if *update {
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o777))
		must.Do(t, os.WriteFile(path, []byte(text), 0o666))
	}
	if want := string(must.Get(os.ReadFile(path))(t)); text != want {
		t.Errorf("%s has changed: -want +got\n%s", path, cmp.Diff(want, text))
	}
}

// A program refuses a version of delta files that it does not read, by its number.
func TestOtherVersions(t *testing.T) {
	for _, v := range []byte{1, 2, version + 1} {
		b := stepTable.Append(make([]byte, 100))
		b[len(b)-12] = v
		store := new(mem.Store)
		must.Get(blob.WriteAll(t.Context(), store, "x", b, nil))(t)
		r := must.Get(store.Open(t.Context(), "x"))(t)
		if _, err := ReadTable(t.Context(), r); !errors.Is(err, storage.ErrVersion) || !strings.Contains(err.Error(), fmt.Sprintf("version %d of delta files", v)) {
			t.Errorf("ReadTable of version %d = %v; want %v", v, err, storage.ErrVersion)
		}
		r.Close()
	}
}

// Tables that contradict themselves are refused.
func TestHostileTables(t *testing.T) {
	refuse := func(claim string, from *Table, change func(*Table)) {
		bad := cloneTable(from)
		change(bad)
		b := bad.Append(make([]byte, 100))
		store := new(mem.Store)
		must.Get(blob.WriteAll(t.Context(), store, "x", b, nil))(t)
		r := must.Get(store.Open(t.Context(), "x"))(t)
		defer r.Close()
		if _, err := ReadTable(t.Context(), r); !errors.Is(err, ErrTable) {
			t.Errorf("%s: ReadTable = %v; want %v", claim, err, ErrTable)
		}
	}
	for claim, change := range map[string]func(*Table){
		"a body beyond its file":          func(s *Table) { s.Segments[1].Bodies[0].Off = 31 },
		"a body beyond another file":      func(s *Table) { s.Segments[0].Bodies[1].Off = 20 },
		"a negative offset":               func(s *Table) { s.Segments[0].Bodies[1].Off = -1 },
		"a difference to nothing":         func(s *Table) { s.Segments[1].Bodies[0].Kind = Diff },
		"two whole bodies":                func(s *Table) { s.Segments[0].Bodies[1].Kind, s.Segments[0].Bodies[1].Len = Whole, SegmentBytes },
		"no body":                         func(s *Table) { s.Segments[1].Bodies = nil },
		"too many bodies":                 func(s *Table) { s.Segments[0].Bodies = append(make([]Body, 0), many(s.Segments[0].Bodies)...) },
		"elements of three bytes":         func(s *Table) { s.Segments[1].Width = 3 },
		"an empty segment":                func(s *Table) { s.Segments[1].Len, s.Segments[1].Bodies[0].Len = 0, 0 },
		"segments that are too short":     func(s *Table) { s.Size++ },
		"segments that are too long":      func(s *Table) { s.Size-- },
		"a folder that is not beside":     func(s *Table) { s.Files[0].Folder = "../x" },
		"a folder below another":          func(s *Table) { s.Files[0].Folder = "a/b" },
		"a name that leaves its folder":   func(s *Table) { s.Files[1].Name = "../b" },
		"a difference longer than itself": func(s *Table) { s.Segments[0].Bodies[1].Len = SegmentBytes + 1 },
	} {
		refuse(claim, sampleTable, change)
	}
	for claim, change := range map[string]func(*Table){
		"a step beyond its file":         func(s *Table) { s.Segments[1].Step.Diff.Off = 90 },
		"a step beyond another file":     func(s *Table) { s.Segments[0].Step.Diff.Off = 998 },
		"a step at a negative offset":    func(s *Table) { s.Segments[0].Step.Diff.Off = -1 },
		"a step from a negative offset":  func(s *Table) { s.Segments[0].Step.From.Off = -1 },
		"a step longer than its segment": func(s *Table) { s.Segments[1].Step.Diff.Off, s.Segments[1].Step.Diff.Len = 0, 51 },
		"a step from an unknown kind":    func(s *Table) { s.Segments[0].Step.From.Kind = 2 },
		"a past file that is not beside": func(s *Table) { s.Past[0].Folder = "../x" },
		"a past name that leaves":        func(s *Table) { s.Past[1].Name = "/y" },
	} {
		refuse(claim, stepTable, change)
	}
}

// cloneTable returns a copy of a table.
func cloneTable(t *Table) *Table {
	out := *t
	out.Files, out.Past, out.Segments = slices.Clone(t.Files), slices.Clone(t.Past), slices.Clone(t.Segments)
	for i := range out.Segments {
		s := &out.Segments[i]
		s.Bodies = slices.Clone(s.Bodies)
		if s.Step != nil {
			step := *s.Step
			s.Step = &step
		}
	}
	return &out
}

func many(b []Body) []Body {
	for len(b) <= LongBodies {
		b = append(b, b[len(b)-1])
	}
	return b
}

func FuzzTable(f *testing.F) {
	for _, t := range []*Table{sampleTable, stepTable} {
		b := t.Append(nil)
		f.Add(b[:len(b)-tailBytes], int64(100))
	}
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0}, int64(0))
	f.Fuzz(func(t *testing.T, b []byte, body int64) {
		table, err := decode(b, body)
		if err != nil {
			if !errors.Is(err, ErrTable) {
				t.Fatalf("decode = %v", err)
			}
			return
		}
		if again := table.Append(nil); !bytes.Equal(again[:len(again)-tailBytes], b) {
			t.Fatalf("a table of %x is written as %x", b, again)
		}
		_ = startsOf(table)
	})
}

// Reads from several goroutines do not disturb each other.
func TestConcurrentReads(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	data := make([]byte, 4*SegmentBytes+33)
	run := new(mem.Store)
	for i := range 6 {
		if i > 0 {
			change(data, 2, 0.02, r)
		}
		write(t, run, i, data, 2)
	}
	rd := must.Get(Open(t.Context(), folderOf(t, run, 5), "data.delta", nil))(t)
	defer rd.Close()
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			p := make([]byte, 2*SegmentBytes)
			off := k * SegmentBytes / 4
			if err := rd.ReadAt(context.Background(), p, int64(off)); err != nil || !bytes.Equal(p, data[off:off+len(p)]) {
				t.Errorf("ReadAt at %d: %v, or other bytes", off, err)
			}
		})
	}
	wg.Wait()
}

// BenchmarkReadChain reads the end of chains of saves with small changes.
func BenchmarkReadChain(b *testing.B) {
	for _, n := range []int{MaxBodies, 16, 32} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkChain(b, n) })
	}
}

func benchmarkChain(b *testing.B, bodies int) {
	r := rand.New(rand.NewPCG(7, 8))
	data := weights(32<<20, r)
	run := new(mem.Store)
	for i := range bodies {
		if i > 0 {
			change(data, 2, 0.015, r)
		}
		writeWith(b, run, i, data, 2, bodies, nil)
	}
	rd := must.Get(Open(b.Context(), folderOf(b, run, bodies-1), "data.delta", nil))(b)
	defer rd.Close()
	b.SetBytes(int64(len(data)))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		p := make([]byte, 8<<20)
		for pb.Next() {
			for off := 0; off < len(data); off += len(p) {
				if err := rd.ReadAt(context.Background(), p, int64(off)); err != nil {
					b.Error(err)
				}
			}
		}
	})
}

// BenchmarkHash compares hashes of one segment.
func BenchmarkHash(b *testing.B) {
	p := make([]byte, SegmentBytes)
	for name, sum := range map[string]func(){
		"XXH3":    func() { HashOf(p) },
		"SHA-256": func() { sha256.Sum256(p) },
		"CRC-32C": func() { crc32c.Checksum(p) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				sum()
			}
		})
	}
}
