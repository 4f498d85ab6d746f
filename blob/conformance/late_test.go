package conformance

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/publish"
	"github.com/cairn-ckpt/cairn/transfer"
)

// startLate starts a proxy that keeps the first PUT of an object whose key ends with a
// suffix, and answers later ones with a status as long as down is true.
func startLate(t *testing.T, suffix string, status int, code string) (p *proxy, down *atomic.Bool) {
	t.Helper()
	var kept atomic.Bool
	down = new(atomic.Bool)
	down.Store(true)
	of := func(r *http.Request) bool { return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, suffix) }
	return startProxy(t, 0, 0, func(p *proxy) {
		p.Keep = func(r *http.Request) bool { return of(r) && kept.CompareAndSwap(false, true) }
		p.Instead = func(r *http.Request) (int, string) {
			if of(r) && kept.Load() && down.Load() {
				return status, code
			}
			return 0, ""
		}
	}), down
}

// openThrough returns a store through a proxy, and the same store without it.
func openThrough(t *testing.T, p *proxy) (through, direct *remote.Store) {
	t.Helper()
	direct = openS3(t, nil)
	through, err := s3.Open(t.Context(), direct.String()+"?endpoint="+p.URL(), &remote.Options{Policy: remote.Policy{
		Attempts: 3, Pause: time.Millisecond, MaxPause: time.Millisecond, Hedge: -1,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return through, direct
}

func land(t *testing.T, p *proxy, want ...int) {
	t.Helper()
	if got, err := p.Land(); err != nil || !slices.Equal(got, want) {
		t.Fatalf("the late requests were answered with %v, %v; want %v", got, err, want)
	}
}

func saveNumber(t *testing.T, s blob.Store, n int) error {
	t.Helper()
	_, err := cairn.Save(t.Context(), s, cairn.State{"n": n}, nil)
	return err
}

// wantNumber fails unless the checkpoint in s is whole and holds a number.
func wantNumber(t *testing.T, s blob.Store, n int) {
	t.Helper()
	got, _, err := cairn.LoadNew(t.Context(), s, nil)
	if err != nil || fmt.Sprint(got["n"]) != fmt.Sprint(n) {
		t.Errorf("the checkpoint holds %v, %v; want %d", got["n"], err, n)
	}
}

// clean removes all leftovers that may be removed, of any age, and returns how many.
func clean(t *testing.T, s blob.Store) int {
	t.Helper()
	removed := must.Get(formats.Clean(t.Context(), s, 0))(t)
	return len(removed)
}

// A record that the service writes long after its saver has given up: the save is
// uncertain, and whatever happens then, what the record names is there.
func TestS3LateRecord(t *testing.T) {
	savers := map[string]func(t *testing.T, s *remote.Store) error{
		"save": func(t *testing.T, s *remote.Store) error { return saveNumber(t, s, 2) },
		"copy": func(t *testing.T, s *remote.Store) error {
			src := openS3(t, nil)
			must.Do(t, saveNumber(t, src, 2))
			_, err := transfer.Copy(t.Context(), src, s, &transfer.Options{Overwrite: true})
			return err
		},
	}
	for name, save := range savers {
		for _, replaces := range []bool{true, false} {
			for _, next := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/replaces=%v/next=%v", name, replaces, next), func(t *testing.T) {
					p, down := startLate(t, "/cairn.json", http.StatusServiceUnavailable, "SlowDown")
					s, direct := openThrough(t, p)
					if replaces {
						must.Do(t, saveNumber(t, direct, 1))
					}
					err := save(t, s)
					if !errors.Is(err, cairn.ErrUncertain) {
						t.Fatalf("the save = %v; want ErrUncertain", err)
					}
					if n := clean(t, direct); n > 0 {
						t.Errorf("clean removed %d files while the save was uncertain", n)
					}
					if err := publish.CheckUncertain(t.Context(), direct); !errors.Is(err, cairn.ErrUncertain) {
						t.Errorf("CheckUncertain = %v", err)
					}
					if replaces {
						wantNumber(t, direct, 1)
					} else if _, err := cairn.Open(t.Context(), direct); !errors.Is(err, cairn.ErrNotFound) && !errors.Is(err, cairn.ErrIncomplete) {
						t.Errorf("Open before the record is there = %v", err)
					}
					down.Store(false)
					if next {
						must.Do(t, saveNumber(t, s, 3))
						land(t, p, http.StatusPreconditionFailed)
						wantNumber(t, direct, 3)
					} else {
						land(t, p, http.StatusOK)
						wantNumber(t, direct, 2)
					}
					if n := clean(t, direct); (n > 0) != (next || replaces) {
						t.Errorf("clean removed %d files once the save was settled", n)
					}
					if next {
						wantNumber(t, direct, 3)
					} else {
						wantNumber(t, direct, 2)
					}
					if left, err := formats.Leftovers(t.Context(), direct); err != nil || len(left) > 0 {
						t.Errorf("leftovers %v, %v; want none", left, err)
					}
				})
			}
		}
	}
}

