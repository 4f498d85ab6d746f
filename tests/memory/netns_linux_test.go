package memory

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
)

// shortStall is the stall time of tests in which a host does not answer. A slow machine must not
// need as long for a step.
const shortStall = 3 * time.Second

// save and load are the questions of the tests. The seed of the state is the number of the step.
func save(step int64) question { return question{Op: "save", Step: step, Seed: uint64(step)} }
func load(step int64) question { return question{Op: "load", Step: step, Seed: uint64(step)} }

// others returns the hosts without some of them.
func others(all []*machine, without ...int) []*machine {
	return slices.DeleteFunc(slices.Clone(all), func(m *machine) bool { return slices.Contains(without, m.number) })
}

// files returns the files of a step on the host.
func (m *machine) files(t testing.TB, step int64) []string {
	return must.Get(filepath.Glob(filepath.Join(string(m.root), "llama", run.FolderName(step), "*")))(t)
}

// lose loses a host: its processes, its network and its memory.
func (m *machine) lose(t testing.TB, s *session) {
	s.signal(syscall.SIGKILL, m.number)
	m.w.isolate(m.number, true)
	must.Do(t, os.RemoveAll(string(m.root)))
}

// A host is lost with its network. The others go on with the same bytes, and save again.
func TestNetworkLosesAHost(t *testing.T) {
	t.Parallel()
	all := machines(t, newWire(t, 4))
	first := startJob(t, all, shortStall)
	first.must(save(10))
	all[3].lose(t, first)
	first.kill()

	left := startJob(t, others(all, 3), shortStall)
	left.must(load(10))
	left.must(save(11))
	left.must(load(11))
	left.kill()

	// The new group of three has copies too.
	all[0].lose(t, left)
	startJob(t, others(all, 0, 3), shortStall).must(load(11))
}

// Delays and lost packets make copies slow, not wrong.
func TestNetworkIsSlow(t *testing.T) {
	t.Parallel()
	w := newWire(t, 4)
	all := machines(t, w)
	w.all(func(l *link) { l.delay, l.loss = 20*time.Millisecond, 0.01 })
	s := startJob(t, all, 0)
	s.must(save(10))
	s.must(load(10))
	s.kill()
	w.all(func(l *link) { l.delay, l.loss = 0, 0 })
	startJob(t, others(all, 1, 3), 0).must(load(10)) // from copies
}

// A link is cut in the middle of a copy. The copy fails on all ranks with the name of the host. The
// checkpoint before stays, and the next one is copied when the link is back.
func TestNetworkIsCut(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(w *wire, cut bool){
		"in both directions":     func(w *wire, cut bool) { w.change(2, 3, func(l *link) { l.cut = cut }) },
		"towards the receiver":   func(w *wire, cut bool) { w.oneWay(2, 3, func(l *link) { l.cut = cut }) },
		"away from the receiver": func(w *wire, cut bool) { w.oneWay(3, 2, func(l *link) { l.cut = cut }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, 4)
			all := machines(t, w)
			s := startJob(t, all, shortStall)
			s.must(save(10))

			tripped := make(chan bool)
			w.oneWay(2, 3, func(l *link) { l.left, l.after = 100<<10, func() { close(tripped) } })
			go func() {
				<-tripped
				cut(w, true)
			}()
			w.change(2, 3, func(l *link) { l.rate = 1 << 20 })
			errs := s.ask(save(11))
			checkErrors(t, errs, "copy: ", "no progress for "+shortStall.String())
			if !strings.Contains(errs[0], all[2].String()) && !strings.Contains(errs[0], all[3].String()) {
				t.Errorf("the error %q does not name one of the hosts %s and %s", errs[0], all[2], all[3])
			}
			s.must(load(10)) // while the link is cut

			cut(w, false)
			w.change(2, 3, func(l *link) { l.rate = 0 })
			s.must(save(12))
			s.must(load(12))
			s.must(save(11)) // the step whose copies have failed
			s.kill()
			for _, m := range all {
				if ids := saveIDs(t, m.root, 11); len(ids) != 1 {
					t.Errorf("host %d has files of the saves %q of step 11; want one", m.number, ids)
				}
			}
			for _, without := range [][]int{{0, 2}, {1, 3}} {
				s := startJob(t, others(all, without...), shortStall)
				s.must(load(12))
				s.must(load(11))
				s.must(load(10))
				s.kill()
			}
		})
	}
}

