package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A saver that dies at any of its requests, before or after the service has carried it out,
// leaves the old checkpoint or the new one, and besides only leftovers that clean finds: data
// files and pending uploads.
func TestS3SaverDies(t *testing.T) {
	t.Parallel() // it waits for much of its time
	for _, late := range []bool{false, true} {
		name := "before the request"
		if late {
			name = "before the answer"
		}
		t.Run(name, func(t *testing.T) {
			uploads := 0
			for n := range deep.Steps[int64]() {
				died, temps := dieAt(t, n, late)
				uploads += temps
				if t.Failed() {
					t.Fatalf("at request %d", n)
				}
				if !died {
					if n < 8 || uploads == 0 {
						t.Errorf("%d requests, %d uploads that were left: the test saw too little", n-1, uploads)
					}
					return
				}
			}
		})
	}
}

// dieAt saves while the saver dies at its n-th request. It reports whether the saver has
// died, and how many uploads it has left.
func dieAt(t *testing.T, n int64, late bool) (died bool, uploads int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	good := openS3(t, nil)
	save := func(s *remote.Store, id int) error {
		w, err := tensor.Of([]int64{11 << 20}, make([]uint8, 11<<20))
		if err != nil {
			return err
		}
		state := cairn.State{"n": id}
		if id == 2 {
			state["w"] = w // it takes several parts
		}
		_, err = cairn.Save(ctx, s, state, nil)
		return err
	}
	must.Do(t, save(good, 1))
	p := startProxy(t, 0, 0)
	p.CutAt, p.CutLate = n, late
	s, err := s3.Open(ctx, good.String()+"?endpoint="+p.URL(), &remote.Options{Policy: remote.Policy{Attempts: 1, Hedge: -1}})
	if err != nil {
		t.Fatal(err)
	}
	err = save(s, 2)
	died = p.Counts()[faultCut] > 0
	if !died && err != nil {
		t.Fatal(err)
	}
	got, _, loadErr := cairn.LoadNew(ctx, good, nil)
	held := fmt.Sprint(got["n"])
	if loadErr != nil || held != "1" && held != "2" || err == nil && held != "2" {
		t.Errorf("the save = %v; then the checkpoint holds %v, %v", err, held, loadErr)
	}
	temps, err := good.Temps(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := formats.Clean(ctx, good, 0); err != nil {
		t.Error(err)
	}
	if left, err := good.Temps(ctx, ""); len(left) > 0 || err != nil {
		t.Errorf("uploads that clean did not find: %v, %v", left, err)
	}
	c, err := cairn.Open(ctx, good)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := []string{"cairn.json"}
	for _, f := range c.Files() {
		want = append(want, f.Name)
	}
	slices.Sort(want)
	if now := names(t, good); now != strings.Join(want, " ") {
		t.Errorf("there is %s; want the files of the checkpoint, %q", now, want)
	}
	if got, _, err := cairn.LoadNew(ctx, good, nil); err != nil || fmt.Sprint(got["n"]) != held {
		t.Errorf("after a sweep the checkpoint holds %v, %v; want %v", got["n"], err, held)
	}
	return died, len(temps)
}

// meeting makes the savers of one place wait for each other before they commit.
type meeting struct {
	*remote.Store
	left atomic.Int64
	all  chan struct{}
}

func (m *meeting) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	if name == "cairn.json" {
		if m.left.Add(-1) == 0 {
			close(m.all)
		}
		select {
		case <-m.all:
		case <-time.After(time.Minute):
			return nil, errors.New("the other saver has not come")
		}
	}
	return m.Store.Create(ctx, name, o)
}

// Of two savers that save in one place at the same time exactly one wins, 200 times, and the
// other gets an error and leaves no files. In half of the rounds they replace a checkpoint.
func TestS3TwoSavers(t *testing.T) {
	t.Parallel() // it waits for much of its time
	const workers = 8
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for round := worker; round < 200; round += workers {
				if err := saveTwice(t, round/workers%2 == 1); err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func saveTwice(t *testing.T, replace bool) error {
	s, err := s3.Open(t.Context(), place(), nil)
	if err == nil && replace {
		_, err = cairn.Save(t.Context(), s, cairn.State{"n": 0}, nil)
	}
	if err != nil {
		return err
	}
	var savers sync.WaitGroup
	var errs [2]error
	m := &meeting{Store: s, all: make(chan struct{})}
	m.left.Store(int64(len(errs)))
	for i := range errs {
		savers.Go(func() { _, errs[i] = cairn.Save(t.Context(), m, cairn.State{"n": i + 1}, nil) })
	}
	savers.Wait()
	won := 0
	if errs[0] != nil {
		won = 1
	}
	if lost := errs[1-won]; errs[won] != nil || !errors.Is(lost, cairn.ErrExists) && !errors.Is(lost, cairn.ErrChanged) {
		return fmt.Errorf("the saves = %w; want one to succeed and the other to be refused", errors.Join(errs[:]...))
	}
	got, _, err := cairn.LoadNew(t.Context(), s, nil)
	if err != nil || fmt.Sprint(got["n"]) != fmt.Sprint(won+1) {
		return fmt.Errorf("the checkpoint holds %v, %w; want %d", got["n"], err, won+1)
	}
	if left, err := formats.Leftovers(t.Context(), s); err != nil || len(left) > 0 {
		return fmt.Errorf("the saver that lost has left %v, %w", left, err)
	}
	return nil
}

// Plain requests, which benchmarks compare with.
func TestS3Plain(t *testing.T) {
	v, prefix := openS3(t, nil).Service()
	plain, ok := v.(remote.Plain)
	if !ok {
		t.Fatal("the driver has no plain requests")
	}
	data, got := noise(1<<20), make([]byte, 1<<20)
	must.Do(t, plain.PlainPut(t.Context(), prefix+"x", data))
	if err := plain.PlainGet(t.Context(), prefix+"x", got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("PlainGet = %v, or other bytes", err)
	}
	clear(got)
	if err := plain.PlainRange(t.Context(), prefix+"x", got[:1000], 5); err != nil || !bytes.Equal(got[:1000], data[5:1005]) {
		t.Errorf("PlainRange = %v, or other bytes", err)
	}
	if err := plain.PlainGet(t.Context(), prefix+"none", got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("PlainGet of nothing = %v", err)
	}
}
