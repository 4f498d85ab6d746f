package delta

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// Readers and writers with caches of any size give the same bytes as those without, whatever
// versions and ranges are read, at the same time or one after the other.
func TestCacheChangesNoBytes(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		r := rand.New(rand.NewPCG(seed, 1))
		width := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(rt, "width")
		data := make([]byte, rapid.IntRange(1, 5*SegmentBytes).Draw(rt, "length"))
		for i := range data {
			data[i] = byte(r.NormFloat64() * 20)
		}
		sizes := rapid.SampledFrom([]int64{0, SegmentBytes, 2*SegmentBytes + 1, 1 << 30})
		writes, reads := NewCache(sizes.Draw(rt, "writer's cache")), NewCache(sizes.Draw(rt, "reader's cache"))
		maxBodies := rapid.SampledFrom([]int{1, 2, 3, MaxBodies, LongBodies}).Draw(rt, "bodies")
		run := new(mem.Store)
		var versions [][]byte
		for i := range rapid.IntRange(2, 14).Draw(rt, "saves") {
			if i > 0 {
				mutate(data, width, r)
			}
			checkBounds(rt, writeWith(t, run, i, data, width, maxBodies, writes), i, maxBodies)
			versions = append(versions, bytes.Clone(data))
			if r.IntN(8) == 0 {
				reads.Clear()
			}
			if r.IntN(8) == 0 {
				writes.Clear()
			}
			var wg sync.WaitGroup
			for k := range r.IntN(5) {
				v, n := i-min(i, r.IntN(3)), 1+r.IntN(4)
				if k == 0 {
					v = i
				}
				seed := r.Uint64()
				wg.Go(func() { readSomewhere(t, run, v, versions[v], n, reads, seed) })
			}
			wg.Wait()
			checkCache(rt, reads)
			checkCache(rt, writes)
		}
	})
}

// readSomewhere reads n ranges of version v and compares them with data.
func readSomewhere(t *testing.T, run blob.Store, v int, data []byte, n int, c *Cache, seed uint64) {
	store := folderOf(t, run, v)
	rd, err := Open(t.Context(), store, "data.delta", c.Of(store, "data"))
	if err != nil {
		t.Errorf("version %d: %v", v, err)
		return
	}
	defer rd.Close()
	r := rand.New(rand.NewPCG(seed, 2))
	for range n {
		off := r.IntN(len(data))
		p := make([]byte, 1+r.IntN(len(data)-off))
		if err := rd.ReadAt(context.Background(), p, int64(off)); err != nil || !bytes.Equal(p, data[off:off+len(p)]) {
			t.Errorf("version %d: ReadAt of %d bytes at %d: %v, or other bytes", v, len(p), off, err)
		}
	}
}

// checkCache checks that a cache counts right and keeps to its limit.
func checkCache(t *rapid.T, c *Cache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var n int64
	for _, e := range c.entries {
		n += int64(len(e.data))
	}
	if n != c.stats.Bytes || n > c.limit || c.order.Len() != len(c.entries) {
		t.Fatalf("the cache has %d bytes in %d segments, counts %d in %d, and may have %d", n, len(c.entries), c.stats.Bytes, c.order.Len(), c.limit)
	}
}

// counted counts the bytes that are read.
type counted struct {
	*mem.Store
	mu    sync.Mutex
	bytes int64
}

func (s *counted) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.Store.Open(ctx, name)
	return &countedReader{r, s}, err
}

type countedReader struct {
	blob.Reader
	s *counted
}

func (r *countedReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	r.s.mu.Lock()
	r.s.bytes += int64(len(p))
	r.s.mu.Unlock()
	return r.Reader.ReadAt(ctx, p, off)
}

func (s *counted) read() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.bytes
	s.bytes = 0
	return n
}

// A reader that has the version before in its cache reads only the changes, and a writer
// does not read its base.
func TestCacheSavesReads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 16*SegmentBytes)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	run := &counted{Store: new(mem.Store)}
	writes, reads := NewCache(1<<30), NewCache(1<<30)
	for i := range 9 {
		if i > 0 {
			change(data, 2, 0.01, r)
		}
		writeWith(t, run, i, data, 2, 4, writes)
		if n := run.read(); n > 64<<10 {
			t.Errorf("the writer of version %d read %d bytes", i, n)
		}
		if i == 1 {
			continue // its reader is two versions behind then
		}
		store := folderOf(t, run, i)
		rd := must.Get(Open(t.Context(), store, "data.delta", reads.Of(store, "data")))(t)
		p := make([]byte, len(data))
		if err := rd.ReadAt(t.Context(), p, 0); err != nil || !bytes.Equal(p, data) {
			t.Fatalf("version %d: %v, or other bytes", i, err)
		}
		must.Do(t, rd.Close())
		if n := run.read(); i > 0 && n > int64(len(data))/20 {
			t.Errorf("the reader of version %d read %d bytes of %d", i, n, len(data))
		}
	}
	if got := reads.Stats(); got.Bytes != int64(len(data)) || got.Hits != 7*16 || got.Misses != 16 {
		t.Errorf("Stats = %+v", got)
	}
	reads.Clear()
	if got := reads.Stats().Bytes; got != 0 {
		t.Errorf("%d bytes after Clear", got)
	}
}

