package background

import (
	"errors"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// A saver that was suspended does not replace the checkpoint that another process has
// saved to the same folder meanwhile, whether its save had begun or waited in the queue.
func TestSuspendedSaverDoesNotReplaceANewerCheckpoint(t *testing.T) {
	ctx := t.Context()
	store := jobtest.OpenStore(t, t.TempDir())
	s := must.Get(cairn.NewStager(&cairn.StagerOptions{Ceiling: 1 << 20, Process: rankSaver(t, 0)}))(t)
	defer s.Close(ctx)
	state := func(step int64) cairn.State {
		w := must.Get(tensor.Of([]int64{1}, []int64{step}))(t)
		return cairn.State{"w": w}
	}
	save := func(step int64) *cairn.Pending {
		p := must.Get(cairn.SaveAsync(ctx, store, state(step), &cairn.AsyncOptions{Stager: s, SaveOptions: cairn.SaveOptions{Step: &step}}))(t)
		return p
	}
	must.Get(save(1).Wait(ctx))(t)
	pid := saverOf(t, 0)
	tcptest.Stop(t, pid)
	defer syscall.Kill(pid, syscall.SIGCONT) // if the test ends before
	old := save(2)
	three := int64(3)
	must.Get(cairn.Save(ctx, store, state(three), &cairn.SaveOptions{Step: &three}))(t)
	must.Do(t, syscall.Kill(pid, syscall.SIGCONT))
	if _, err := old.Wait(ctx); !errors.Is(err, cairn.ErrChanged) {
		t.Errorf("the save of the suspended saver = %v; want ErrChanged", err)
	}
	got := state(0)
	if r, err := cairn.Load(ctx, store, got, nil); err != nil || *r.Step != 3 {
		t.Errorf("Load = %+v, %v; want step 3", r, err)
	}
	if _, err := save(4).Wait(ctx); err != nil {
		t.Errorf("the next save = %v", err)
	}
}
