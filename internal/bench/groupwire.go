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
}

// wireBuffer is how much a plain connection writes or reads at a time. It stays
// in a processor's cache, which favours the floor.
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

// move sends and receives so many bytes at the same time.
func (r *ring) move(send, receive int64) error {
	var both errgroup.Group
	both.Go(func() error {
		buf := make([]byte, wireBuffer)
		for send > 0 {
			n, err := r.to.Write(buf[:min(send, wireBuffer)])
			if err != nil {
				return err
			}
			send -= int64(n)
		}
		return nil
	})
	both.Go(func() error {
		buf := make([]byte, wireBuffer)
		for receive > 0 {
			n, err := r.from.Read(buf[:min(receive, wireBuffer)])
			if err != nil {
				return err
			}
			receive -= int64(n)
		}
		return nil
	})
	return both.Wait()
}
