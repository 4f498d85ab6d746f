package background

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// heldStore returns a store that saves in this process cannot write to, for two minutes.
// Saver processes are stopped instead.
func heldStore(mode string, s *file.Store) blob.Store {
	if mode == "process" {
		return s
	}
	return fault.New(s, fault.Rule{On: fault.Write, Times: -1, Do: fault.Delay(2 * time.Minute)})
}

// TestCloseWithEndedContext closes a Stager with a context that has ended, in every state
// in which it can be: Close returns, and so does everything that waits for a save.
func TestCloseWithEndedContext(t *testing.T) {
	const n = 300 << 10
	for mode, options := range jobtest.Modes {
		for _, c := range []struct {
			name    string
			saves   int
			ceiling int64
			overlap bool
			blocked bool // the last SaveAsync does not return before Close
		}{
			{"new", 0, 1 << 20, false, false},
			{"saving", 1, 1 << 20, false, false},
			{"saving and waiting", 3, 2 << 20, false, false},
			{"staging", 1, 64 << 10, true, false},
			{"staging and waiting", 2, n * 3 / 2, true, false},
			{"in SaveAsync", 1, 64 << 10, false, true},
			{"waiting in SaveAsync", 2, n * 3 / 2, false, true},
		} {
			t.Run(mode+"/"+c.name, func(t *testing.T) {
				folder := jobtest.TempStore(t)
				s := jobtest.Stager(t, options(c.ceiling))
				state := cairn.State{"w": jobtest.Numbered(t, n, 1)}
				p := must.Get(cairn.SaveAsync(t.Context(), folder, state, &cairn.AsyncOptions{Stager: s}))(t)
				must.Get(p.Wait(t.Context()))(t)
				jobtest.Pause(t)
				store := heldStore(mode, folder)
				var pending []*cairn.Pending
				var wg sync.WaitGroup
				for i := range c.saves {
					save := func() (*cairn.Pending, error) {
						return cairn.SaveAsync(t.Context(), store, state, &cairn.AsyncOptions{Stager: s, Overlap: c.overlap})
					}
					if c.blocked && i == c.saves-1 {
						wg.Go(func() {
							p, err := save()
							if err == nil {
								_, err = p.Wait(t.Context())
							}
							if err == nil && mode == "goroutine" {
								t.Error("a save that cannot write has succeeded")
							}
						})
						time.Sleep(20 * time.Millisecond) // so that it waits, most of the time
						continue
					}
					p := must.Get(save())(t)
					pending = append(pending, p)
				}
				ended, cancel := context.WithCancel(t.Context())
				cancel()
				closed := make(chan error, 1)
				go func() { closed <- s.Close(ended) }()
				if c.name != "saving" {
					jobtest.Resume(t) // a stopped saver takes a few seconds
				}
				if err := <-closed; err != nil {
					t.Error(err)
				}
				jobtest.Resume(t)
				wg.Wait()
				for _, p := range pending {
					<-p.Staged()
					if _, err := p.Wait(t.Context()); err == nil && mode == "goroutine" {
						t.Error("a save that cannot write has succeeded")
					}
				}
				jobtest.WaitSavers(t)
				if got := loadBytes(t, folder, "w"); !bytes.Equal(got, jobtest.Numbered(t, n, 1).Contents()) {
					t.Error("the checkpoint has changed")
				}
				if _, err := cairn.SaveAsync(t.Context(), folder, state, &cairn.AsyncOptions{Stager: s}); !errors.Is(err, cairn.ErrOptions) {
					t.Errorf("SaveAsync of a closed Stager = %v; want ErrOptions", err)
				}
			})
		}
	}
}

// TestSaveAsyncOfBadStateOnOneRank has a state that one rank cannot save: SaveAsync fails
// on all ranks, and the save that it would have replaced takes place.
func TestSaveAsyncOfBadStateOnOneRank(t *testing.T) {
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			store := jobtest.TempStore(t)
			begin, begun := make(chan struct{}), make(chan struct{})
			jobtest.EachRank(t, 2, func(ctx context.Context, g group.Group) error {
				s, err := cairn.NewStager(options(1 << 20))
				if err != nil {
					return err
				}
				defer s.Close(ctx)
				save := func(name string, bad bool, o *cairn.Observer) (*cairn.Pending, error) {
					state := cairn.State{name: jobtest.Numbered(t, 100, 1)}
					if bad && g.Rank() == 1 {
						state["bad"] = make(chan int)
					}
					return cairn.SaveAsync(ctx, store, state, &cairn.AsyncOptions{
						Stager: s, Busy: cairn.BusyReplace, SaveOptions: cairn.SaveOptions{Group: g, Observer: o},
					})
				}
				var hold *cairn.Observer // keeps the first save from ending
				if g.Rank() == 0 {
					hold = &cairn.Observer{Planned: func(int64) {
						close(begun)
						<-begin
					}}
				}
				first, err := save("a", false, hold)
				if err != nil {
					return err
				}
				<-begun
				second, err := save("b", false, nil)
				if err != nil {
					return err
				}
				if _, err := save("c", true, nil); !errors.Is(err, cairn.ErrState) {
					return fmt.Errorf("SaveAsync of a bad state = %v; want ErrState", err)
				}
				if g.Rank() == 0 {
					close(begin)
				}
				for i, p := range []*cairn.Pending{first, second} {
					if _, err := p.Wait(ctx); err != nil {
						return fmt.Errorf("save %d: %w", i, err)
					}
				}
				return nil
			})
			loadBytes(t, store, "b")
		})
	}
}

