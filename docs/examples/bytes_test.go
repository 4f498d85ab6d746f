package examples

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/value"
)

// placing has the bytes of one value put into memory of the caller, such as memory that other
// processes see.
type placing struct {
	plan.DefaultLoad
	name   string
	memory []byte
}

// ResolveBytes returns the memory for the encoded bytes of a value. The default planner decodes
// the other values.
func (p *placing) ResolveBytes(it *plan.ReadItem, size int) ([]byte, error) {
	if it.Dest.FQN != p.name {
		return nil, nil
	}
	if size > len(p.memory) {
		return nil, fmt.Errorf("%q has %d bytes, and there is memory for %d", p.name, size, len(p.memory))
	}
	return p.memory[:size], nil
}

// LoadBytes gets that memory back, full and verified.
func (p *placing) LoadBytes(it *plan.ReadItem, codec string, data []byte) error {
	if it.Dest.FQN != p.name || codec != value.Raw {
		return p.DefaultLoad.LoadBytes(it, codec, data)
	}
	slot, err := p.Slot(it.Dest.FQN)
	if err != nil {
		return err
	}
	return slot.Set(data)
}

func Example_placeBytes() {
	ctx := context.Background()
	store := new(mem.Store)
	_, err := cairn.Save(ctx, store, cairn.State{"table": []byte("0123456789"), "step": 7}, nil)
	check(err)

	shared := make([]byte, 16)
	state := cairn.State{"table": []byte(nil), "step": 0}
	_, err = cairn.Load(ctx, store, state, &cairn.LoadOptions{Planner: &placing{name: "table", memory: shared}})
	check(err)
	fmt.Printf("%q %q %v\n", shared, state["table"], state["step"])
	// Output:
	// "0123456789\x00\x00\x00\x00\x00\x00" "0123456789" 7
}
