package delta

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
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
	ctx, store := t.Context(), folderOf(t, run, i)
	rng := Range{Len: int64(len(data)), Width: width}
	if i == 0 {
		h := NewHasher([]Range{rng})
		for at, step := 0, 100_000; at < len(data); at += step { // not the cuts of segments
			h.Add(data[at:min(at+step, len(data))], int64(at))
		}
		must.Get(blob.WriteAll(ctx, store, "data", data, nil))(t)
		table := h.Finish("data", int64(len(data)), crc32c.Checksum(data))
		must.Get(blob.WriteAll(ctx, store, "data.delta", table.Append(nil), nil))(t)
		return table
	}
	var folders []string
	for k := range i {
		folders = append(folders, fmt.Sprintf("step-%d", k))
	}
	rng.Base = must.Get(OpenSource(ctx, folderOf(t, run, i-1), folders[i-1], "data", "data.delta", i == 1))(t)
	defer rng.Base.Close()
	e := NewEncoder([]Range{rng}, folders)
	var out []byte
	at := 0
	code := make([]byte, SegmentBytes)
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

// change changes a share of the elements in their last bit.
func change(data []byte, width int, share float64, r *rand.Rand) {
	for range int(share * float64(len(data)/width)) {
		data[r.IntN(len(data)/width)*width] ^= 1
	}
}

// A file is read as it was written, at any place, after each of several saves with changes
// of several kinds.
func TestReadsWhatWasWritten(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
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
			table := write(t, run, i, data, width)
			checkBounds(rt, table, i)
			if i == 0 {
				continue
			}
			rd := must.Get(Open(t.Context(), folderOf(t, run, i), "data.delta"))(t)
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

func checkBounds(t *rapid.T, table *Table, save int) {
	for i, s := range table.Segments {
		if len(s.Bodies) > MaxBodies || save > 0 && len(s.Bodies) > save+1 {
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
			_, err := Open(t.Context(), folderOf(t, run, 1), "data.delta")
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

func TestTableRoundTrip(t *testing.T) {
	b := sampleTable.Append(make([]byte, 100))
	store := new(mem.Store)
	must.Get(blob.WriteAll(t.Context(), store, "x", b, nil))(t)
	r := must.Get(store.Open(t.Context(), "x"))(t)
	defer r.Close()
	got, err := ReadTable(t.Context(), r)
	if d := cmp.Diff(sampleTable, got); err != nil || d != "" {
		t.Errorf("ReadTable: %v -want +got\n%s", err, d)
	}
	// Every damaged byte of table and tail is noticed.
	for i := 100; i < len(b); i++ {
		bad := bytes.Clone(b)
		bad[i] ^= 1 << (i % 8)
		must.Get(blob.WriteAll(t.Context(), store, "x", bad, nil))(t)
		r := must.Get(store.Open(t.Context(), "x"))(t)
		if _, err := ReadTable(t.Context(), r); !errors.Is(err, ErrTable) && !errors.Is(err, storage.ErrVersion) {
			t.Errorf("byte %d was changed: %v", i, err)
		}
		r.Close()
	}
}

// Tables that contradict themselves are refused.
func TestHostileTables(t *testing.T) {
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
		bad := *sampleTable
		bad.Files = append([]File{}, bad.Files...)
		bad.Segments = nil
		for _, s := range sampleTable.Segments {
			s.Bodies = append([]Body{}, s.Bodies...)
			bad.Segments = append(bad.Segments, s)
		}
		change(&bad)
		b := bad.Append(make([]byte, 100))
		store := new(mem.Store)
		must.Get(blob.WriteAll(t.Context(), store, "x", b, nil))(t)
		r := must.Get(store.Open(t.Context(), "x"))(t)
		if _, err := ReadTable(t.Context(), r); !errors.Is(err, ErrTable) {
			t.Errorf("%s: ReadTable = %v; want %v", claim, err, ErrTable)
		}
		r.Close()
	}
}

func many(b []Body) []Body {
	for len(b) <= MaxBodies {
		b = append(b, b[len(b)-1])
	}
	return b
}

func FuzzTable(f *testing.F) {
	f.Add(sampleTable.Append(nil)[:len(sampleTable.Append(nil))-tailBytes], int64(100))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0}, int64(0))
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
	rd := must.Get(Open(t.Context(), folderOf(t, run, 5), "data.delta"))(t)
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

// BenchmarkReadChain reads the end of a chain of saves with small changes.
func BenchmarkReadChain(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	data := make([]byte, 32<<20)
	for i := 0; i < len(data); i += 2 {
		binary.LittleEndian.PutUint16(data[i:], uint16(0x3c00+r.NormFloat64()*300))
	}
	run := new(mem.Store)
	for i := range MaxBodies {
		if i > 0 {
			change(data, 2, 0.015, r)
		}
		write(b, run, i, data, 2)
	}
	rd := must.Get(Open(b.Context(), folderOf(b, run, MaxBodies-1), "data.delta"))(b)
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
		"BLAKE3":  func() { HashOf(p) },
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
