package saver

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// loadAll sends a load by each trainer of a job, and returns the outcomes.
func loadAll(job []*trainer, number uint64, body func(rank int) loadBody) []*loaded {
	out := make([]*loaded, len(job))
	var wg sync.WaitGroup
	for r, c := range job {
		b := body(r)
		b.Load = number
		c.send(typeLoad, b)
		wg.Go(func() { out[r] = c.loads(1)[number] })
	}
	wg.Wait()
	return out
}

// Of several ranks that want the same bytes, one reads them.
func TestSharedLoads(t *testing.T) {
	const ranks = 3
	for name, folder := range map[string]string{
		"native": writeCheckpoint(t, native.Format{}, 3), "hf": writeCheckpoint(t, hf.Format{}, 3),
	} {
		t.Run(name, func(t *testing.T) {
			job := newTrainers(t, ranks)
			items := func() []wantBody {
				out := []wantBody{
					{Name: "rows", DType: "float32", Shape: rows}, {Name: "plain", DType: "int64", Shape: plain}, {Name: "number", DType: "float64", Shape: number},
				}
				place(out, 0)
				return out
			}
			saved := []*tensor.Tensor{matrix(t, tensor.Float32, rows, 1), matrix(t, tensor.Int64, plain, 3), matrix(t, tensor.Float64, number, 1)}
			for number := uint64(1); number <= 5; number++ { // more than there are groups
				var read, received int64
				for r, l := range loadAll(job, number, func(int) loadBody { return loadBody{source: source{Store: folder}, Share: true, Items: items()} }) {
					if l.err != nil {
						t.Fatal(l.err)
					}
					for i, x := range saved {
						job[r].check(items()[i], x)
					}
					if slices.Sort(l.pieces); len(slices.Compact(l.pieces)) != len(saved) {
						t.Errorf("rank %d has the pieces %v", r, l.pieces)
					}
					read, received = read+l.report.Local.Read, received+l.report.Local.Received
				}
				needed := int64(480 + 420 + 8) // in the dtypes of the checkpoint
				if read != needed || received != (ranks-1)*needed {
					t.Errorf("load %d: the ranks have read %d bytes and received %d; want %d and %d", number, read, received, needed, (ranks-1)*needed)
				}
			}
		})
	}
}

// A rank that loads no tensor takes part, and an error of one rank reaches all. After it,
// the ranks can share again.
func TestSharedLoadsOfUnequalRanks(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 1)
	job := newTrainers(t, 3)
	fine := wantBody{Name: "rows", DType: "float32", Shape: rows}
	load := func(number uint64, change func(rank int, b *loadBody)) []*loaded {
		return loadAll(job, number, func(rank int) loadBody {
			b := loadBody{source: source{Store: folder}, Share: true, Items: []wantBody{fine}}
			change(rank, &b)
			return b
		})
	}
	number := uint64(0)
	for name, change := range map[string]func(b *loadBody){
		"a name that is missing": func(b *loadBody) { b.Items[0].Name = "nothing" },
		"another shape":          func(b *loadBody) { b.Items[0].Shape = []int64{10, 12} },
		"no checkpoint":          func(b *loadBody) { b.Store = filepath.Join(folder, "nothing") },
		"no such format":         func(b *loadBody) { b.Format = "nothing" },
		"no such store":          func(b *loadBody) { b.Store = "nothing://there" },
	} {
		number++
		for r, l := range load(number, func(rank int, b *loadBody) {
			if rank == 1 {
				change(b)
			}
		}) {
			if l.err == nil || !strings.Contains(l.err.Error(), "rank 1") {
				t.Errorf("%s: rank %d: %v; want an error that names rank 1", name, r, l.err)
			}
		}
		number++
		for r, l := range load(number, func(rank int, b *loadBody) {
			if rank == 1 {
				b.Items = nil
			}
		}) {
			if l.err != nil || len(l.pieces) != min(1, (r-1)*(r-1)) {
				t.Errorf("after %s: rank %d has the pieces %v: %v", name, r, l.pieces, l.err)
			}
		}
	}
}

// Cancelling the load of one rank ends it on all ranks.
func TestSharedLoadCancelled(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 1)
	job := newTrainers(t, 3)
	fine := []wantBody{{Name: "rows", DType: "float32", Shape: rows}}
	for r, c := range job[:2] { // the last rank has not sent its load
		c.send(typeLoad, loadBody{Load: 1, source: source{Store: folder}, Share: true, Items: fine})
		if r == 1 {
			c.send(typeCancel, cancelBody{1})
		}
	}
	job[2].send(typeLoad, loadBody{Load: 1, source: source{Store: folder}, Share: true, Items: fine})
	var failed int
	for _, c := range job {
		if l := c.loads(1)[1]; l.err != nil {
			failed++
		}
	}
	if failed != 0 && failed != len(job) { // the load may have been over before
		t.Errorf("the load failed on %d of %d ranks", failed, len(job))
	}
	for _, l := range loadAll(job, 2, func(int) loadBody { return loadBody{source: source{Store: folder}, Share: true, Items: fine} }) {
		if l.err != nil {
			t.Errorf("after a load that was cancelled: %v", l.err)
		}
	}
}

// If a trainer ends, the shared loads of the others fail.
func TestSharedLoadOfATrainerThatEnds(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 1)
	job := newTrainers(t, 2)
	job[1].conn.Close()
	if err := job[1].wait(); err != nil {
		t.Fatal(err)
	}
	job[0].send(typeLoad, loadBody{Load: 1, source: source{Store: folder}, Share: true, Items: []wantBody{{Name: "rows", DType: "float32", Shape: rows}}})
	if l := job[0].loads(1)[1]; !errors.Is(l.err, ErrSaver) {
		t.Errorf("the load = %v; want ErrSaver", l.err)
	}
}

// Damage that one rank finds fails the load on all ranks that wait for these bytes.
func TestSharedLoadOfADamagedCheckpoint(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 1)
	content := matrix(t, tensor.Float32, rows, 1).Contents()
	var damaged bool
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if i := bytes.Index(b, content); err == nil && i >= 0 {
			b[i+5] ^= 1
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
			damaged = true
		}
	}
	if !damaged {
		t.Fatal("no file has the tensor")
	}
	for r, l := range loadAll(newTrainers(t, 3), 1, func(int) loadBody {
		return loadBody{source: source{Store: folder}, Share: true, Items: []wantBody{{Name: "rows", DType: "float32", Shape: rows}}}
	}) {
		if l.err == nil || !strings.Contains(l.err.Error(), "corrupt") || len(l.pieces) > 0 {
			t.Errorf("rank %d: %v, and the pieces %v", r, l.err, l.pieces)
		}
	}
}

func TestSharedLoadBeforeTheSaversHaveMet(t *testing.T) {
	c := newLoader(t)
	c.send(typeLoad, loadBody{Load: 1, source: source{Store: "/nothing"}, Share: true})
	if err := c.refused(); !errors.Is(err, ErrMessage) {
		t.Errorf("the saver = %v; want ErrMessage", err)
	}
}