// TestSaveAsyncCancelledWhileStaging ends the context of one rank while its state is being
// staged: the save fails on all ranks, and the next one succeeds.
func TestSaveAsyncCancelledWhileStaging(t *testing.T) {
	const n = 2 << 20
	cause := errors.New("enough")
	for mode, options := range jobtest.Modes {
		for rank := range 2 {
			t.Run(fmt.Sprint(mode, rank), func(t *testing.T) {
				folder := jobtest.TempStore(t)
				jobtest.EachRank(t, 2, func(ctx context.Context, g group.Group) error {
					s, err := cairn.NewStager(options(64 << 10)) // the state does not fit
					if err != nil {
						return err
					}
					defer s.Close(ctx)
					save := func(ctx context.Context, store blob.Store, seed byte, overlap bool) (*cairn.Pending, error) {
						state := cairn.State{fmt.Sprint("w", g.Rank()): jobtest.Numbered(t, n, seed)}
						// The buffers of the writers do not hold the state either, so that it is not staged
						// before something was written.
						return cairn.SaveAsync(ctx, store, state, &cairn.AsyncOptions{
							Stager: s, Overlap: overlap, SaveOptions: cairn.SaveOptions{Group: g, BufferBytes: 64 << 10},
						})
					}
					wait := func(p *cairn.Pending, err error) error {
						if err == nil {
							_, err = p.Wait(ctx)
						}
						return err
					}
					if err := wait(save(ctx, folder, 1, false)); err != nil {
						return err
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					if g.Rank() == 0 {
						jobtest.Pause(t)
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					sub, cancel := context.WithCancelCause(ctx)
					defer cancel(nil)
					p, err := save(sub, heldStore(mode, folder), 2, true)
					if err != nil {
						return err
					}
					if g.Rank() == rank {
						cancel(cause)
						<-p.Staged()
					}
					if err := g.Barrier(ctx); err != nil {
						return err
					}
					if g.Rank() == 0 {
						jobtest.Resume(t)
					}
					if _, err := p.Wait(ctx); err == nil {
						return errors.New("a save that was not staged has succeeded")
					}
					return wait(save(ctx, folder, 3, false))
				})
				for _, name := range []string{"w0", "w1"} {
					if got := loadBytes(t, folder, name); !bytes.Equal(got, jobtest.Numbered(t, n, 3).Contents()) {
						t.Errorf("%s is not what was saved last", name)
					}
				}
			})
		}
	}
}

// TestSeveralStagers saves with several Stagers of one process at once.
func TestSeveralStagers(t *testing.T) {
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			var wg sync.WaitGroup
			for i := range byte(3) {
				store, s := jobtest.TempStore(t), jobtest.Stager(t, options(256<<10))
				x := jobtest.Numbered(t, 100<<10, 0)
				mem, _ := x.Bytes()
				wg.Go(func() {
					for step := range byte(4) {
						v := i*10 + step
						for j := range mem {
							mem[j] = v
						}
						p, err := cairn.SaveAsync(t.Context(), store, cairn.State{"w": x}, &cairn.AsyncOptions{Stager: s})
						if err != nil {
							t.Error(err)
							return
						}
						jobtest.Overwrite(x)
						if _, err := p.Wait(t.Context()); err != nil {
							t.Error(err)
							return
						}
						if got := loadBytes(t, store, "w"); slices.ContainsFunc(got, func(b byte) bool { return b != v }) {
							t.Errorf("the checkpoint of stager %d is not of step %d", i, step)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestSaveAsyncInNewGroup changes the group while saves are under way: they complete.
func TestSaveAsyncInNewGroup(t *testing.T) {
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			store := jobtest.TempStore(t)
			groups := [][]*inproc.Group{inproc.New(2), inproc.New(2), inproc.New(2)}
			var wg sync.WaitGroup
			for rank := range 2 {
				s := jobtest.Stager(t, options(4<<20))
				wg.Go(func() {
					var all []*cairn.Pending
					for i := range 6 {
						g := groups[i/2][rank]
						p, err := cairn.SaveAsync(t.Context(), store, cairn.State{fmt.Sprint("w", rank): jobtest.Numbered(t, 300<<10, byte(i))}, &cairn.AsyncOptions{
							Stager: s, SaveOptions: cairn.SaveOptions{Group: g},
						})
						if err != nil {
							t.Error(err)
							g.Leave(err)
							return
						}
						all = append(all, p)
					}
					for i, p := range all {
						if _, err := p.Wait(t.Context()); err != nil {
							t.Errorf("rank %d: save %d: %v", rank, i, err)
						}
					}
				})
			}
			wg.Wait()
			for _, name := range []string{"w0", "w1"} {
				if got := loadBytes(t, store, name); !bytes.Equal(got, jobtest.Numbered(t, 300<<10, 5).Contents()) {
					t.Errorf("%s is not what was saved last", name)
				}
			}
		})
	}
}

// TestStagersOfRanksDisagree sets StagerOptions.Process on one rank only.
func TestStagersOfRanksDisagree(t *testing.T) {
	if jobtest.Modes["process"] == nil {
		t.Skip("there are no saver processes")
	}
	store := jobtest.TempStore(t)
	jobtest.EachRank(t, 2, func(ctx context.Context, g group.Group) error {
		s, err := cairn.NewStager(jobtest.Modes[[]string{"goroutine", "process"}[g.Rank()]](1 << 20))
		if err != nil {
			return err
		}
		defer s.Close(ctx)
		x, _ := tensor.New(tensor.Uint8, []int64{1})
		_, err = cairn.SaveAsync(ctx, store, cairn.State{"w": x}, &cairn.AsyncOptions{Stager: s, SaveOptions: cairn.SaveOptions{Group: g}})
		if !errors.Is(err, cairn.ErrOptions) {
			return fmt.Errorf("SaveAsync = %v; want ErrOptions", err)
		}
		return nil
	})
}