// A data file that arrives late belongs to a save that has failed: the checkpoint does not
// change, and clean finds the file.
func TestS3LateDataFile(t *testing.T) {
	p, _ := startLate(t, ".safetensors", http.StatusServiceUnavailable, "SlowDown")
	s, direct := openThrough(t, p)
	must.Do(t, saveNumber(t, direct, 1))
	if err := saveNumber(t, s, 2); err == nil || errors.Is(err, cairn.ErrUncertain) {
		t.Errorf("the save = %v; want an error, and not ErrUncertain", err)
	}
	land(t, p, http.StatusOK)
	wantNumber(t, direct, 1)
	if n := clean(t, direct); n != 1 {
		t.Errorf("clean removed %d files; want the late one", n)
	}
	wantNumber(t, direct, 1)
}

// A data file of a copy that was given up arrives after another copy, with files of the same names,
// has taken its place. It does not replace the file of the later copy.
func TestS3LateCopy(t *testing.T) {
	p, down := startLate(t, ".safetensors", http.StatusServiceUnavailable, "SlowDown")
	s, direct := openThrough(t, p)
	if _, err := transfer.Copy(t.Context(), twoShards(t, 1), s, &transfer.Options{Parallel: 1}); err == nil {
		t.Fatal("the first copy succeeds; want an error of its data file")
	}
	down.Store(false)
	src := twoShards(t, 2)
	must.Get(transfer.Copy(t.Context(), src, direct, &transfer.Options{Overwrite: true}))(t)
	land(t, p, http.StatusPreconditionFailed)
	for info, err := range src.List(t.Context(), "") {
		must.Do(t, err)
		want := must.Get(blob.ReadAll(t.Context(), src, info.Name, 1<<20))(t)
		if got := must.Get(blob.ReadAll(t.Context(), direct, info.Name, 1<<20))(t); !bytes.Equal(got, want) {
			t.Errorf("%s is not the file of the later copy", info.Name)
		}
	}
}

