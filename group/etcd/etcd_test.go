package etcd_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group/etcd"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

const secret = "of the tests, and not for etcd"

// noEnv is an environment without variables.
func noEnv(string) string { return "" }

// newJob returns a name that no other test uses.
func newJob(t *testing.T) string { return t.Name() + " " + rand.Text()[:8] }

// at returns a rendezvous of a job.
func at(job string, size int) *etcd.Rendezvous {
	return &etcd.Rendezvous{Endpoints: []string{cluster()}, Job: job, Size: size, Getenv: noEnv}
}

func config(r tcp.Rendezvous) tcp.Config {
	return tcp.Config{Meet: r, Secret: []byte(secret), Arity: 2}
}

// soon returns a context that ends before the test does.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// joinAll lets processes join at once and returns their groups and errors.
func joinAll(ctx context.Context, cfgs ...tcp.Config) ([]*tcp.Group, []error) {
	return tcptest.Join(ctx, len(cfgs), func(i int) tcp.Config { return cfgs[i] })
}

// meet makes a group that is closed at the end and returns its ends by rank.
func meet(t *testing.T, cfgs ...tcp.Config) []*tcp.Group {
	t.Helper()
	return tcptest.Meet(t, len(cfgs), func(i int) tcp.Config { return cfgs[i] })
}

// assigned returns the configurations of n processes without ranks.
func assigned(job string, n int) []tcp.Config {
	cfgs := make([]tcp.Config, n)
	for i := range cfgs {
		cfgs[i] = config(at(job, n))
	}
	return cfgs
}

func TestRanksThatAreGiven(t *testing.T) {
	const n = 4
	for name, give := range map[string]func(cfg *tcp.Config, r *etcd.Rendezvous, rank int){
		"by the configuration": func(cfg *tcp.Config, r *etcd.Rendezvous, rank int) { cfg.Rank, cfg.Size, r.Size = rank, n, 0 },
		"by the rendezvous":    func(_ *tcp.Config, r *etcd.Rendezvous, rank int) { r.Rank = &rank },
		"by the environment": func(_ *tcp.Config, r *etcd.Rendezvous, rank int) {
			r.Size, r.Getenv = 0, func(name string) string {
				return map[string]string{"RANK": fmt.Sprint(rank), "WORLD_SIZE": fmt.Sprint(n)}[name]
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			job := newJob(t)
			for range 2 { // and again under the same name
				cfgs := make([]tcp.Config, n)
				for i := range cfgs {
					r := at(job, n)
					cfgs[i] = config(r)
					give(&cfgs[i], r, i)
				}
				tcptest.Close(meet(t, cfgs...))
			}
		})
	}
}

func TestManyProcessesAtOnce(t *testing.T) {
	const n = 40
	meet(t, assigned(newJob(t), n)...)
}

func TestJobsDoNotMixUp(t *testing.T) {
	job := newJob(t)
	var wg sync.WaitGroup
	for _, name := range []string{job, job + "/meeting", job + "/seats", "", strings.Repeat("x", 256)} {
		if name == "" {
			name = job + "%2Fseats"
		}
		wg.Go(func() {
			gs, errs := joinAll(soon(t), assigned(name, 3)...)
			if err := errors.Join(errs...); err != nil {
				t.Errorf("Join in job %q = %v", name, err)
			}
			tcptest.Close(gs)
		})
	}
	wg.Wait()
}

// A job meets again as soon as its ranks have met, while the first group lives. Only the
// number of the generation stays in etcd.
func TestGenerations(t *testing.T) {
	job := newJob(t)
	for generation := 1; generation <= 3; generation++ {
		size := 1 + generation
		meet(t, assigned(job, size)...)
		want := map[string]string{
			keyOf(job, "meeting"): fmt.Sprintf(`{"generation":%d,"size":%d,"met":true}`, generation, size),
		}
		if got := contents(t, job); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("etcd holds %q; want %q", got, want)
		}
	}
}

// One rendezvous serves one meeting after the other.
func TestRendezvousIsUsedAgain(t *testing.T) {
	cfgs := assigned(newJob(t), 2)
	for range 2 {
		tcptest.Close(meet(t, cfgs...))
	}
}

func TestTheSecretIsNotInEtcd(t *testing.T) {
	job := newJob(t)
	r := at(job, 2)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := tcp.Join(ctx, config(r))
		done <- err
	}()
	other := at(job, 2)
	defer other.Close()
	other.Rank = new(1)
	if _, _, err := other.Slot(soon(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Find(soon(t)); err != nil {
		t.Fatal(err)
	}
	got := contents(t, job)
	if len(got) != 4 {
		t.Errorf("while ranks meet etcd holds %q; want a record, an address and two slots", got)
	}
	for k, v := range got {
		if strings.Contains(k+v, secret) {
			t.Errorf("%s holds %q, which is secret", k, v)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Join = %v; want that it was cancelled", err)
	}
}