// All links of a host are cut in the middle of a copy. All ranks fail, also the one behind the cut.
// The job is started again without the host, and later with it.
func TestNetworkIsolatesAHost(t *testing.T) {
	t.Parallel()
	w := newWire(t, 4)
	all := machines(t, w)
	s := startJob(t, all, shortStall, silenceVariable+"=5s")
	s.must(save(10))
	tripped := make(chan bool)
	w.oneWay(2, 3, func(l *link) { l.left, l.after = 100<<10, func() { close(tripped) } })
	w.change(2, 3, func(l *link) { l.rate = 1 << 20 })
	go func() {
		<-tripped
		w.isolate(3, true)
	}()
	errs := s.ask(save(11))
	checkErrors(t, errs[:3], "rank 3")
	checkErrors(t, errs[3:], "rank 0")
	s.kill()

	left := startJob(t, others(all, 3), shortStall)
	left.must(load(10))
	left.must(save(12))
	left.kill()
	w.isolate(3, false)
	again := startJob(t, []*machine{all[3], all[2], all[1], all[0]}, shortStall)
	again.must(load(12))
	again.must(load(10))
}

// A host freezes while other hosts load from it. They read the copy of another host. After
// that, the frozen host serves again.
func TestNetworkHasAFrozenHost(t *testing.T) {
	t.Parallel()
	w := newWire(t, 4)
	all := machines(t, w)
	first := startJob(t, all, shortStall)
	first.must(save(10))

	// Hosts 0 and 1 go on alone. Host 3 is the first one that answers them.
	left := startJob(t, others(all, 2, 3), shortStall)
	for _, host := range []int{0, 1} {
		w.change(host, 2, func(l *link) { l.delay = 20 * time.Millisecond })
		w.oneWay(3, host, func(l *link) {
			l.rate = 1 << 20
			l.left, l.after = 50<<10, func() { first.signal(syscall.SIGSTOP, 3) }
		})
	}
	left.must(load(10))
	first.signal(syscall.SIGSTOP, 3) // if host 2 was the first one on a slow machine
	left.must(load(10))              // it is frozen from the beginning
	w.all(func(l *link) { l.rate, l.delay = 0, 0 })

	// Without host 2, host 3 is needed.
	w.isolate(2, true)
	errs := left.ask(load(10))
	checkErrors(t, errs, all[3].String())
	first.signal(syscall.SIGCONT, 3)
	left.must(load(10))
}

// After a reboot, the memory of a host is empty. It is another host with the same address and name.
func TestNetworkHostReboots(t *testing.T) {
	t.Parallel()
	all := machines(t, newWire(t, 4))
	first := startJob(t, all, shortStall)
	first.must(save(10))
	first.kill()
	old := all[3].String()
	all[3].boot(t, fmt.Sprintf("%02d%030d", 77, 0))

	again := startJob(t, all, shortStall)
	// hosts returns the ids of the hosts of the run, as host 0 knows them, and those that have left.
	hosts := func() (here, left []string) {
		for _, h := range must.Get(all[0].root.ReadMembers("llama"))(t).Hosts {
			if h.Left {
				left = append(left, h.Label())
			} else {
				here = append(here, h.Label())
			}
		}
		return here, left
	}
	again.must(load(10))
	if here, left := hosts(); len(here) != 4 || !slices.Equal(left, []string{old}) {
		t.Errorf("the run has the hosts %q, and %q have left; want 4, and %s", here, left, old)
	}
	// A save with copies needs nothing of hosts that have left.
	again.must(save(11))
	if here, left := hosts(); len(here) != 4 || len(left) != 0 {
		t.Errorf("after a save, the run has the hosts %q, and %q have left; want 4, and none", here, left)
	}
	again.kill()
	for _, without := range [][]int{{0, 2}, {1, 3}} {
		s := startJob(t, others(all, without...), shortStall)
		s.must(load(11))
		s.kill()
	}
}

