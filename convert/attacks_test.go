package convert_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// Files that expand without end cost memory and time in proportion to their size, and a
// load of all of them is an error that names the file. Others at random may also load. If tests do
// little, each file is read in two of the ways, at random.
//
// SOAK is how long it runs, such as 5m, and SEED repeats it.
func TestAttacksAreBounded(t *testing.T) {
	length := deep.Soak(t, 0, time.Minute)
	seed := deep.Seed(t)
	const repeated = 1 << 30 // tensors may repeat elements up to that size
	random, n := rand.New(rand.NewPCG(seed, 0)), 0
	files := storagetest.Attacks(t)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		t.Run(name, func(t *testing.T) { attack(t, random, files[name], 0, true) })
	}
	for begun := time.Now(); (n < deep.Rounds(2, 4) || time.Since(begun) < length) && !t.Failed(); n++ {
		attack(t, random, storagetest.Attack(t, random), repeated, false)
	}
	t.Logf("%d files at random", n)
}

// ways are the ways to read a file.
var ways = []struct {
	name string
	do   func(context.Context, blob.Store) error
}{{"LoadNew", loadNew}, {"Digests", digest}, {"ReadTensor", readTensors}, {"Run", convertAll}}

// attack reads a file in several ways. more are the bytes that each may allocate beside a multiple of the
// size of the file. fails says that each is an error.
func attack(t *testing.T, random *rand.Rand, data []byte, more int, fails bool) {
	const floor, factor = 128 << 20, 512
	s := new(mem.Store)
	storagetest.Put(t, s, "model.pt", data)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, i := range random.Perm(len(ways))[:deep.Rounds(2, len(ways))] {
		use, do := ways[i].name, ways[i].do
		var a, b runtime.MemStats
		runtime.ReadMemStats(&a)
		err := do(ctx, s)
		runtime.ReadMemStats(&b)
		if err == nil && fails || errors.Is(err, context.DeadlineExceeded) || err != nil && !strings.Contains(err.Error(), "model.pt") {
			t.Errorf("%s = %.300v; want an error that names the file", use, err)
		}
		if got, most := b.TotalAlloc-a.TotalAlloc, uint64(floor+more+factor*len(data)); got > most {
			t.Errorf("%s of %d bytes allocates %d; want at most %d", use, len(data), got, most)
		}
	}
}

func loadNew(ctx context.Context, s blob.Store) error {
	_, _, err := cairn.LoadNew(ctx, s, nil)
	return err
}

func convertAll(ctx context.Context, s blob.Store) error {
	c, err := formats.Open(ctx, s, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	job, err := convert.Plan(ctx, c, &convert.Options{Memory: 16 << 20})
	if err != nil {
		return err
	}
	_, err = convert.Run(ctx, job, toNative(new(mem.Store), false))
	return err
}

func digest(ctx context.Context, s blob.Store) error {
	c, err := cairn.Open(ctx, s)
	if err != nil {
		return err
	}
	defer c.Close()
	md, err := c.Metadata(ctx)
	if err != nil {
		return err
	}
	_, err = inspect.Digests(ctx, c, inspect.Select(md), nil)
	return err
}

func readTensors(ctx context.Context, s blob.Store) error {
	c, err := cairn.Open(ctx, s)
	if err != nil {
		return err
	}
	defer c.Close()
	md := must.Value(c.Metadata(ctx))
	for i := range md.Entries {
		if e := &md.Entries[i]; e.Tensor != nil {
			if _, err := c.ReadTensor(ctx, e.FQN); err != nil {
				return err
			}
		}
	}
	return nil
}
