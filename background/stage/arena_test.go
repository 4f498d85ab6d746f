package stage

import (
	"errors"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestArenaHandsOutFreeMemory allocates and frees at random: allocations never
// overlap, lie in the arena, and all of the memory can be used again.
func TestArenaHandsOutFreeMemory(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		const pages = 32
		a := must.Get(NewArena(pages * pageBytes))(t)
		defer a.Close()
		type extent struct{ off, len int64 }
		var held []extent
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "free") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				a.release(held[i].off, held[i].len)
				held = append(held[:i], held[i+1:]...)
				continue
			}
			n := rapid.Int64Range(1, 8*pageBytes).Draw(t, "bytes")
			off, ok, freed := a.alloc(n)
			if !ok {
				if freed == nil {
					t.Fatal("alloc without memory returned no channel")
				}
				continue
			}
			for _, h := range held {
				if off < h.off+roundUp(h.len) && h.off < off+n {
					t.Fatalf("%d bytes at %d overlap %+v", n, off, h)
				}
			}
			if off < 0 || off+n > a.Size() {
				t.Fatalf("%d bytes at %d of %d", n, off, a.Size())
			}
			held = append(held, extent{off, n})
		}
		var used int64
		for _, h := range held {
			used += roundUp(h.len)
		}
		if now, peak := a.Used(); now != used || peak < now || peak > a.Size() {
			t.Fatalf("Used = %d, %d; %d bytes are in use", now, peak, used)
		}
		for _, h := range held {
			a.release(h.off, h.len)
		}
		if off, ok, _ := a.alloc(a.Size()); !ok || off != 0 {
			t.Fatalf("the whole arena is not free again: %+v", a.free)
		}
	})
}

func TestArenaTellsWhenMemoryIsFreed(t *testing.T) {
	a := must.Get(NewArena(4 * pageBytes))(t)
	defer a.Close()
	off, _, _ := a.alloc(a.Size())
	_, ok, freed := a.alloc(1)
	if ok {
		t.Fatal("alloc of a full arena succeeded")
	}
	select {
	case <-freed:
		t.Fatal("the channel is closed before memory was freed")
	default:
	}
	a.release(off, a.Size())
	<-freed
}

func TestArenaSizes(t *testing.T) {
	for _, size := range []int64{-1, 0, pageBytes, minArena - 1} {
		if _, err := NewArena(size); !errors.Is(err, ErrArena) {
			t.Errorf("NewArena(%d) = %v; want ErrArena", size, err)
		}
	}
	a := must.Get(NewArena(minArena + pageBytes - 1))(t)
	if a.Size() != minArena {
		t.Errorf("Size = %d; want whole pages", a.Size())
	}
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestWindow(t *testing.T) {
	for _, size := range []int64{minArena, 64 << 10, 1 << 20, 100 << 20, 1 << 30, 1 << 40} {
		start, block := Window(size)
		if start <= 0 || start >= size || start%pageBytes != 0 || block <= 0 || block%pageBytes != 0 || start+block > size || (size-start)/block > 64 {
			t.Errorf("Window(%d) = %d, %d", size, start, block)
		}
	}
}
