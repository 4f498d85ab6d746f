package bench

import (
	"context"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/group"
)

// ring is one plain connection from each rank to the next.
type ring struct {
	to, from net.Conn
	spare    []byte // to receive into
}

// wireBuffer is how much a plain connection writes or reads at a time.
const wireBuffer = 1 << 20

// newRing connects the ranks of a group.
func newRing(ctx context.Context, g group.Group) (*ring, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	addrs, err := g.AllGather(ctx, []byte(ln.Addr().String()))
	if err != nil {
		return nil, err
	}
	r := new(ring)
	next := string(addrs[(g.Rank()+1)%g.Size()])
	if r.to, err = new(net.Dialer).DialContext(ctx, "tcp", next); err != nil {
		return nil, err
	}
	if r.from, err = ln.Accept(); err != nil {
		r.to.Close()
		return nil, err
	}
	return r, nil
}

func (r *ring) close() {
	r.to.Close()
	r.from.Close()
}

// move sends and receives so many bytes at the same time, round and round from
// one memory and into the other.
func (r *ring) move(send, receive int64, from, into []byte) error {
	var both errgroup.Group
	both.Go(func() error { return pump(r.to.Write, send, from) })
	both.Go(func() error { return pump(r.from.Read, receive, into) })
	return both.Wait()
}

// pump calls do with what comes next in mem, until that was n bytes.
func pump(do func([]byte) (int, error), n int64, mem []byte) error {
	at := 0
	for n > 0 {
		k, err := do(mem[at:min(int64(at)+min(n, wireBuffer), int64(len(mem)))])
		if err != nil {
			return err
		}
		n -= int64(k)
		at = (at + k) % len(mem)
	}
	return nil
}
