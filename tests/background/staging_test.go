package background

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// loadBytes returns the bytes of a tensor in a checkpoint.
func loadBytes(t *testing.T, store blob.Store, name string) []byte {
	t.Helper()
	c := must.Get(cairn.Open(t.Context(), store))(t)
	defer c.Close()
	x := must.Get(c.ReadTensor(t.Context(), name))(t)
	return x.Contents()
}

func TestSaveAsyncStateMayChangeAfterReturn(t *testing.T) {
	const n = 300 << 10
	for mode, options := range jobtest.Modes {
		for _, ceiling := range []int64{64 << 20, 1 << 20, 64 << 10} {
			t.Run(fmt.Sprint(mode, ceiling), func(t *testing.T) {
				store := jobtest.TempStore(t)
				s := jobtest.Stager(t, options(ceiling))
				state, want := cairn.State{"step": int64(7)}, map[string][]byte{}
				for i := range 5 {
					name := fmt.Sprintf("w%d", i)
					x := jobtest.Numbered(t, n+int64(i), byte(i))
					state[name], want[name] = x, x.Clone().Contents()
				}
				for range 3 {
					p := must.Get(cairn.SaveAsync(t.Context(), store, state, &cairn.AsyncOptions{Stager: s}))(t)
					for name := range want {
						jobtest.Overwrite(state[name].(*tensor.Tensor))
					}
					r := must.Get(p.Wait(t.Context()))(t)
					for name := range want {
						jobtest.Overwrite(state[name].(*tensor.Tensor)) // as it was
						if !bytes.Equal(loadBytes(t, store, name), want[name]) {
							t.Fatalf("%s is not what was staged", name)
						}
					}
					if r.StageTime <= 0 {
						t.Errorf("StageTime = %v", r.StageTime)
					}
					if r.MemoryWait > r.StageTime || ceiling > 6*n && r.MemoryWait != 0 {
						t.Errorf("MemoryWait = %v, StageTime = %v with a ceiling of %d", r.MemoryWait, r.StageTime, ceiling)
					}
				}
				if u := s.Usage(); u.Peak > u.Ceiling || u.Used != 0 || u.Ceiling > ceiling {
					t.Errorf("Usage = %+v with a ceiling of %d", u, ceiling)
				}
			})
		}
	}
}

// The clock of the bubble stands still, except while the save waits for the store.
func TestWaitForStagingMemoryIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := fault.New(new(mem.Store), fault.Rule{On: fault.Write, Times: -1, Do: fault.Delay(time.Minute)})
		s := jobtest.Stager(t, &cairn.StagerOptions{Ceiling: 64 << 10})
		state := cairn.State{"v": jobtest.Numbered(t, 300<<10, 1), "w": jobtest.Numbered(t, 300<<10, 2)}
		p := must.Get(cairn.SaveAsync(t.Context(), store, state, &cairn.AsyncOptions{
			Stager: s, SaveOptions: cairn.SaveOptions{BufferBytes: 64 << 10},
		}))(t)
		r := must.Get(p.Wait(t.Context()))(t)
		if r.MemoryWait < time.Minute || r.MemoryWait != r.StageTime {
			t.Errorf("MemoryWait = %v, StageTime = %v; want the same, a minute or more", r.MemoryWait, r.StageTime)
		}
	})
}

func TestSaveAsyncOfSeveralRanks(t *testing.T) {
	const ranks, rows = 3, 9
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			store := jobtest.TempStore(t)
			jobtest.EachRank(t, ranks, func(ctx context.Context, g group.Group) error {
				s, err := cairn.NewStager(options(1 << 20))
				if err != nil {
					return err
				}
				defer s.Close(ctx)
				for step := range int64(3) {
					w, err := shard.Zeros[int64](shard.Rows(ranks), []int64{rows, 5}, g.Rank())
					if err != nil {
						return err
					}
					shared, _ := tensor.Full(tensor.Int64, []int64{4}, step)
					local, _ := w.Local().Bytes()
					fill := func(v byte) {
						for i := range local {
							local[i] = v
						}
					}
					fill(byte(step) + 1)
					p, err := cairn.SaveAsync(ctx, store, cairn.State{"w": w, "replicated": shared, "step": step}, &cairn.AsyncOptions{
						SaveOptions: cairn.SaveOptions{Group: g, Step: &step}, Stager: s,
					})
					if err != nil {
						return err
					}
					fill(0xee)
					r, err := p.Wait(ctx)
					if err != nil {
						return err
					}
					if *r.Step != step {
						return fmt.Errorf("step %d was saved as %d", step, *r.Step)
					}
				}
				return nil
			})
			want := bytes.Repeat([]byte{3}, rows*5*8)
			if got := loadBytes(t, store, "w"); !bytes.Equal(got, want) {
				t.Errorf("w = %v", got)
			}
		})
	}
}

