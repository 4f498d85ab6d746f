package memory

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// wire is an Ethernet of hosts. Each host is a network namespace with its own address and name.
// This process passes the frames from host to host, so that it can delay, lose, slow down and
// drop them in each direction, also where the kernel has no netem and no firewall.
type wire struct {
	t     testing.TB
	ports []*port

	mu      sync.Mutex
	closed  bool             // guarded by mu
	learned map[[6]byte]int  // the port of an address; guarded by mu
	links   map[[2]int]*link // by the ports at their ends; guarded by mu
	random  *rand.Rand       // guarded by mu
	running sync.WaitGroup
}

// port is a host as the wire sees it.
type port struct {
	tap *os.File
	do  chan func() // functions to run in the namespace of the host
}

// link is the path of frames from one host to another.
type link struct {
	cut   bool
	delay time.Duration
	loss  float64 // the part of the frames that is lost
	rate  int     // bytes per second; 0: no limit
	free  time.Time
	// after is called once when so many more bytes have passed.
	left  int
	after func()

	queue chan frame
}

// frame is a frame on its way.
type frame struct {
	at   time.Time // when it arrives
	data []byte
}

const (
	wireMTU   = 9000
	wireQueue = 512 // frames of a link; more are lost, as in a switch
)

// newWire connects n hosts. The test is skipped if this process may not make network namespaces.
func newWire(t testing.TB, n int) *wire {
	t.Helper()
	seed := rand.Uint64()
	w := &wire{t: t, learned: map[[6]byte]int{}, links: map[[2]int]*link{}, random: rand.New(rand.NewPCG(seed, 0))}
	t.Cleanup(w.close)
	for i := range n {
		p := &port{do: make(chan func())}
		made := make(chan error)
		go p.live(i, made)
		if err := <-made; err != nil {
			t.Skipf("hosts with networks of their own need root, network namespaces and /dev/net/tun: %v", err)
		}
		w.ports = append(w.ports, p)
	}
	t.Logf("seed %d", seed)
	for from := range n {
		for to := range n {
			if from != to {
				l := &link{queue: make(chan frame, wireQueue)}
				w.links[[2]int{from, to}] = l
				w.running.Go(func() { l.deliver(w.ports[to].tap) })
			}
		}
	}
	for i := range n {
		w.running.Go(func() { w.read(i) })
	}
	return w
}

// addr returns the address of a host.
func addr(host int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(host + 1)}) }

// live makes the namespaces of a host, and then runs functions in them until do is closed. They end
// with the thread and the processes in them.
func (p *port) live(host int, made chan<- error) {
	runtime.LockOSThread() // and never unlocks it, so that the thread ends
	err := p.make(host)
	made <- err
	if err != nil {
		return
	}
	for fn := range p.do {
		fn()
	}
}

// make makes the namespaces of a host and its interface.
func (p *port) make(host int) error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWUTS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Sethostname([]byte(fmt.Sprint("host", host))); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	if err := configure(fd, host); err != nil {
		unix.Close(fd)
		return err
	}
	p.tap = os.NewFile(uintptr(fd), fmt.Sprint("tap of host ", host))
	return nil
}

// configure gives addresses to the interfaces of a namespace: lo, and copy0 on the wire, which has
// two of them.
func configure(tap, host int) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(s)

	r := must.Value(unix.NewIfreq("copy0"))
	r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(tap, unix.TUNSETIFF, r); err != nil {
		return os.NewSyscallError("TUNSETIFF", err)
	}
	r = must.Value(unix.NewIfreq("copy0"))
	r.SetUint32(wireMTU)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFMTU, r); err != nil {
		return os.NewSyscallError("SIOCSIFMTU", err)
	}
	for _, i := range []struct {
		name string
		addr [4]byte
	}{{"lo", [4]byte{127, 0, 0, 1}}, {"copy0", addr(host).As4()}, {"copy0:1", [4]byte{10, 78, 0, byte(host + 1)}}} {
		r := must.Value(unix.NewIfreq(i.name))
		must0(r.SetInet4Addr(i.addr[:]))
		if err := unix.IoctlIfreq(s, unix.SIOCSIFADDR, r); err != nil {
			return os.NewSyscallError("SIOCSIFADDR", err)
		}
		r = must.Value(unix.NewIfreq(i.name))
		must0(r.SetInet4Addr([]byte{255, 255, 255, 0}))
		if err := unix.IoctlIfreq(s, unix.SIOCSIFNETMASK, r); err != nil {
			return os.NewSyscallError("SIOCSIFNETMASK", err)
		}
		r = must.Value(unix.NewIfreq(i.name))
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r); err != nil {
			return os.NewSyscallError("SIOCSIFFLAGS", err)
		}
	}
	return nil
}

func must0(err error) {
	if err != nil {
		panic(err)
	}
}

// start starts a process on a host.
func (w *wire) start(host int, cmd *exec.Cmd) error {
	started := make(chan error)
	w.ports[host].do <- func() { started <- cmd.Start() }
	return <-started
}

// change changes the links between two hosts, in both directions.
func (w *wire) change(a, b int, fn func(l *link)) {
	w.oneWay(a, b, fn)
	w.oneWay(b, a, fn)
}

// oneWay changes the link from one host to another.
func (w *wire) oneWay(from, to int, fn func(l *link)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn(w.links[[2]int{from, to}])
}

// isolate cuts or mends all links of a host.
func (w *wire) isolate(host int, cut bool) {
	for other := range w.ports {
		if other != host {
			w.change(host, other, func(l *link) { l.cut = cut })
		}
	}
}

// all changes all links.
func (w *wire) all(fn func(l *link)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.links {
		fn(l)
	}
}

// read passes on the frames that a host sends.
func (w *wire) read(from int) {
	for {
		b := make([]byte, wireMTU+64)
		n, err := w.ports[from].tap.Read(b)
		if err != nil {
			return // the wire is closed
		}
		if n >= 14 {
			w.pass(from, b[:n])
		}
	}
}

// pass passes a frame to the hosts that it is for.
func (w *wire) pass(from int, b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	to, source := [6]byte(b[:6]), [6]byte(b[6:12])
	w.learned[source] = from
	port, known := w.learned[to]
	for i := range w.ports {
		if i != from && (i == port || !known) && !w.closed {
			w.links[[2]int{from, i}].send(b, w.random)
		}
	}
}

// send puts a frame on its way, unless it is lost.
func (l *link) send(b []byte, random *rand.Rand) {
	if l.after != nil {
		if l.left -= len(b); l.left <= 0 {
			after := l.after
			l.after = nil
			after()
		}
	}
	if l.cut || random.Float64() < l.loss {
		return
	}
	at := time.Now()
	if l.rate > 0 {
		if l.free.Before(at) {
			l.free = at
		}
		l.free = l.free.Add(time.Duration(len(b)) * time.Second / time.Duration(l.rate))
		at = l.free
	}
	select {
	case l.queue <- frame{at.Add(l.delay), b}:
	default: // too many frames
	}
}

// deliver writes the frames of the link when they arrive.
func (l *link) deliver(tap *os.File) {
	for f := range l.queue {
		time.Sleep(time.Until(f.at))
		_, _ = tap.Write(f.data) // an error means that the host has gone
	}
}

// close ends the wire and the namespaces.
func (w *wire) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	for _, p := range w.ports {
		close(p.do)
		p.tap.Close()
	}
	for _, l := range w.links {
		close(l.queue)
	}
	w.running.Wait()
}
