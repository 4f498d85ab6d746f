package stage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// drawView returns a view of a part of mem.
func drawView(t *rapid.T, mem []byte) *tensor.Tensor {
	d := rapid.SampledFrom([]tensor.DType{tensor.Uint8, tensor.Int16, tensor.Float32}).Draw(t, "dtype")
	size := int64(d.Size())
	held := int64(len(mem)) / size
	offset := rapid.Int64Range(0, held-1).Draw(t, "offset")
	left := held - offset
	rows := rapid.Int64Range(0, min(left, 20)).Draw(t, "rows")
	stride := int64(1)
	if rows > 1 {
		stride = rapid.Int64Range(0, (left-1)/(rows-1)).Draw(t, "stride")
	}
	x := must.Get(tensor.FromStrided(d, []int64{rows}, []int64{stride}, offset, mem))(t)
	return x
}

// TestSnapshotHoldsWhatTheStateHeld stages views of shared and separate memory, changes
// every byte of it, and reads the snapshot as a save does. In a small arena the reads
// come from the memory of the caller, before it is changed.
func TestSnapshotHoldsWhatTheStateHeld(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		mems := make([][]byte, rapid.IntRange(1, 3).Draw(t, "memories"))
		for i := range mems {
			mems[i] = rapid.SliceOfN(rapid.Byte(), 64, 64<<10).Draw(t, "memory")
		}
		state, want := plan.State{"value": "text"}, map[string][]byte{}
		for i := range rapid.IntRange(0, 12).Draw(t, "tensors") {
			x := drawView(t, mems[rapid.IntRange(0, len(mems)-1).Draw(t, "of")])
			name := fmt.Sprint("t", i)
			state[name], want[name] = x, x.Clone().Contents()
		}
		a := must.Get(NewArena(rapid.Int64Range(minArena, 512<<10).Draw(t, "arena")))(t)
		defer a.Close()
		s, err := New(new(plan.DefaultSave), plan.SaveSetup{State: state, Size: 1, Coordinator: true}, a, 7)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := s.LocalPlan()
		if p, err = s.FinishPlan(p); err != nil {
			t.Fatal(err)
		}
		saved := make(chan error, 1)
		ran := make(chan struct{})
		save := func() {
			defer close(ran)
			saved <- readAll(s, p, want)
		}
		started := make(chan struct{})
		all := must.Get(s.Fill(context.Background(), rapid.Bool().Draw(t, "early"), func() { close(started) }))(t)
		<-started
		go save()
		if !all {
			must.Do(t, s.Rest(context.Background(), ran))
		}
		for _, m := range mems {
			for i := range m {
				m[i] ^= 0xff
			}
		}
		must.Do(t, <-saved)
		s.Close()
		if now, peak := a.Used(); now != 0 || peak > a.Size() {
			t.Fatalf("Used = %d, %d of %d", now, peak, a.Size())
		}
	})
}

// readAll reads every item as a save does and compares it.
func readAll(s *Snapshot, p *plan.SavePlan, want map[string][]byte) error {
	for i := range p.Items {
		it := &p.Items[i]
		d, err := s.Resolve(it)
		if err != nil {
			return err
		}
		if it.Kind == plan.KindBytes {
			continue
		}
		got := d.Tensor.Clone().Contents()
		if err := d.Release(); err != nil {
			return err
		}
		if string(got) != string(want[it.FQN()]) {
			return fmt.Errorf("%s is not what was staged", it.FQN())
		}
	}
	return s.Verify()
}

// staged returns a snapshot of one tensor.
func stagedSnapshot(t *testing.T, a *Arena, generation uint64) (*Snapshot, *plan.WriteItem) {
	t.Helper()
	x := must.Get(tensor.New(tensor.Uint8, []int64{100}))(t)
	s := must.Get(New(new(plan.DefaultSave), plan.SaveSetup{State: plan.State{"w": x}, Size: 1, Coordinator: true}, a, generation))(t)
	if all, err := s.Fill(t.Context(), true, func() {}); !all || err != nil {
		t.Fatalf("Fill = %v, %v", all, err)
	}
	p, _ := s.LocalPlan()
	return s, &p.Items[0]
}

// TestOtherGenerationIsDetected overwrites the stamp of staged memory, as a later
// snapshot in the same place does: reading fails, and so does the save.
func TestOtherGenerationIsDetected(t *testing.T) {
	for _, c := range []struct {
		name   string
		during bool
	}{{"before the read", false}, {"during the read", true}} {
		t.Run(c.name, func(t *testing.T) {
			a := must.Get(NewArena(1 << 20))(t)
			defer a.Close()
			s, it := stagedSnapshot(t, a, 3)
			must.Do(t, s.Verify())
			overwrite := func() { binary.LittleEndian.PutUint64(a.mem, 4) }
			if !c.during {
				overwrite()
			}
			d, err := s.Resolve(it)
			if c.during {
				if err != nil {
					t.Fatal(err)
				}
				overwrite()
				err = d.Release()
			}
			if !errors.Is(err, ErrGeneration) {
				t.Errorf("the read = %v; want ErrGeneration", err)
			}
			if err := s.Verify(); !errors.Is(err, ErrGeneration) {
				t.Errorf("Verify = %v; want ErrGeneration", err)
			}
			s.Close()
		})
	}
}

