package saver

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

// The state of the data-parallel ranks below: tensors that all ranks hold, in a unit each.
const (
	replicaTensors = 6
	replicaBytes   = 64 << 10
	replicaUnit    = replicaBytes + 8
)

// dataParallel returns the planner of a rank, whose state is staged, its arena, and the items that it has released.
func dataParallel(fits bool) (s *savePlanner, arena []byte, released func() []int, err error) {
	b := &saveBody{Generation: 7, Fits: fits}
	st := &stagedBody{Generation: 7, All: true}
	arena = make([]byte, replicaTensors*replicaUnit)
	for i := range replicaTensors {
		at := int64(i) * replicaUnit
		b.Items = append(b.Items, itemBody{Name: fmt.Sprint("w", i), DType: "uint8", Shape: []int64{replicaBytes}})
		st.Units = append(st.Units, unitBody{Stamp: at, Items: []int{i}, At: []int64{at + 8}})
		binary.LittleEndian.PutUint64(arena[at:], 7)
		for k := range replicaBytes {
			arena[at+8+int64(k)] = byte(i*31 + k*k>>5)
		}
	}
	if s, err = newSavePlanner(b, arena, new(claims)); err != nil {
		return nil, nil, nil, err
	}

	var mu sync.Mutex
	var items []int
	s.released = func(item int) {
		mu.Lock()
		defer mu.Unlock()
		items = append(items, item)
	}
	return s, arena, func() []int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Sorted(slices.Values(items))
	}, s.stage(st)
}

// saveReplicas saves the state of a planner to the run in memory, as a Runner does, without the copies.
func (r *memoryRank) saveReplicas(s *savePlanner, format storage.Format) (*running, *protocol.SaveReport, error) {
	at, err := blob.NewSub(r.store, run.FolderName(1))
	if err != nil {
		return nil, nil, err
	}
	w, err := format.NewWriter(at, storage.WriteOptions{})
	if err != nil {
		return nil, nil, err
	}
	step := int64(1)
	job := &running{Task: Task{
		Job: protocol.RankSave{
			Group: r.g, Planner: s, Writer: w, Cache: new(plan.Cache),
			Storage:  meta.Storage{SaveID: "save-1", Step: &step, Time: time.Unix(1e9, 0).UTC(), WorldSize: r.g.Size()},
			Recorder: protocol.NewRecorder(r.ctx, protocol.OpSave, r.g.Rank(), nil, new(protocol.Observer)),
		},
		Copies: &Copies{Job: r.j, Group: r.g, Folder: run.FolderName(1)},
	}}
	s.copyFor(job.Copies)
	report, err := protocol.Save(r.ctx, job.Job)
	return job, report, err
}

// Data-parallel ranks copy the files of other hosts from what they have staged. If that has gone, or has other bytes
// by then, they receive the files.
func TestCopiesFromReplicas(t *testing.T) {
	const each = replicaTensors / 2 * replicaBytes // that each of the two ranks writes
	for _, c := range []struct {
		name   string
		fits   bool
		change func(s *savePlanner, arena []byte) // after the save, before the copies
		held   int64
	}{
		{"held", true, func(*savePlanner, []byte) {}, each},
		{"not staged as a whole", false, func(*savePlanner, []byte) {}, 0},
		{"other bytes", true, func(_ *savePlanner, arena []byte) { clear(arena[8:replicaBytes]); clear(arena[len(arena)-99:]) }, 0},
		{"the memory is used again", true, func(_ *savePlanner, arena []byte) {
			for i := range replicaTensors {
				clear(arena[i*replicaUnit : i*replicaUnit+8])
			}
		}, 0},
		{"given up", true, func(s *savePlanner, _ []byte) { s.kept = nil }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			roots := hostRoots(t, 2)
			onHosts(t, roots, func(r *memoryRank) error {
				s, arena, released, err := dataParallel(c.fits)
				if err != nil {
					return err
				}
				job, report, err := r.saveReplicas(s, native.Format{})
				if err != nil {
					return err
				}

				// The items of the other rank are in use until its files are copied.
				got, want := len(released()), replicaTensors
				if c.fits {
					want = replicaTensors / 2
				}
				if got != want {
					return fmt.Errorf("%v were released before the copies; want %d items", released(), want)
				}
				c.change(s, arena)
				copied, err := job.copy(r.ctx, report, nil)
				if err != nil {
					return err
				}
				if copied.RankHeld != c.held || copied.RankBytes <= each {
					return fmt.Errorf("%d bytes were copied, %d of them held; want more than %d, and %d", copied.RankBytes, copied.RankHeld, each, c.held)
				}
				s.forget()
				if len(s.claims.sorted) != 0 {
					return fmt.Errorf("the arena is in use: %v", s.claims.sorted)
				}
				return nil
			})

			files := must.Get(filepath.Glob(filepath.Join(string(roots[0]), "llama", run.FolderName(1), "*")))(t)
			if len(files) < 4 { // two data files, the index, the record
				t.Fatalf("the first host has %v", files)
			}
			for _, f := range files {
				other := filepath.Join(string(roots[1]), "llama", run.FolderName(1), filepath.Base(f))
				if !bytes.Equal(must.Get(os.ReadFile(f))(t), must.Get(os.ReadFile(other))(t)) {
					t.Errorf("the hosts have different bytes of %s", filepath.Base(f))
				}
			}
		})
	}
}

// Files that do not describe themselves as the files of the native format do are received.
func TestCopiesOfOtherFormats(t *testing.T) {
	for _, format := range []storage.Format{hf.Format{}, torchdcp.Format{}} {
		t.Run(format.Name(), func(t *testing.T) {
			roots := hostRoots(t, 2)
			onHosts(t, roots, func(r *memoryRank) error {
				s, _, _, err := dataParallel(true)
				if err != nil {
					return err
				}
				job, report, err := r.saveReplicas(s, format)
				if err != nil {
					return err
				}
				copied, err := job.copy(r.ctx, report, nil)
				if err == nil && (copied.RankHeld != 0 || copied.RankBytes == 0) {
					err = fmt.Errorf("%d bytes were copied, %d of them held; want some, and 0", copied.RankBytes, copied.RankHeld)
				}
				return err
			})
		})
	}
}
