package hosts

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// benchBytes is the size of the object that is sent.
const benchBytes = 512 << 20

// BenchmarkFetch compares, over the same number of connections on this host: Fetch, and sendfile
// alone that is received into a new file; a read of a peer's object into memory that is there,
// and sendfile alone that is received into such memory.
func BenchmarkFetch(b *testing.B) {
	ctx := b.Context()
	data := noise(benchBytes)
	h := newHost(b)
	put(b, h, "x", data)
	sum := sumOf(data)

	for _, conns := range []int{1, 4, 8, 16} {
		local := folder(b)
		s := join(b, local, Config{Parallel: conns, Stall: defaultStall}, h.addr)
		b.Run(fmt.Sprintf("fetch/%d", conns), func(b *testing.B) {
			b.SetBytes(benchBytes)
			for b.Loop() {
				must.Do(b, s.Fetch(ctx, "x", benchBytes, sum))
				b.StopTimer()
				must.Do(b, local.Remove(ctx, "x"))
				b.StartTimer()
			}
		})
		b.Run(fmt.Sprintf("read/%d", conns), func(b *testing.B) {
			b.SetBytes(benchBytes)
			r := must.Get(s.Open(ctx, "x"))(b)
			defer r.Close()
			for b.Loop() {
				must.Do(b, r.ReadAt(ctx, data, 0))
			}
		})
		b.Run(fmt.Sprintf("sendfile/%d", conns), func(b *testing.B) {
			b.SetBytes(benchBytes)
			p := newPlain(b, h.Dir()+"/x", conns)
			for b.Loop() {
				must.Do(b, p.transfer(func(from io.Reader, at, n int) error {
					_, err := io.ReadFull(from, data[at:at+n])
					return err
				}))
			}
		})
		b.Run(fmt.Sprintf("sendfile to a file/%d", conns), func(b *testing.B) {
			b.SetBytes(benchBytes)
			p := newPlain(b, h.Dir()+"/x", conns)
			for b.Loop() {
				f := must.Get(os.Create(local.Dir() + "/y"))(b)
				must.Do(b, p.transfer(func(from io.Reader, at, n int) error {
					buf := make([]byte, chunkBytes)
					_, err := io.CopyBuffer(io.NewOffsetWriter(f, int64(at)), struct{ io.Reader }{io.LimitReader(from, int64(n))}, buf)
					return err
				}))
				b.StopTimer()
				must.Do(b, f.Close())
				must.Do(b, os.Remove(f.Name()))
				b.StartTimer()
			}
		})
	}
}

// plain sends a file by sendfile over a number of connections.
type plain struct {
	file  string
	pairs [][2]net.Conn
}

func newPlain(b *testing.B, file string, conns int) *plain {
	b.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(b)
	defer l.Close()
	p := &plain{file: file}
	for range conns {
		to := must.Get(net.Dial("tcp", l.Addr().String()))(b)
		from := must.Get(l.Accept())(b)
		b.Cleanup(func() { to.Close(); from.Close() })
		p.pairs = append(p.pairs, [2]net.Conn{from, to})
	}
	return p
}

// transfer sends the file. receive takes the n bytes from at on.
func (p *plain) transfer(receive func(from io.Reader, at, n int) error) error {
	part := benchBytes / len(p.pairs)
	errs := make([]error, 2*len(p.pairs))
	var wg sync.WaitGroup
	for i, pair := range p.pairs {
		wg.Go(func() { errs[2*i] = p.send(pair[0], int64(i*part), int64(part)) })
		wg.Go(func() { errs[2*i+1] = receive(pair[1], i*part, part) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *plain) send(to net.Conn, at, n int64) error {
	f, err := os.Open(p.file)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return err
	}
	_, err = io.CopyN(to, f, n)
	return err
}