// An error leaves no wrong bytes in the cache.
func TestCacheAfterError(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 4*SegmentBytes)
	run := new(mem.Store)
	cache := NewCache(1 << 30)
	write(t, run, 0, data, 2)
	change(data, 2, 0.01, r)
	write(t, run, 1, data, 2)
	before := bytes.Clone(data)
	readAll(t, run, 1, before, cache)
	change(data, 2, 0.01, r)
	write(t, run, 2, data, 2)
	two := folderOf(t, run, 2)
	good := must.Get(blob.ReadAll(t.Context(), two, "data.delta", 1<<30))(t)
	bad := bytes.Clone(good)
	for i := range 3000 {
		bad[i] ^= 0x55
	}
	must.Get(blob.WriteAll(t.Context(), two, "data.delta", bad, nil))(t)
	rd := must.Get(Open(t.Context(), two, "data.delta", cache.Of(two, "data")))(t)
	if err := rd.ReadAt(t.Context(), make([]byte, len(data)), 0); err == nil {
		t.Error("a damaged difference was applied")
	}
	must.Do(t, rd.Close())
	readAll(t, run, 1, before, cache)
	must.Get(blob.WriteAll(t.Context(), two, "data.delta", good, nil))(t)
	readAll(t, run, 2, data, cache)
}

func readAll(t *testing.T, run blob.Store, v int, data []byte, c *Cache) {
	t.Helper()
	store := folderOf(t, run, v)
	rd := must.Get(Open(t.Context(), store, "data.delta", c.Of(store, "data")))(t)
	defer rd.Close()
	p := make([]byte, len(data))
	if err := rd.ReadAt(t.Context(), p, 0); err != nil || !bytes.Equal(p, data) {
		t.Errorf("version %d: %v, or other bytes", v, err)
	}
}

// weights returns bytes like those of bf16 weights.
func weights(n int, r *rand.Rand) []byte {
	data := make([]byte, n)
	for i := 0; i < len(data); i += 2 {
		binary.LittleEndian.PutUint16(data[i:], uint16(0x3c00+r.NormFloat64()*300))
	}
	return data
}

// BenchmarkEncodeCached encodes a version of which the cache has the one before.
func BenchmarkEncodeCached(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	data := weights(32<<20, r)
	run := new(mem.Store)
	cache := NewCache(1 << 30)
	writeWith(b, run, 0, data, 2, LongBodies, cache)
	change(data, 2, 0.01, r)
	writeWith(b, run, 1, data, 2, LongBodies, cache)
	one := folderOf(b, run, 1)
	segs := cache.Of(folderOf(b, run, 2), "data")
	next := bytes.Clone(data)
	change(next, 2, 0.01, r)
	src := must.Get(OpenSource(b.Context(), one, "step-1", "data.delta", cache.Of(one, "data")))(b)
	code := make([]byte, SegmentBytes+SegmentBytes/4)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		e := NewEncoder("data.delta", []Range{{Len: int64(len(data)), Width: 2, Base: src}}, []string{"step-0", "step-1"}, LongBodies, segs)
		for k, n := range e.Lengths() {
			if _, err := e.Encode(b.Context(), k, next[k*SegmentBytes:][:n], code); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			s := src.segment(int64(k*SegmentBytes), n) // as it was
			last := &s.bodies[len(s.bodies)-1]
			segs.put(k, data[k*SegmentBytes:][:n], s.hash, state{segs.origin(last.file), last.Off, last.Kind})
			b.StartTimer()
		}
	}
}

// BenchmarkReadCached reads a version of which the cache has the one before.
func BenchmarkReadCached(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 8))
	data := weights(32<<20, r)
	run := new(mem.Store)
	for i := range 40 {
		if i > 0 {
			change(data, 2, 0.01, r)
		}
		writeWith(b, run, i, data, 2, LongBodies, NewCache(0))
	}
	cache := NewCache(1 << 30)
	readers := make([]*Reader, 40)
	for v := range readers {
		store := folderOf(b, run, v)
		readers[v] = must.Get(Open(b.Context(), store, "data.delta", cache.Of(store, "data")))(b)
	}
	p := make([]byte, 8<<20)
	b.SetBytes(int64(len(data)))
	v := 0
	for b.Loop() {
		if v == len(readers) {
			v = 0
		}
		if v == 0 {
			b.StopTimer()
		}
		for off := 0; off < len(data); off += len(p) {
			if err := readers[v].ReadAt(b.Context(), p, int64(off)); err != nil {
				b.Fatal(err)
			}
		}
		if v == 0 {
			b.StartTimer()
		}
		v++
	}
}
