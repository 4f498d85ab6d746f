package host_test

import (
	"errors"
	"flag"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
	"github.com/cairn-ckpt/cairn/platform/platformtest"
)

// onlyVariable is set in processes that a test has started, to the test that they run.
const onlyVariable = "CAIRN_HOST_TEST_ONLY"

func TestMain(m *testing.M) {
	if only := os.Getenv(onlyVariable); only != "" {
		flag.Parse()
		if err := flag.Set("test.run", only); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

func TestHostOverGoroutines(t *testing.T) {
	platformtest.Run(t, goroutines, nil)
}

func TestHostOverTCP(t *testing.T) {
	platformtest.Run(t, sockets, &platformtest.Options{Sizes: []int{2, 4}, Real: true})
}

func TestHostOverSolo(t *testing.T) {
	solo := func(*testing.T, int) []platform.Platform { return []platform.Platform{host.New(nil)} }
	platformtest.Run(t, solo, &platformtest.Options{Sizes: []int{1}})
}

// A world that is itself a part of another group has ranks of its own.
func TestHostOverPartOfAGroup(t *testing.T) {
	platformtest.Run(t, part, &platformtest.Options{Sizes: []int{1, 3}})
}

func goroutines(_ *testing.T, n int) []platform.Platform {
	ps := make([]platform.Platform, n)
	for r, g := range inproc.New(n) {
		ps[r] = host.New(g)
	}
	return ps
}

func part(t *testing.T, n int) []platform.Platform {
	all := inproc.New(n + 2)
	ps := make([]platform.Platform, n)
	listed := make([]int, n)
	for i := range listed {
		listed[i] = n + 1 - i // from behind
	}
	var wg sync.WaitGroup
	for r, g := range all {
		wg.Go(func() {
			sub, err := g.Sub(t.Context(), listed)
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			} else if sub != nil {
				ps[sub.Rank()] = host.New(sub)
			}
		})
	}
	wg.Wait()
	return ps
}

// sockets returns ranks of this process that meet over the loopback device.
func sockets(t *testing.T, n int) []platform.Platform {
	t.Helper()
	ps := make([]platform.Platform, n)
	for r, g := range tcptest.Meet(t, n, tcptest.ByFile(t, n)) {
		ps[r] = host.New(g)
	}
	return ps
}

func TestBackendsHaveNames(t *testing.T) {
	for want, p := range map[string]platform.Platform{
		"solo": host.New(nil), "inproc": goroutines(t, 1)[0], "tcp": sockets(t, 1)[0],
		"other": host.New(silent{group.Solo()}),
	} {
		if got := p.World().Backend(); got != want {
			t.Errorf("Backend = %q; want %q", got, want)
		}
	}
}

// A group without messages has neither Send nor tensor collectives.
func TestGroupsWithoutMessages(t *testing.T) {
	p := host.New(silent{inproc.New(2)[0]})
	if err := p.Send(t.Context(), p.World(), 1, 0, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Send = %v; want ErrUnsupported", err)
	}
	if c, err := p.TensorComm(p.World()); !errors.Is(err, errors.ErrUnsupported) || c != nil {
		t.Errorf("TensorComm = %v, %v; want ErrUnsupported", c, err)
	}
}

// silent hides that a group can send messages.
type silent struct{ group.Group }

func TestTagsOfCollectivesAreRefused(t *testing.T) {
	p := goroutines(t, 1)[0]
	for _, tag := range []int{1 << 28, 1 << 40} {
		if err := p.Send(t.Context(), p.World(), 0, tag, nil); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("Send with tag %d = %v; want ErrInvalid", tag, err)
		}
	}
}
