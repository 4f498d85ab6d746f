package bench

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// states are the states of all ranks of a job that trains a transformer: bf16
// weights and two f32 moments, every tensor sharded by rows.
type states struct {
	byRank []cairn.State
	memory [][][]byte // by rank: the tensors' memory, in the order of names
	bytes  int64
}

// hidden is the width of the model.
const hidden = 2048

// newStates makes states of about so many bytes in all. Filled ones hold
// pseudo-random bytes; others are zero, but their memory is there.
func newStates(bytes int64, ranks int, filled bool) (*states, error) {
	s := &states{byRank: make([]cairn.State, ranks), memory: make([][][]byte, ranks)}
	for rank := range ranks {
		s.byRank[rank] = cairn.State{}
	}
	layout := byDim(0, ranks)
	for w := range weights(bytes) {
		if err := s.add(layout, w.name, w.dtype, w.shape, filled); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// weight is one tensor of the model or the optimizer.
type weight struct {
	name  string
	dtype tensor.DType
	shape []int64
}

func (w *weight) bytes() int64 {
	n := int64(w.dtype.Size())
	for _, d := range w.shape {
		n *= d
	}
	return n
}

// weights yields the tensors of a state of about so many bytes.
func weights(bytes int64) iter.Seq[weight] {
	matrices := []struct {
		name  string
		shape []int64
	}{
		{"q", []int64{hidden, hidden}}, {"k", []int64{hidden, hidden}}, {"v", []int64{hidden, hidden}},
		{"o", []int64{hidden, hidden}}, {"up", []int64{4 * hidden, hidden}}, {"gate", []int64{4 * hidden, hidden}},
		{"down", []int64{hidden, 4 * hidden}}, {"norm1", []int64{hidden}}, {"norm2", []int64{hidden}},
	}
	kinds := []struct {
		prefix string
		dtype  tensor.DType
	}{{"model", tensor.BFloat16}, {"optim.exp_avg", tensor.Float32}, {"optim.exp_avg_sq", tensor.Float32}}
	return func(yield func(weight) bool) {
		var total int64
		for layer := 0; ; layer++ {
			for _, m := range matrices {
				for _, k := range kinds {
					w := weight{fmt.Sprintf("%s.layers.%03d.%s.weight", k.prefix, layer, m.name), k.dtype, m.shape}
					if !yield(w) {
						return
					}
					total += w.bytes()
				}
				if total >= bytes {
					return
				}
			}
		}
	}
}

func (s *states) add(layout shard.Layout, name string, d tensor.DType, shape []int64, filled bool) error {
	for rank := range s.byRank {
		t, err := shard.Empty(layout, d, shape, rank)
		if err != nil {
			return err
		}
		mem, _ := t.Local().Bytes()
		touch(mem, filled)
		s.byRank[rank][name] = t
		s.memory[rank] = append(s.memory[rank], mem)
		s.bytes += int64(len(mem))
	}
	return nil
}

// touch writes to every page of mem, so that it exists, and with random bytes
// if asked to.
func touch(mem []byte, random bool) {
	if !random {
		for i := 0; i < len(mem); i += 4096 {
			mem[i] = 0
		}
		return
	}
	r := rand.NewPCG(uint64(len(mem)), 1)
	for i := 0; i+8 <= len(mem); i += 8 {
		binary.LittleEndian.PutUint64(mem[i:], r.Uint64())
	}
}
