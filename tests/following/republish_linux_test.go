package following

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// The environment of a publisher, which is a process of a test: its folder, and the number of
// publishers before it.
const (
	publisherFolder = "CAIRN_TEST_PUBLISHER"
	publisherRound  = "CAIRN_TEST_ROUND"
)

func init() {
	if dir := os.Getenv(publisherFolder); dir != "" {
		if err := publishVersions(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// republished is the number of versions that each publisher saves. They have the same numbers
// as the versions of the publisher before it.
const republished = 4

// publishVersions saves the versions of a publisher. It prints a line before and after each
// save.
func publishVersions(dir string) error {
	ctx := context.Background()
	round, err := strconv.Atoi(os.Getenv(publisherRound))
	if err != nil {
		return err
	}
	keep, err := cairn.ParsePolicy("last 3")
	if err != nil {
		return err
	}
	r, err := cairn.NewRun(dir, &cairn.RunOptions{Keep: keep})
	if err != nil {
		return err
	}
	for v := int64(1); v <= republished; v++ {
		state, err := weightsOf(round, int(v))
		if err != nil {
			return err
		}
		fmt.Println("saving")
		if _, err := r.Save(ctx, state, &cairn.SaveOptions{Step: &v}); err != nil {
			return err
		}
		fmt.Println("saved")
	}
	return r.Close(ctx)
}

// Publishers are killed and started again, and publish the same versions with other contents,
// while followers read. A follower sees no error, and every version is whole.
//
// SOAK is how long it runs, such as 5m, and SEED repeats the moments of the kills, as for TestSoak. With SOAK, the
// version that each publisher saves first is saved again at least 200 times, however long that takes.
func TestFollowVersionsThatAreRepublished(t *testing.T) {
	length := deep.Soak(t, 0, time.Minute)
	least := 6
	if length > 0 {
		least = 200
	}
	seed := deep.Seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	republish(t, dir, 0, -1, 0)

	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(least)*20*time.Second+2*length)
	var last atomic.Int64 // the last publisher, when it is known
	var followers sync.WaitGroup
	defer followers.Wait()
	defer cancel()
	for name, f := range map[string]struct {
		ranks   int
		options cairn.FollowOptions
		step    int64
	}{
		"two ranks":   {2, cairn.FollowOptions{}, cairn.Newest},
		"no cache":    {1, cairn.FollowOptions{CacheBytes: -1}, cairn.Newest},
		"one version": {1, cairn.FollowOptions{}, republished},
	} {
		followers.Go(func() {
			err := inproc.Run(ctx, f.ranks, func(ctx context.Context, g group.Group) error {
				o := f.options
				o.Group, o.Interval = g, time.Millisecond
				return followUntil(ctx, t, dir, &o, f.step, &last)
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}

	round, again := 1, 0
	for begun := time.Now(); (again < least || time.Since(begun) < length) && ctx.Err() == nil; round++ {
		if republish(t, dir, round, random.IntN(2*republished), time.Duration(random.IntN(8000))*time.Microsecond) > 0 {
			again++
		}
	}
	last.Store(int64(round))
	republish(t, dir, round, -1, 0)
	followers.Wait()
	t.Logf("%d publishers; version 1 was saved again %d times", round+1, again+1)
}

// followUntil follows until it has a version of the last publisher.
func followUntil(ctx context.Context, t testing.TB, dir string, o *cairn.FollowOptions, step int64, last *atomic.Int64) error {
	f, err := cairn.Follow(dir, o)
	if err != nil {
		return err
	}
	defer f.Close()
	state := follows(t, o.Group)
	for n := 1; ; n++ {
		if step == cairn.Newest {
			if _, err := f.Wait(ctx); err != nil {
				return fmt.Errorf("wait: %w", err)
			}
		}
		p, err := f.Prepare(ctx, state, step)
		if err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
		r, err := p.Commit()
		if err != nil {
			return err
		}
		if err := checkFollowed(t, state, r.Version, o.Group); err != nil {
			return fmt.Errorf("update %d: %w", n, err)
		}
		end, err := group.Broadcast(ctx, o.Group, "end", 0, group.JSON[bool](), func(context.Context) (bool, error) {
			return state["round"] == int(last.Load()), nil
		})
		if err != nil || end {
			return err
		}
	}
}

// republish starts a publisher, and returns how many versions it has saved. It is killed some time
// after it has printed a number of lines; if that is negative, it must end by itself.
func republish(t testing.TB, dir string, round, lines int, delay time.Duration) (saved int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), must.Get(os.Executable())(t))
	cmd.Env = append(os.Environ(), publisherFolder+"="+dir, fmt.Sprint(publisherRound, "=", round))
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	said := bufio.NewScanner(out)
	for n := 0; n != lines && said.Scan(); n++ {
		if said.Text() == "saved" {
			saved++
		}
	}
	if lines >= 0 {
		time.Sleep(delay)
		_ = cmd.Process.Kill()
	}
	rest, _ := io.ReadAll(out)
	if err := cmd.Wait(); err != nil && (lines < 0 || !killed(err)) {
		t.Fatalf("publisher %d: %v: %s%s", round, err, said.Text(), rest)
	}
	return saved
}

// killed reports whether err is the end of a process that was killed.
func killed(err error) bool {
	e, ok := errors.AsType[*exec.ExitError](err)
	return ok && !e.Exited()
}
