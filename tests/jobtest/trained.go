package jobtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Trained is a state. From save to save, some of its tensors do not change, some change in
// few elements, some everywhere.
type Trained struct {
	random *rand.Rand
	State  map[string]*tensor.Tensor
}

// NewTrained returns a state that depends on seed.
func NewTrained(t testing.TB, seed uint64) *Trained {
	s := &Trained{rand.New(rand.NewPCG(seed, 1)), map[string]*tensor.Tensor{}}
	weights := initial()
	// "frozen" has whole segments of its own, wherever it begins.
	for _, w := range []struct {
		name  string
		shape []int64
	}{{"frozen", []int64{300, 1024}}, {"sparse", []int64{400, 512}}, {"all", []int64{64, 300}}, {"row", []int64{3, 7}}} {
		x := must.Get(tensor.New(tensor.BFloat16, w.shape))(t)
		weights = weights[copy(x.Contents(), weights):]
		s.State[w.name] = x
	}
	return s
}

// initial returns the weights of a model before its first step, which are the same for all
// states: it takes longer to draw them than to save them.
var initial = sync.OnceValue(func() []byte {
	random := rand.New(rand.NewPCG(1, 1))
	b := make([]byte, 11<<17)
	for i := 0; i < len(b); i += 2 {
		binary.LittleEndian.PutUint16(b[i:], uint16(random.NormFloat64()*100)+0x3c00)
	}
	return b
})

// Step changes the state as a step of training does.
func (s *Trained) Step() {
	b := s.State["sparse"].Contents()
	for range len(b) / 2 / 80 {
		b[2*s.random.IntN(len(b)/2)] ^= 1 << s.random.IntN(3)
	}
	for _, name := range []string{"all", "row"} {
		b := s.State[name].Contents()
		for i := range b {
			b[i] = byte(s.random.Uint32())
		}
	}
}

// Parts returns the state of a rank: each tensor is cut into rows.
func (s *Trained) Parts(t testing.TB, rank, size int) cairn.State {
	out := cairn.State{}
	for name, x := range s.State {
		out[name] = Cut(t, Rows(size), x, rank)
	}
	out["step"] = int64(7)
	return out
}

// Clone returns a copy of the bytes of each tensor.
func (s *Trained) Clone(t testing.TB) map[string][]byte {
	out := map[string][]byte{}
	for name, x := range s.State {
		out[name] = append([]byte{}, x.Contents()...)
	}
	return out
}

// SaveChain saves n steps of s in folders of dir, each on the base of the one before, and
// returns the contents of each.
func SaveChain(t testing.TB, dir string, s *Trained, n, ranks int) []map[string][]byte {
	t.Helper()
	var want []map[string][]byte
	for i := range n {
		o := cairn.SaveOptions{Base: &storage.Base{}, Step: new(int64(i))}
		if i > 0 {
			o.Base.Folder = fmt.Sprintf("step-%d", i-1)
			s.Step()
		}
		store := must.Get(file.Open(filepath.Join(dir, fmt.Sprintf("step-%d", i)), nil))(t)
		OnRanks(t, ranks, func(ctx context.Context, g group.Group) error {
			o := o
			o.Group = g
			_, err := cairn.Save(ctx, store, s.Parts(t, g.Rank(), ranks), &o)
			return err
		})
		want = append(want, s.Clone(t))
	}
	return want
}
