package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
)

const opSymmetric group.Op = "symmetric memory"

// Symmetric shares memory of the Go heap if all ranks are goroutines of one process. Ranks
// that are processes of one host map each other's memory files, which only Linux has. These
// files have no names, so they are gone when the processes end, even if they are killed.
// Barriers and signals are messages of a group of their own.
func (p *Platform) Symmetric(ctx context.Context, g platform.Group, n int64) (platform.Symmetric, error) {
	own, err := p.use(opSymmetric, g)
	if err != nil {
		return nil, err
	}

	sub, err := own.inner.Sub(ctx, upTo(own.Size()))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opSymmetric, err)
	}

	s := &symmetric{group: p.newGroup(sub, own.ranks, identity{}), size: n}
	if err := s.share(ctx, cmp.Or(p.host, hostID())); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// hostID names the host and its processes: two ranks with the same name can open each other's
// files by the number of the process.
var hostID = sync.OnceValue(func() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	space, err2 := os.Readlink("/proc/self/ns/pid")
	if errors.Join(err, err2) != nil {
		name, _ := os.Hostname() // without one, all hosts are the same, and mapping fails
		return name
	}
	return strings.TrimSpace(string(boot)) + " " + space
})

// processID differs between processes, also of different hosts.
var processID = sync.OnceValue(rand.Text)

// heap has the memory of ranks that are goroutines, by token, until all ranks have found it.
var heap sync.Map

// symmetric is the symmetric memory of a rank.
type symmetric struct {
	group  *Group
	size   int64
	mu     sync.Mutex
	memory [][]byte // by rank, to its full length; guarded by mu
	mapped bool     // memory is of files
}

// about is compared by the ranks before they make memory.
type about struct {
	Size          int64
	Host, Process string
}

// offer is where the other ranks find the memory of a rank.
type offer struct {
	Token string // of the heap, or the last bytes of the file
	Path  string
}

// share makes the memory of this rank and finds the memory of the others.
func (s *symmetric) share(ctx context.Context, host string) error {
	in, step := s.group.inner, string(opSymmetric)
	one, err := group.Decide(ctx, in, step, group.JSON[about](), group.JSON[bool](),
		func(context.Context) (about, error) { return about{s.size, host, processID()}, checkSize(s.size) },
		func(_ context.Context, all []about) (bool, error) { return compare(all) })
	if err != nil {
		return err
	}
	s.mapped = !one

	mem, mine, done, err := s.create()
	defer done() // all ranks have found the memory, or none will

	offers, err := group.Decide(ctx, in, step, group.JSON[offer](), group.JSON[[]offer](),
		func(context.Context) (offer, error) { return mine, err },
		func(_ context.Context, all []offer) ([]offer, error) { return all, nil })
	s.memory = make([][]byte, s.group.Size())
	s.memory[s.group.Rank()] = mem

	if err != nil {
		return err
	}
	return group.Each(ctx, in, step, func(context.Context) error { return s.find(offers) })
}

func checkSize(n int64) error {
	if n < 1 {
		return fmt.Errorf("%d bytes: %w", n, group.ErrInvalid)
	}
	return nil
}

// room is the most memory that all ranks together may ask for: the memory of the host, because
// Linux kills processes if it runs out of memory. On other systems the memory is not known.
func room() int64 {
	if runtime.GOOS == "linux" {
		return stage.MachineMemory()
	}
	return 1 << 46
}

// compare reports whether all ranks are in one process. All of their memory is on one host.
func compare(all []about) (one bool, err error) {
	one = true
	for r, a := range all {
		switch {
		case a.Size != all[0].Size:
			return false, fmt.Errorf("rank 0 asked for %d bytes, rank %d for %d: %w", all[0].Size, r, a.Size, group.ErrDisagree)
		case a.Host != all[0].Host:
			return false, fmt.Errorf("ranks 0 and %d: %w", r, platform.ErrHosts)
		}
		one = one && a.Process == all[0].Process
	}

	if n := int64(len(all)); all[0].Size > room()/n {
		return false, fmt.Errorf("%d bytes for each of %d ranks; the host has %d: %w", all[0].Size, n, room(), group.ErrInvalid)
	}
	return one, nil
}

// create makes the memory of this rank. done ends the time in which others can find it.
func (s *symmetric) create() (mem []byte, at offer, done func(), err error) {
	at.Token = rand.Text()
	if !s.mapped {
		mem = make([]byte, s.size)
		heap.Store(at.Token, mem)
		return mem, at, func() { heap.Delete(at.Token) }, nil
	}

	f, mem, err := stage.NewFile(s.size + int64(len(at.Token)))
	if err != nil {
		return nil, at, func() {}, err
	}

	copy(mem[len(mem)-len(at.Token):], at.Token)
	at.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
	return mem, at, func() { f.Close() }, nil
}

// find sets the memory of the other ranks.
func (s *symmetric) find(offers []offer) error {
	for r, o := range offers {
		if s.memory[r] != nil {
			continue
		}
		mem, err := s.open(o)
		if err != nil {
			return fmt.Errorf("memory of rank %d: %w", r, err)
		}
		s.memory[r] = mem
	}
	return nil
}

func (s *symmetric) open(o offer) ([]byte, error) {
	if !s.mapped {
		mem, ok := heap.Load(o.Token)
		if !ok {
			return nil, group.ErrGone // its context has ended
		}
		return mem.([]byte), nil
	}

	f, err := os.OpenFile(o.Path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	mem, err := stage.MapFile(f)
	if err != nil {
		return nil, err
	}
	if int64(len(mem)) < s.size || !strings.HasSuffix(string(mem[len(mem)-len(o.Token):]), o.Token) {
		return nil, errors.Join(fmt.Errorf("%s belongs to another process: %w", o.Path, platform.ErrHosts), stage.Unmap(mem))
	}
	return mem, nil
}

// Memory returns the memory of a rank.
func (s *symmetric) Memory(rank int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rank < 0 || rank >= len(s.memory) {
		return nil
	}
	return s.memory[rank][:s.size:s.size]
}

// order is changed before and after each signal and barrier. So, in the memory model of Go, a
// rank of this process sees the writes of another one. Messages through a socket do not
// establish that.
var order atomic.Int64

// Barrier returns once every rank has called it.
func (s *symmetric) Barrier(ctx context.Context) error {
	defer order.Add(1)
	order.Add(1)
	return s.group.p.Barrier(ctx, s.group)
}

// Signal sends an empty message.
func (s *symmetric) Signal(ctx context.Context, to, channel int) error {
	m, err := s.group.p.messenger(group.OpSend, s.group, channel)
	if err != nil {
		return err
	}
	order.Add(1)
	return m.Send(ctx, to, channel, nil)
}

// Wait takes an empty message.
func (s *symmetric) Wait(ctx context.Context, from, channel int) error {
	m, err := s.group.p.messenger(group.OpRecv, s.group, channel)
	if err != nil {
		return err
	}
	defer order.Add(1)
	return m.RecvInto(ctx, from, channel, nil)
}

// Close unmaps the memory and leaves the group of the signals.
func (s *symmetric) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	err := s.group.leave()
	if s.mapped {
		for _, mem := range slices.DeleteFunc(s.memory, func(m []byte) bool { return m == nil }) {
			err = errors.Join(err, stage.Unmap(mem))
		}
	}

	s.memory = nil
	return err
}
