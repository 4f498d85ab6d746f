package saves

import (
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A save of many small tensors makes few allocations for each.
func TestSaveAllocatesLittleForATensor(t *testing.T) {
	const tensors, most = 5000, 14
	state := cairn.State{}
	for i := range tensors {
		x := must.Get(tensor.New(tensor.Float32, []int64{4}))(t)
		state[fmt.Sprintf("layers.%d.weight", i)] = x
	}
	n := testing.AllocsPerRun(1, func() {
		must.Get(cairn.Save(t.Context(), new(mem.Store), state, nil))(t)
	})
	if n > most*tensors {
		t.Errorf("%.1f allocations for a tensor; want at most %d", n/tensors, most)
	}
	t.Logf("%.1f allocations for a tensor", n/tensors)
}
