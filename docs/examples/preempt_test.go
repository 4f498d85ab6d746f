package examples

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/tensor"
)

// trainUntilSignal trains until a signal announces the end of the job, and saves. It returns
// the number of steps that were made.
func trainUntilSignal(ctx context.Context, g group.Group, s *cairn.Stager, run string, model *tensor.Tensor, steps int64) (int64, error) {
	preempt := cairn.OnSignal(&cairn.PreemptOptions{Group: g, Grace: 90 * time.Second}, syscall.SIGTERM)
	defer preempt.Close()
	for step := range steps {
		trainStep(model)
		requested, err := preempt.Requested(ctx) // the same answer on all ranks
		if err != nil {
			return step, err
		}
		if !requested {
			continue
		}
		store, err := cairn.OpenStore(filepath.Join(run, fmt.Sprintf("step-%06d", step)))
		if err != nil {
			return step, err
		}
		_, err = preempt.Save(ctx, store, cairn.State{"model": model, "step": step}, &cairn.AsyncOptions{
			SaveOptions: cairn.SaveOptions{Group: g, Step: &step},
			Stager:      s, // with StagerOptions.Process, the save survives this process
		})
		return step + 1, err
	}
	return steps, nil
}

func TestTrainUntilSignal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot send itself a signal")
	}
	run := t.TempDir()
	model, err := tensor.New(tensor.Uint8, []int64{1000})
	if err != nil {
		t.Fatal(err)
	}
	s, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	// Until the loop handles the signal, this handler keeps it from ending the test.
	early := cairn.OnSignal(nil)
	defer early.Close()
	defer signal.Ignore(syscall.SIGTERM) // the last signal may arrive after early is closed
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				_ = self.Signal(syscall.SIGTERM)
			}
		}
	}()
	const steps = 1 << 40
	made, err := trainUntilSignal(t.Context(), group.Solo(), s, run, model, steps)
	close(stop)
	<-sent
	if err != nil || made == steps {
		t.Fatalf("trainUntilSignal = %d, %v; want fewer steps", made, err)
	}
	want := model.Contents()[0]
	next, err := continueRun(t.Context(), group.Solo(), run, model)
	if err != nil || next != made || model.Contents()[0] != want {
		t.Errorf("continueRun = %d, %v with %d; want %d with %d", next, err, model.Contents()[0], made, want)
	}
}
