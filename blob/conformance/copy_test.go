package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/transfer"
)

// saveNew saves a checkpoint of several data files with bytes of tensors into a new
// folder.
func saveNew(t *testing.T, bytes int64) blob.Store {
	t.Helper()
	s := must.Get(file.Open(t.TempDir(), nil))(t)
	state := cairn.State{}
	for i := range 4 {
		x := must.Get(tensor.New(tensor.Uint8, []int64{bytes / 4}))(t)
		p, _ := x.Bytes()
		for j := range p {
			p[j] = byte(i + j*7 + j>>8)
		}
		state[fmt.Sprint("x", i)] = x
	}
	if _, err := cairn.Save(t.Context(), s, state, &cairn.SaveOptions{FilesPerRank: 4}); err != nil {
		t.Fatal(err)
	}
	return s
}

func copyOK(t *testing.T, src, dst blob.Store, o *transfer.Options) *transfer.Report {
	t.Helper()
	rep, err := transfer.Copy(t.Context(), src, dst, o)
	if err != nil {
		t.Fatalf("Copy from %s to %s: %v", src, dst, err)
	}
	return rep
}

func TestCopyWithS3(t *testing.T) { testCopyWith(t, openS3(t, nil), openS3(t, nil)) }

func TestCopyWithGCS(t *testing.T) {
	bucket := startGCS(t)
	testCopyWith(t, openGCS(t, bucket), openGCS(t, bucket))
}

func TestCopyWithAzure(t *testing.T) {
	bucket := startAzure(t)
	testCopyWith(t, openAzure(t, bucket), openAzure(t, bucket))
}

// testCopyWith copies a checkpoint to a service, within it by the service, and back.
func testCopyWith(t *testing.T, first, second *remote.Store) {
	src := saveNew(t, 40<<20)
	rep := copyOK(t, src, first, nil)
	if rep.KeptFiles != 0 || rep.ByService != 0 || rep.Files < 6 {
		t.Errorf("the first copy: %+v", rep)
	}
	if tr := first.Traffic(); tr.Received > 1<<20 {
		t.Errorf("an upload has received %d bytes", tr.Received)
	}
	// A resumed copy asks the service for checksums and reads no file.
	before := first.Traffic()
	again := copyOK(t, src, first, nil)
	if again.KeptFiles != rep.Files {
		t.Errorf("a second copy kept %d files; want %d", again.KeptFiles, rep.Files)
	}
	if d := first.Traffic().Sub(before); d.Received > 1<<20 || d.Sent > 0 {
		t.Errorf("a second copy sent %d bytes and received %d", d.Sent, d.Received)
	}
	before = first.Traffic()
	within := copyOK(t, first, second, nil)
	if within.ByService != rep.Files-1 { // all but the record
		t.Errorf("the service copied %d files of %d", within.ByService, rep.Files)
	}
	if d, u := first.Traffic().Sub(before), second.Traffic(); d.Received > 1<<20 || u.Sent > 1<<20 || u.Received > 1<<20 {
		t.Errorf("a copy within the service moved %+v and %+v", d, u)
	}
	back := must.Get(file.Open(t.TempDir(), nil))(t)
	if got := copyOK(t, second, back, &transfer.Options{Full: true}); got.Bytes != rep.Bytes || got.Verified == nil {
		t.Errorf("the copy back: %+v; want %d bytes", got, rep.Bytes)
	}
}

// TestCopyToS3IsInterrupted ends a copy at different moments. The next copy continues, and a
// sweep finds all leftovers.
func TestCopyToS3IsInterrupted(t *testing.T) {
	src := saveNew(t, 64<<20)
	kept := 0
	for _, after := range []int64{1, 20 << 20, 60 << 20} {
		dst := openS3(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var done atomic.Int64
		_, err := transfer.Copy(ctx, src, dst, &transfer.Options{Parallel: 2, Progress: func(n int64) {
			if done.Add(n) >= after {
				cancel()
			}
		}})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Copy = %v; want Canceled", err)
		}
		if _, err := cairn.Open(t.Context(), dst); err == nil {
			t.Error("a copy that was interrupted can be opened")
		}
		rep := copyOK(t, src, dst, &transfer.Options{Full: true})
		kept += rep.KeptFiles
		// A part that arrives while its upload is aborted may keep the upload alive.
		if _, err := dst.SweepTemp(t.Context(), "", 0); err != nil {
			t.Error(err)
		}
		if temps, err := dst.Temps(t.Context(), ""); err != nil || len(temps) > 0 {
			t.Errorf("Temps after a sweep = %v, %v; want none", temps, err)
		}
	}
	if kept == 0 {
		t.Error("no file was kept in three copies that went on")
	}
}

// TestCopyThroughFaults copies to a server and back, through a proxy that disturbs one
// request of five.
func TestCopyThroughFaults(t *testing.T) {
	p := must.Get(newProxy(endpoint, 0.2, 7))(t)
	defer p.Close()
	address := strings.Replace(place(), endpoint, p.URL(), 1)
	s, err := s3.Open(t.Context(), address, &remote.Options{Policy: remote.Policy{
		Attempts: 20, Pause: time.Millisecond, MaxPause: 20 * time.Millisecond, Idle: 2 * time.Second,
	}})
	if err != nil {
		t.Fatal(err)
	}
	src := saveNew(t, 40<<20)
	copyOK(t, src, s, nil)
	back := must.Get(file.Open(t.TempDir(), nil))(t)
	copyOK(t, s, back, &transfer.Options{Full: true})
	if s.Traffic().Retries == 0 {
		t.Errorf("no retries, with the faults %v", p.Counts())
	}
}

// TestSyncWithS3 copies the checkpoints that one side lacks, both ways.
func TestSyncWithS3(t *testing.T) {
	x := must.Get(tensor.Of([]int64{4}, []float32{1, 2, 3, 4}))(t)
	folder := must.Get(file.Open(t.TempDir(), nil))(t)
	var local blob.Store = folder
	run := openS3(t, nil)
	for _, step := range []int64{1, 2, 10} {
		sub, err := blob.NewSub(local, fmt.Sprint("step-", step))
		if err == nil {
			_, err = cairn.Save(t.Context(), sub, cairn.State{"x": x}, &cairn.SaveOptions{Step: &step})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sync := func(src, dst blob.Store) string {
		all := must.Get(transfer.Sync(t.Context(), src, dst, nil))(t)
		var out []string
		for _, s := range all {
			out = append(out, s.Folder+" "+s.State)
			if s.Copy != nil && src != local && s.Copy.ByService == 0 {
				t.Errorf("the service has copied no file of %s: %+v", s.Folder, s.Copy)
			}
		}
		return strings.Join(out, ", ")
	}
	if got, want := sync(local, run), "step-10 copied, step-2 copied, step-1 copied"; got != want {
		t.Errorf("Sync: %s; want %s", got, want)
	}
	other := openS3(t, nil)
	if got, want := sync(run, other), "step-10 copied, step-2 copied, step-1 copied"; got != want {
		t.Errorf("Sync within S3: %s; want %s", got, want)
	}
	if got, want := sync(other, local), "step-10 present, step-2 present, step-1 present"; got != want {
		t.Errorf("Sync back: %s; want %s", got, want)
	}
}
