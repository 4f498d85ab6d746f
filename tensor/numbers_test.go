package tensor

import (
	"slices"
	"testing"
)

func TestNumbersShareMemory(t *testing.T) {
	mem := bytesOf([]uint64{1 << 32, 7})
	got := Numbers[uint32](mem[:15]) // three, and a rest
	if want := []uint32{0, 1, 7}; !slices.Equal(got, want) {
		t.Fatalf("Numbers = %v; want %v", got, want)
	}
	got[2] = 9
	if mem[8] != 9 {
		t.Errorf("byte 8 = %d after writing to the numbers; want 9", mem[8])
	}
	if got := Numbers[float64](nil); len(got) != 0 {
		t.Errorf("Numbers of nothing = %v; want none", got)
	}
}

func TestAligned(t *testing.T) {
	mem := bytesOf(make([]uint64, 4))
	for _, d := range DTypes() {
		step := d.Size() // the alignment that Go needs; for complex numbers, of a part
		if d.IsComplex() {
			step /= 2
		}
		for off := range 16 {
			if got, want := d.Aligned(mem[off:]), off%step == 0; got != want {
				t.Errorf("%v aligned at %d = %v; want %v", d, off, got, want)
			}
		}
	}
	if Invalid.Aligned(mem) {
		t.Error("an invalid type is aligned; want false")
	}
}