// twoShards returns a checkpoint of safetensors files whose names do not depend on their contents.
func twoShards(t *testing.T, v byte) blob.Store {
	t.Helper()
	s := new(mem.Store)
	for _, name := range []string{"a", "b"} {
		header := fmt.Sprintf(`{%q:{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, name)
		file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		must.Get(blob.WriteAll(t.Context(), s, "model-"+name+".safetensors", append(file, v), nil))(t)
	}
	index := `{"metadata":{"total_size":2},"weight_map":{"a":"model-a.safetensors","b":"model-b.safetensors"}}`
	must.Get(blob.WriteAll(t.Context(), s, "model.safetensors.index.json", []byte(index), nil))(t)
	return s
}

// The record of a save is sent twice, and the first request arrives when the checkpoint was removed.
// Then there is a record without files: no reader takes it for a checkpoint, the older checkpoint is
// the newest one, and a save and a removal work as before.
func TestS3LateRecordAfterRemoval(t *testing.T) {
	p, down := startLate(t, "/cairn.json", http.StatusServiceUnavailable, "SlowDown")
	down.Store(false)
	_, run := openThrough(t, p)
	save := func(s blob.Store, n int64) {
		must.Get(cairn.Save(t.Context(), s, cairn.State{"n": n}, &cairn.SaveOptions{Step: &n}))(t)
	}
	one, two := must.Get(blob.NewSub(run, "step-1"))(t), must.Get(blob.NewSub(run, "step-2"))(t)
	save(one, 1)
	late, err := s3.Open(t.Context(), two.String()+"?endpoint="+p.URL(), &remote.Options{Policy: remote.Policy{
		Attempts: 3, Pause: time.Millisecond, MaxPause: time.Millisecond, Hedge: -1,
	}})
	must.Do(t, err)
	save(late, 2)
	must.Get(formats.Remove(t.Context(), two, nil))(t)
	if got, err := p.Land(); err != nil || len(got) != 1 {
		t.Fatalf("the late requests were answered with %v, %v", got, err)
	}

	address := run.String() + "?endpoint=" + endpoint
	if found, err := cairn.Latest(t.Context(), address, nil); err != nil || *found.Step != 1 {
		t.Errorf("Latest = %+v, %v; want step 1", found, err)
	}
	wantNumber(t, one, 1)
	save(two, 3)
	wantNumber(t, two, 3)
	must.Get(formats.Remove(t.Context(), two, nil))(t)
	if _, err := cairn.Open(t.Context(), two); !errors.Is(err, cairn.ErrNotFound) {
		t.Errorf("Open after the removal = %v", err)
	}
}

// Locks that arrive late: of a saver that has given up, it looks alive for a while, and a
// beat does not bring back a lock that was released.
func TestS3LateLock(t *testing.T) {
	p, down := startLate(t, "lock-a", http.StatusServiceUnavailable, "SlowDown")
	s, direct := openThrough(t, p)
	if l, err := s.TryLock(t.Context(), "a", nil); err == nil {
		t.Errorf("TryLock = %v; want an error", l)
	}
	land(t, p, http.StatusOK)
	locks, err := direct.Locks(t.Context(), "")
	if err != nil || len(locks) != 1 || locks[0].Owner != blob.OwnerAlive || locks[0].PID == 0 {
		t.Fatalf("Locks = %+v, %v; want the late one", locks, err)
	}
	if _, err := direct.TryLock(t.Context(), "a", nil); !errors.Is(err, blob.ErrLocked) {
		t.Errorf("TryLock of it = %v; want ErrLocked", err)
	}
	down.Store(false)

	p, _ = startLate(t, "lock-b", http.StatusServiceUnavailable, "SlowDown")
	s, direct = openThrough(t, p)
	l := must.Get(direct.TryLock(t.Context(), "b", []byte("note")))(t)
	if _, err := s.TryLock(t.Context(), "b", nil); !errors.Is(err, blob.ErrLocked) { // its PUT is kept, and refused later
		t.Logf("TryLock = %v", err)
	}
	if err := errors.Join(l.Beat(t.Context()), l.SetNote([]byte("another"))); err != nil {
		t.Error(err)
	}
	land(t, p, http.StatusPreconditionFailed)
	if locks, err := direct.Locks(t.Context(), ""); err != nil || len(locks) != 1 || string(locks[0].Note) != "another" {
		t.Errorf("Locks = %+v, %v", locks, err)
	}
	if got := names(t, direct); got != "" {
		t.Errorf("List yields %s; want no locks", got)
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if err := l.Beat(t.Context()); !errors.Is(err, blob.ErrLocked) {
		t.Errorf("Beat after Release = %v; want ErrLocked", err)
	}
	if locks, err := direct.Locks(t.Context(), ""); err != nil || len(locks) != 0 {
		t.Errorf("Locks after Release = %+v, %v", locks, err)
	}
}