// TestClosedSnapshotCannotBeRead frees a snapshot while a save could still use it.
func TestClosedSnapshotCannotBeRead(t *testing.T) {
	a := must.Get(NewArena(1 << 20))(t)
	defer a.Close()
	s, it := stagedSnapshot(t, a, 1)
	s.Close()
	stagedSnapshot(t, a, 2)
	if _, err := s.Resolve(it); !errors.Is(err, errClosed) {
		t.Errorf("Resolve = %v; want ErrClosed", err)
	}
}

// TestRestEndsWithContext cancels staging that waits for memory.
func TestRestEndsWithContext(t *testing.T) {
	a := must.Get(NewArena(1 << 20))(t)
	defer a.Close()
	if _, ok, _ := a.alloc(a.Size()); !ok {
		t.Fatal("no memory")
	}
	x, _ := tensor.New(tensor.Uint8, []int64{100})
	s := must.Get(New(new(plan.DefaultSave), plan.SaveSetup{State: plan.State{"w": x}, Size: 1, Coordinator: true}, a, 1))(t)
	if all, err := s.Fill(t.Context(), true, func() {}); all || err != nil {
		t.Fatalf("Fill = %v, %v; there is no memory", all, err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := s.Rest(ctx, nil); !errors.Is(err, cause) {
		t.Errorf("Rest = %v; want %v", err, cause)
	}
	if err := s.Verify(); !errors.Is(err, cause) {
		t.Errorf("Verify = %v; want %v", err, cause)
	}
}

// TestWaitForMemoryDoesNotSpin checks that staging without memory waits for something that
// has not happened yet.
func TestWaitForMemoryDoesNotSpin(t *testing.T) {
	a, s := withoutMemory(t)
	_, again, err := s.fill(t.Context(), true, func() {})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range again {
		select {
		case <-c:
			t.Errorf("channel %d is closed although nothing has changed", i)
		default:
		}
	}
	a.release(0, a.Size())
	<-again[0]
	s.Close()
	<-again[1]
}

// withoutMemory returns a snapshot of a tensor for an arena that is full.
func withoutMemory(t *testing.T) (*Arena, *Snapshot) {
	t.Helper()
	a := must.Get(NewArena(1 << 20))(t)
	t.Cleanup(func() { a.Close() })
	if _, ok, _ := a.alloc(a.Size()); !ok {
		t.Fatal("no memory")
	}
	x, _ := tensor.New(tensor.Uint8, []int64{100})
	s := must.Get(New(new(plan.DefaultSave), plan.SaveSetup{State: plan.State{"w": x}, Size: 1, Coordinator: true}, a, 1))(t)
	return a, s
}

// TestContextThatEndsAfterStagingIsNoError ends the context when the save has read
// everything: the save may publish it, so staging has not failed.
func TestContextThatEndsAfterStagingIsNoError(t *testing.T) {
	_, s := withoutMemory(t)
	p, _ := s.LocalPlan()
	must.Do(t, readAll(s, p, map[string][]byte{"w": make([]byte, 100)}))
	complete := false
	s.Complete = func() { complete = true }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Rest(ctx, nil); err != nil || !complete {
		t.Errorf("Rest = %v, complete: %v", err, complete)
	}
	if err := s.Verify(); err != nil {
		t.Error(err)
	}
}

// TestAwaitWaitsForReadsOfTheCallersMemory fails a snapshot while a save reads the memory
// of the caller.
func TestAwaitWaitsForReadsOfTheCallersMemory(t *testing.T) {
	_, s := withoutMemory(t)
	p, _ := s.LocalPlan()
	d := must.Get(s.Resolve(&p.Items[0]))(t)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := s.Rest(ctx, nil); !errors.Is(err, cause) {
		t.Fatalf("Rest = %v; want %v", err, cause)
	}
	awaited := make(chan struct{})
	go func() {
		defer close(awaited)
		s.Await(nil)
	}()
	select {
	case <-awaited:
		t.Error("Await returned while the save reads")
	default:
	}
	if err := d.Release(); !errors.Is(err, cause) {
		t.Errorf("Release = %v; want %v", err, cause)
	}
	<-awaited
	if _, err := s.Resolve(&p.Items[0]); !errors.Is(err, cause) {
		t.Errorf("Resolve = %v; want %v", err, cause)
	}
}

// TestUnitsFitIntoASmallArena stages as much of a state as fits.
func TestUnitsFitIntoASmallArena(t *testing.T) {
	a := must.Get(NewArena(256 << 10))(t)
	defer a.Close()
	state := plan.State{}
	for i := range 100 {
		state[fmt.Sprint("t", i)], _ = tensor.New(tensor.Uint8, []int64{8 << 10})
	}
	s := must.Get(New(new(plan.DefaultSave), plan.SaveSetup{State: state, Size: 1, Coordinator: true}, a, 1))(t)
	defer s.Close()
	if all, err := s.Fill(t.Context(), true, func() {}); all || err != nil {
		t.Fatalf("Fill = %v, %v; there is too little memory", all, err)
	}
	if now, _ := a.Used(); now < a.Size()/2 {
		t.Errorf("only %d of %d bytes are used", now, a.Size())
	}
}
