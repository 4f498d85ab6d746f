package native

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestProgressSumsUpToThePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var told int64
		p := &progress{
			plan:  rapid.Int64Range(0, math.MaxInt64).Draw(t, "plan"),
			total: rapid.Int64Range(1, math.MaxInt64).Draw(t, "total"),
		}
		p.tell = func(n int64) {
			if n <= 0 {
				t.Errorf("told of %d bytes", n)
			}
			told += n
		}
		for left := p.total; left > 0; {
			n := rapid.Int64Range(1, left).Draw(t, "moved")
			if rapid.IntRange(0, 3).Draw(t, "end") == 0 {
				n = left
			}
			left -= n
			p.add(n)
			if told > p.plan {
				t.Fatalf("told of %d bytes of %d", told, p.plan)
			}
		}
		if told != p.plan {
			t.Errorf("told of %d bytes in all; want %d", told, p.plan)
		}
	})
}

func TestProgressWithoutAListener(t *testing.T) {
	p := &progress{plan: 10, total: 10}
	p.add(5) // does not panic
	if p.moved != 0 {
		t.Errorf("moved = %d; nobody asked", p.moved)
	}
}