// TestSaveAsyncWhileBusy checks the outcome of a save that begins while another one is
// under way.
func TestSaveAsyncWhileBusy(t *testing.T) {
	for mode, options := range jobtest.Modes {
		for _, c := range []struct {
			busy  cairn.Busy
			errs  []error // of the saves after the first, which is held up
			saved string
		}{
			{cairn.BusyWait, []error{nil, nil}, "c"},
			{cairn.BusySkip, []error{cairn.ErrSkipped, cairn.ErrSkipped}, "a"},
			{cairn.BusyReplace, []error{cairn.ErrReplaced, nil}, "c"},
		} {
			t.Run(fmt.Sprint(mode, c.busy), func(t *testing.T) {
				store := jobtest.TempStore(t)
				s := jobtest.Stager(t, options(1<<20))
				hold, release := context.WithCancel(t.Context())
				defer release()
				begun := make(chan struct{})
				save := func(name string, hold context.Context) *cairn.Pending {
					t.Helper()
					p := must.Get(cairn.SaveAsync(t.Context(), store, cairn.State{name: jobtest.Numbered(t, 10, 1)}, &cairn.AsyncOptions{
						Stager: s, Busy: c.busy,
						SaveOptions: cairn.SaveOptions{Observer: &cairn.Observer{Planned: func(int64) {
							if hold != nil {
								close(begun)
								<-hold.Done()
							}
						}}},
					}))(t)
					return p
				}
				must.Get(save("warm", nil).Wait(t.Context()))(t)
				// The first save cannot end before it is released.
				jobtest.Pause(t)
				first := save("a", hold)
				if mode == "goroutine" {
					<-begun
				}
				others := []*cairn.Pending{save("b", nil), save("c", nil)}
				jobtest.Resume(t)
				release()
				for i, p := range append([]*cairn.Pending{first}, others...) {
					want := append([]error{nil}, c.errs...)[i]
					_, err := p.Wait(t.Context())
					if mode == "process" && c.busy == cairn.BusyReplace && i < 2 && (err == nil || errors.Is(err, cairn.ErrReplaced)) {
						continue // it depends on whether the saver has begun before it knows of the newer one
					}
					if !errors.Is(err, want) || (err == nil) != (want == nil) {
						t.Errorf("save %d: %v; want %v", i, err, want)
					}
				}
				loadBytes(t, store, c.saved)
			})
		}
	}
}

// TestSaveAsyncCopiesSharedMemoryOnce checks that views of one tensor share memory when
// they are staged, and have the same elements when they are loaded again.
func TestSaveAsyncCopiesSharedMemoryOnce(t *testing.T) {
	const n = 256 << 10
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			store := jobtest.TempStore(t)
			s := jobtest.Stager(t, options(4*n))
			base := jobtest.Numbered(t, n, 3)
			half := must.Get(base.Slice(0, n/4, 3*n/4, 1))(t)
			odd := must.Get(base.Slice(0, 1, n, 2))(t)
			want := map[string][]byte{"base": base.Clone().Contents(), "half": half.Clone().Contents(), "odd": odd.Clone().Contents()}
			p := must.Get(cairn.SaveAsync(t.Context(), store, cairn.State{"base": base, "tied": base, "half": half, "odd": odd}, &cairn.AsyncOptions{Stager: s}))(t)
			jobtest.Overwrite(base)
			must.Get(p.Wait(t.Context()))(t)
			if u := s.Usage(); u.Peak > n+8192 {
				t.Errorf("%d bytes were staged for %d bytes of memory", u.Peak, n)
			}
			for name, b := range want {
				if !bytes.Equal(loadBytes(t, store, name), b) {
					t.Errorf("%s is not what was staged", name)
				}
			}
		})
	}
}

// TestFailedSaveAsyncKeepsCheckpoint checks that a failed save leaves the checkpoint whole,
// and that ReturnLast returns its error.
func TestFailedSaveAsyncKeepsCheckpoint(t *testing.T) {
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			store := jobtest.TempStore(t)
			s := jobtest.Stager(t, options(1<<20))
			save := func(o cairn.AsyncOptions) (*cairn.Pending, error) {
				o.Stager = s
				return cairn.SaveAsync(t.Context(), store, cairn.State{"w": jobtest.Numbered(t, 100, 1)}, &o)
			}
			p, err := save(cairn.AsyncOptions{})
			if err != nil {
				t.Fatal(err)
			}
			must.Get(p.Wait(t.Context()))(t)
			p = must.Get(save(cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{FailIfExists: true}}))(t)
			if _, err := p.Wait(t.Context()); !errors.Is(err, cairn.ErrExists) {
				t.Fatalf("Wait = %v; want ErrExists", err)
			}
			loadBytes(t, store, "w")
			if _, err = save(cairn.AsyncOptions{ReturnLast: true}); !errors.Is(err, cairn.ErrExists) {
				t.Errorf("SaveAsync = %v; want the error of the save before", err)
			}
			if p, err = save(cairn.AsyncOptions{ReturnLast: true}); err != nil {
				t.Fatalf("SaveAsync = %v; the error was returned before", err)
			}
			if _, err := p.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A Stager that NewStager has not made is refused.
func TestZeroStager(t *testing.T) {
	s := new(cairn.Stager)
	if _, err := cairn.SaveAsync(t.Context(), new(mem.Store), cairn.State{"x": int64(1)}, &cairn.AsyncOptions{Stager: s}); !errors.Is(err, cairn.ErrOptions) {
		t.Errorf("SaveAsync = %v; want ErrOptions", err)
	}
	if err := s.Close(t.Context()); !errors.Is(err, cairn.ErrOptions) {
		t.Errorf("Close = %v; want ErrOptions", err)
	}
}
