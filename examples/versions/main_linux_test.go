package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
)

// The demo and background saves start this program again: as a rank, or as a saver.
func TestMain(m *testing.M) {
	saver.Main()
	if new(tcp.Env).Launched() {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// Every version that a server reports is the trainer's, whatever is killed or damaged.
func TestDemo(t *testing.T) {
	if err := demo(t.Context(), 12); err != nil {
		t.Fatal(err)
	}
}

// The digest does not depend on the sharding, and notices every bit.
func TestDigest(t *testing.T) {
	total := func(layout func(int) shard.Placed, ranks int, change bool) (sum digest) {
		for r := range ranks {
			model := must.Get(newModel(layout, ranks, r))(t)
			for v := int64(1); v <= 3; v++ {
				must.Do(t, trainStep(model, v))
			}
			if change && r == ranks-1 {
				last := model["norm"].(*shard.Tensor).Local().Contents()
				last[len(last)-1] ^= 0x80
			}
			sum = sum.plus(must.Get(digestOf(model))(t))
		}
		return sum
	}
	want := total(shard.Rows, 1, false)
	if got := total(shard.Columns, 2, false); got != want {
		t.Errorf("2 ranks with columns: %x; want %x", got, want)
	}
	if got := total(shard.Rows, 3, false); got != want {
		t.Errorf("3 ranks with rows: %x; want %x", got, want)
	}
	if got := total(shard.Rows, 3, true); got == want {
		t.Error("a bit that has changed was not noticed")
	}
}
