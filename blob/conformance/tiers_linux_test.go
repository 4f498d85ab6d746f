package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
)

const (
	tierRanks = 2
	tierBytes = 9 << 20 // of each rank: its file takes several parts
)

// saveInBackground saves steps from two ranks with saver processes. options returns the
// store and the options of a step.
func saveInBackground(t *testing.T, steps int64, options func(step int64) (blob.Store, *cairn.AsyncOptions), check func(step int64, p *cairn.Pending) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := inproc.Run(ctx, tierRanks, func(ctx context.Context, g group.Group) error {
		s, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: 64 << 20, Process: &saver.Options{}})
		if err != nil {
			return err
		}
		defer s.Close(ctx)
		w, err := shard.Zeros[uint8](shard.Rows(tierRanks), []int64{tierRanks, tierBytes}, g.Rank())
		if err != nil {
			return err
		}
		mem, _ := w.Local().Bytes()
		for step := range steps {
			for i := range mem {
				mem[i] = byte(step) + 1
			}
			store, o := options(step)
			o.Stager, o.Group, o.Step = s, g, &step
			p, err := cairn.SaveAsync(ctx, store, cairn.State{"w": w}, o)
			if err != nil {
				return err
			}
			if err := check(step, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wantStep fails unless the checkpoint at an address is whole and of the given step.
func wantStep(t *testing.T, address string, step int64) {
	t.Helper()
	c, err := cairn.OpenPath(t.Context(), address)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	if _, err := c.Verify(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if x, err := c.ReadTensor(t.Context(), "w"); err != nil || !bytes.Equal(x.Contents(), bytes.Repeat([]byte{byte(step) + 1}, tierRanks*tierBytes)) {
		t.Errorf("%s does not hold step %d: %v", blob.Redact(address), step, err)
	}
}

// Saver processes save to S3 by its address.
func TestSaverProcessSavesToS3(t *testing.T) {
	t.Parallel() // it waits for much of its time
	address := place()
	store := must.Get(cairn.OpenStore(address))(t)
	saveInBackground(t, 3, func(int64) (blob.Store, *cairn.AsyncOptions) { return store, new(cairn.AsyncOptions) },
		func(step int64, p *cairn.Pending) error {
			r, err := p.Wait(t.Context())
			if err != nil {
				return err
			}
			if r.Traffic == nil || r.Traffic.Requests == 0 || r.Traffic.Sent < tierBytes {
				return fmt.Errorf("step %d: traffic %+v", step, r.Traffic)
			}
			return nil
		})
	wantStep(t, address, 2)
}

// Saver processes save to folders and upload to S3. The ceiling of the folders holds, and
// Latest finds the checkpoints that they no longer have.
func TestTiersInS3(t *testing.T) {
	t.Parallel() // it waits for much of its time
	const steps = 4
	const ceiling = 2*tierRanks*tierBytes + 2<<20 // two checkpoints
	local, remote := filepath.Join(t.TempDir(), "run"), place()
	at := func(step int64) (string, string) {
		name := fmt.Sprint("step-", step)
		return filepath.Join(local, name), blob.JoinAddress(remote, name)
	}
	saveInBackground(t, steps, func(step int64) (blob.Store, *cairn.AsyncOptions) {
		dir, url := at(step)
		store, err := cairn.OpenStore(dir)
		if err != nil {
			t.Error(err)
		}
		return store, &cairn.AsyncOptions{Remote: url, LocalBytes: ceiling}
	}, func(step int64, p *cairn.Pending) error {
		if _, err := p.Wait(t.Context()); err != nil {
			return err
		}
		if step%2 == 0 {
			return nil // the next save begins during the upload
		}
		r, err := p.WaitUploaded(t.Context())
		if err != nil {
			return err
		}
		if r.Bytes < tierRanks*tierBytes || r.RankBytes < tierBytes || r.Traffic == nil || r.Traffic.Requests == 0 || r.Traffic.Sent < tierBytes || r.Direct {
			return fmt.Errorf("the upload of step %d = %+v, traffic %+v", step, r, r.Traffic)
		}
		// A list, the file in two parts, and on rank 0 another list, the index and the record.
		if most := int64(8); step == steps-1 && r.Traffic.Requests > most {
			return fmt.Errorf("the upload made %d requests; want at most %d", r.Traffic.Requests, most)
		}
		return nil
	})
	for step := range int64(steps) {
		dir, url := at(step)
		wantStep(t, url, step)
		if step >= steps-2 {
			wantStep(t, dir, step)
		} else if _, err := cairn.OpenPath(t.Context(), dir); !errors.Is(err, cairn.ErrNotFound) {
			t.Errorf("step %d in the local run = %v; want ErrNotFound", step, err)
		}
	}
	dir, url := at(steps - 1)
	if f, err := cairn.Latest(t.Context(), local, &cairn.LatestOptions{Remote: remote}); err != nil || f.Path != dir {
		t.Errorf("Latest = %+v, %v; want %s", f, err, dir)
	}
	if s, err := cairn.OpenNearest(t.Context(), dir, url); err != nil || s.String() != dir {
		t.Errorf("OpenNearest = %v, %v; want %s", s, err, dir)
	}
	must.Do(t, os.RemoveAll(local))
	if f, err := cairn.Latest(t.Context(), local, &cairn.LatestOptions{Remote: remote}); err != nil || f.Path != url {
		t.Errorf("Latest without the local run = %+v, %v; want %s", f, err, url)
	}
	if s, err := cairn.OpenNearest(t.Context(), dir, url); err != nil || !strings.HasPrefix(s.String(), "s3://") {
		t.Errorf("OpenNearest without the local run = %v, %v; want the one in S3", s, err)
	}
}

// The record of an upload that the service writes after the savers have given up: the
// upload is uncertain, and the checkpoint is whole in both stores.
func TestTiersLateRecord(t *testing.T) {
	t.Parallel() // it waits for much of its time
	place := latePlace{lateServices["S3"], endpoint, fmt.Sprintf("%d/run/step-0", folders.Add(1))}
	p, _ := place.startLate(t, "/cairn.json", false)
	local, remote := filepath.Join(t.TempDir(), "step-0"), place.address(t, endpoint, place.folder)
	saveInBackground(t, 1, func(int64) (blob.Store, *cairn.AsyncOptions) {
		store, err := cairn.OpenStore(local)
		if err != nil {
			t.Error(err)
		}
		return store, &cairn.AsyncOptions{Remote: place.address(t, p.URL(), place.folder)}
	}, func(_ int64, pending *cairn.Pending) error {
		if _, err := pending.Wait(t.Context()); err != nil {
			return err
		}
		if _, err := pending.WaitUploaded(t.Context()); !errors.Is(err, cairn.ErrUncertain) {
			return fmt.Errorf("the upload = %w; want ErrUncertain", err)
		}
		return nil
	})
	wantStep(t, local, 0)
	direct := must.Get(blob.OpenAddress(t.Context(), remote))(t)
	if n := clean(t, direct); n > 0 {
		t.Errorf("clean removed %d files while the upload was uncertain", n)
	}
	land(t, p, true)
	wantStep(t, remote, 0)
	if n := clean(t, direct); n > 0 {
		t.Errorf("clean removed %d files of the checkpoint", n)
	}
	wantStep(t, remote, 0)
}
