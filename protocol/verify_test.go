package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// damages change the store of a checkpoint with these files.
var damages = map[string]func(t *testing.T, s blob.Store, files []string){
	"whole": func(*testing.T, blob.Store, []string) {},
	"bytes": func(t *testing.T, s blob.Store, files []string) {
		for _, name := range files {
			b := must.Get(blob.ReadAll(t.Context(), s, name, 1<<20))(t)
			b[len(b)-1-len(b)/8] ^= 1
			must.Get(blob.WriteAll(t.Context(), s, name, b, nil))(t)
		}
	},
	"short": func(t *testing.T, s blob.Store, files []string) {
		for _, name := range files[1:] {
			b := must.Get(blob.ReadAll(t.Context(), s, name, 1<<20))(t)
			must.Get(blob.WriteAll(t.Context(), s, name, b[:len(b)/2], nil))(t)
		}
	},
	"gone": func(t *testing.T, s blob.Store, files []string) {
		for i, name := range files {
			if i%2 == 1 {
				must.Do(t, s.Remove(t.Context(), name))
			}
		}
	},
}

// Tensors that differ from their second copies are found once, whoever has read the files.
func TestRanksVerifyCopies(t *testing.T) {
	s := storagetest.CopyFixture(t, "deepspeed-0.19/universal1-bf16-2")
	const dir = "global_step3_universal/zero/"
	a, b := dir+"layers.0.up.weight/fp32.pt", dir+"layers.1.up.weight/fp32.pt" // of one shape
	first, second := must.Get(blob.ReadAll(t.Context(), s, a, 1<<20))(t), must.Get(blob.ReadAll(t.Context(), s, b, 1<<20))(t)
	storagetest.Put(t, s, a, second)
	storagetest.Put(t, s, b, first)
	c := must.Get(formats.Open(t.Context(), s, nil))(t)
	defer c.Close()
	want := must.Get(c.Verify(t.Context(), nil))(t)
	if len(want.Problems) != 2 {
		t.Errorf("Verify = %+v; want a problem for each of the exchanged weights", want)
	}
	for _, ranks := range []int{1, 2, 5} {
		wantReport(t, c, ranks, want)
	}
}

// Several ranks find the same problems of a checkpoint as one rank, and each reads a part. If tests
// do little, a checkpoint has two of the damages, at random.
func TestRanksVerifyTogether(t *testing.T) {
	checked, random := 0, rand.New(rand.NewPCG(deep.Seed(t), 0))
	for _, f := range storagetest.Fixtures(t, "*/*") {
		kinds := slices.Sorted(maps.Keys(damages))
		random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, damage := range kinds[:deep.Rounds(2, len(kinds))] {
			do := damages[damage]
			t.Run(f.Name+", "+damage, func(t *testing.T) {
				s := new(mem.Store)
				from := must.Get(file.OpenPath(f.Dir))(t)
				for info, err := range from.List(t.Context(), "") {
					must.Do(t, err)
					must.Get(blob.WriteAll(t.Context(), s, info.Name, must.Get(blob.ReadAll(t.Context(), from, info.Name, 1<<30))(t), nil))(t)
				}
				c, at, err := formats.OpenLocated(t.Context(), s, nil)
				if err != nil {
					t.Skip(err) // a part of a folder that cannot be opened by itself
				}
				defer c.Close()
				var names []string
				for _, f := range c.Files() {
					names = append(names, f.Name)
				}
				do(t, at, names)
				c, err = formats.Open(t.Context(), s, nil)
				if err != nil {
					return
				}
				defer c.Close()
				want, err := c.Verify(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				checked++
				for _, ranks := range []int{1, 2, 5} {
					wantReport(t, c, ranks, want)
				}
			})
		}
	}
	if checked < 20 {
		t.Errorf("%d checkpoints were verified; want more", checked)
	}
}

func wantReport(t *testing.T, c storage.Checkpoint, ranks int, want *storage.VerifyReport) {
	t.Helper()
	var mu sync.Mutex
	var planned, read int64
	err := inproc.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
		add := func(to *int64) func(int64) {
			return func(n int64) {
				mu.Lock()
				defer mu.Unlock()
				*to += n
			}
		}
		got, err := protocol.Verify(ctx, protocol.RankVerify{Group: g, Checkpoint: c, Planned: add(&planned), Progress: add(&read)})
		if err != nil {
			return err
		}
		if d := cmp.Diff(want, got); d != "" {
			return fmt.Errorf("the report differs: -one +many\n%s", d)
		}
		return nil
	})
	if err != nil {
		t.Errorf("%d ranks: %v", ranks, err)
	}
	if planned != c.TotalBytes() || len(want.Problems) == 0 && read != planned {
		t.Errorf("%d ranks planned %d bytes and read %d of %d", ranks, planned, read, c.TotalBytes())
	}
}

// A rank that sees another checkpoint is named.
func TestRanksVerifyTheSame(t *testing.T) {
	fixtures := storagetest.Fixtures(t, "*/*")
	err := inproc.Run(t.Context(), 3, func(ctx context.Context, g group.Group) error {
		f := fixtures[0]
		if g.Rank() == 1 {
			f = fixtures[1]
		}
		c, err := formats.Open(ctx, must.Get(file.OpenPath(f.Dir))(t), nil)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = protocol.Verify(ctx, protocol.RankVerify{Group: g, Checkpoint: c})
		if !slices.Equal(group.Ranks(err), []int{1}) {
			return fmt.Errorf("rank 1 is not named: %w", err)
		}
		return err
	})
	if !errors.Is(err, group.ErrDiffers) {
		t.Errorf("Verify = %v; want ErrDiffers", err)
	}
}