// The user chooses the network of the copies.
func TestNetworkIsChosen(t *testing.T) {
	w := newWire(t, 2)
	for name, c := range map[string]struct {
		choice string
		want   netip.Prefix
	}{
		"by default it is the network of rank 0": {"", netip.MustParsePrefix("10.77.0.0/24")},
		"the name of an interface":               {"copy0", netip.MustParsePrefix("10.77.0.0/24")},
		"a range":                                {"10.78.0.0/16", netip.MustParsePrefix("10.78.0.0/24")},
	} {
		t.Run(name, func(t *testing.T) {
			all := machines(t, w)
			s := startJob(t, all, shortStall, "CAIRN_NET="+c.choice)
			s.must(save(10))
			s.must(load(10))
			s.kill()
			for _, m := range all {
				members := must.Get(m.root.ReadMembers("llama"))(t)
				for _, h := range members.Hosts {
					if at, err := netip.ParseAddrPort(h.Addresses[0]); err != nil || !c.want.Contains(at.Addr()) || len(h.Addresses) != 1 {
						t.Errorf("host %s has the addresses %q (%v); want one in %v", h.ID, h.Addresses, err, c.want)
					}
				}
			}
		})
	}
	for name, choice := range map[string]string{
		"an interface that is not there": "ib0", "a range without an address": "10.79.0.0/16", "an address": "10.77.0.1", "nonsense": "10.77.0.0/99",
	} {
		t.Run(name, func(t *testing.T) {
			s := launch(t, machines(t, w), shortStall, "CAIRN_NET="+choice)
			checkErrors(t, s.ask(question{Op: "join"}), "CAIRN_NET", choice, "unusable options")
		})
	}
}

// A store that stays open goes on if a host that has left the job goes away: by the end of its
// processes, or without a word.
func TestNetworkLosesAHostThatHasLeft(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *wire, s *session){
		"its processes end":     func(_ *wire, s *session) { s.signal(syscall.SIGKILL, 3) },
		"its processes freeze":  func(_ *wire, s *session) { s.signal(syscall.SIGSTOP, 3) },
		"its network goes away": func(w *wire, _ *session) { w.isolate(3, true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, 4)
			all := machines(t, w)
			first := startJob(t, all, shortStall)
			first.must(save(10))
			left := startJob(t, others(all, 3), shortStall)
			left.must(question{Op: "keep"})
			left.must(load(10))
			lose(w, first)
			left.must(load(10))
			left.must(save(11))
			left.must(load(11))
		})
	}
}

// A host without room for its part, or for copies of others, fails the save with a named error, and
// keeps nothing of it. The checkpoint before stays, and a smaller one fits.
func TestMemoryIsFull(t *testing.T) {
	t.Parallel()
	for name, full := range map[string]int{"of rank 0": 0, "of another rank": 1} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t, 2)
			all := machines(t, w)
			if err := syscall.Mount("none", string(all[full].root), "tmpfs", 0, "size=8m,mode=0700"); err != nil {
				t.Skipf("a memory of its own size needs the right to mount: %v", err)
			}
			t.Cleanup(func() { must.Do(t, syscall.Unmount(string(all[full].root), syscall.MNT_DETACH)) })
			must.Do(t, os.WriteFile(string(all[full].root)+"/host", []byte(all[full].id+"\n"), 0o600))
			s := startJob(t, all, shortStall)
			s.must(save(10)) // about 0.6 MiB on each host, and as much in copies

			// 10 MiB on each host do not fit.
			big := save(20)
			big.MiB = 20
			checkErrors(t, s.ask(big), "no space left on device")
			for _, m := range all {
				if files := m.files(t, 20); len(files) > 0 {
					t.Errorf("host %d has %q of a save that failed", m.number, files)
				}
			}
			s.must(load(10))

			// 5 MiB fit, and their copies do not.
			big = save(21)
			big.MiB = 10
			checkErrors(t, s.ask(big), "copy: ", "no space left on device")
			for _, path := range all[full].files(t, 21) {
				if strings.Contains(path, fmt.Sprintf("-r%05d-", 1-full)) || strings.Contains(filepath.Base(path), "tmp") {
					t.Errorf("host %d has %s, a part of a copy that failed", full, path)
				}
			}
			s.must(load(10))
			s.must(save(30))
			s.must(load(30))
		})
	}
}

// A saver is killed after all data files of a step are there, and before the record is. The step
// does not exist, the one before does, and the same step can be saved again.
func TestSaverIsKilledBeforeTheRecord(t *testing.T) {
	t.Parallel()
	all := machines(t, newWire(t, 2))
	s := startJob(t, all, shortStall)
	s.must(save(10))
	half := save(11)
	half.Die = 1
	checkErrors(t, s.ask(half)[1:], "rank 0")
	s.kill()

	again := startJob(t, all, shortStall)
	again.must(load(10))
	checkErrors(t, again.ask(load(11)), "checkpoint is incomplete")
	again.must(save(11))
	again.must(load(11))
	again.kill()
	for _, m := range all {
		if ids := saveIDs(t, m.root, 11); len(ids) != 1 {
			t.Errorf("host %d has files of the saves %q; want one", m.number, ids)
		}
		startJob(t, []*machine{m}, shortStall).must(load(11))
	}
}
