package progress

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestProgressSumsUpToThePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var told int64
		p := &Share{
			Plan:  rapid.Int64Range(0, math.MaxInt64).Draw(t, "plan"),
			Total: rapid.Int64Range(1, math.MaxInt64).Draw(t, "total"),
		}
		p.Tell = func(n int64) {
			if n <= 0 {
				t.Errorf("told of %d bytes", n)
			}
			told += n
		}
		for left := p.Total; left > 0; {
			n := rapid.Int64Range(1, left).Draw(t, "moved")
			if rapid.IntRange(0, 3).Draw(t, "end") == 0 {
				n = left
			}
			left -= n
			p.Add(n)
			if told > p.Plan {
				t.Fatalf("told of %d bytes of %d", told, p.Plan)
			}
		}
		if told != p.Plan {
			t.Errorf("told of %d bytes in all; want %d", told, p.Plan)
		}
	})
}

func TestProgressWithoutAListener(t *testing.T) {
	p := &Share{Plan: 10, Total: 10}
	p.Add(5) // does not panic
	if p.moved != 0 {
		t.Errorf("moved = %d; nobody asked", p.moved)
	}
}
