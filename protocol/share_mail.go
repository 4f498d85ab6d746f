package protocol

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	// inlineBytes is the largest size of a piece that is sent in one message with
	// other pieces. bundleBytes is about the size of such a message.
	inlineBytes, bundleBytes = 64 << 10, 256 << 10
	// sliceBytes is the number of bytes of a large piece that one message holds.
	sliceBytes = 4 << 20
)

// headSum returns the checksum of a piece's number and length, to be continued with
// its body, so that pieces with equal bodies have different checksums.
func headSum(id, bytes int64) uint32 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(id))
	binary.LittleEndian.PutUint64(b[8:], uint64(bytes))
	return crc32c.Checksum(b[:])
}

// sendAll sends rank all pieces that this rank reads for it.
func (s *sharing) sendAll(ctx context.Context, rank int, queue chan *piece) error {
	for left := cap(queue); left > 0; {
		batch, err := nextBatch(ctx, queue)
		if err != nil {
			return err
		}
		if err := s.send(ctx, rank, batch); err != nil {
			return err
		}
		for _, p := range batch {
			if err := s.sent(p); err != nil {
				return err
			}
		}
		left -= len(batch)
	}
	return nil
}

// nextBatch waits for a piece and returns it with further pieces that are already
// in queue. Only the last piece may be large.
func nextBatch(ctx context.Context, queue <-chan *piece) ([]*piece, error) {
	var batch []*piece
	select {
	case p := <-queue:
		batch = append(batch, p)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for bytes := batch[0].bytes; bytes < bundleBytes && batch[len(batch)-1].bytes <= inlineBytes; {
		select {
		case p := <-queue:
			batch = append(batch, p)
			bytes += p.bytes
		default:
			return batch, nil
		}
	}
	return batch, nil
}

// send sends a batch: a message that lists the pieces and contains the small ones,
// and then the large piece, if there is one. It acquires bytes of outbound before the
// first message and holds them to the end: after the first message the receiver
// reserves memory of its own, and must not wait until this rank has sent to another
// receiver.
func (s *sharing) send(ctx context.Context, rank int, batch []*piece) error {
	head, n := encodeHead(batch), int64(0)
	last := batch[len(batch)-1]
	if last.bytes > inlineBytes {
		n = min(last.bytes, sliceBytes)
	}
	n, err := s.outbound.acquire(ctx, n+int64(len(head)))
	if err != nil {
		return err
	}
	defer s.outbound.free.Release(n)
	if err := s.mail.Send(ctx, rank, s.tag, head); err != nil {
		return fmt.Errorf("share %q: %w", batch[0].item.Source.FQN, err)
	}
	if last.bytes <= inlineBytes {
		return nil
	}
	for body := last.body; len(body) > 0; {
		n := min(len(body), sliceBytes)
		if err := s.mail.Send(ctx, rank, s.tag, body[:n]); err != nil {
			return fmt.Errorf("share %q: %w", last.item.Source.FQN, err)
		}
		body = body[n:]
	}
	return nil
}

// encodeHead returns the first message of a batch.
func encodeHead(batch []*piece) []byte {
	var w wire.Writer
	for _, p := range batch {
		w.Uvarint(uint64(p.id))
		w.U32(p.crc)
		w.Uvarint(uint64(p.bytes))
		if p.bytes <= inlineBytes {
			w.B = append(w.B, p.body...)
		}
	}
	return w.B
}

// headEntry describes one piece in a head.
type headEntry struct {
	id, bytes int64
	crc       uint32
	body      []byte // nil: it comes after the head
}

// decodeHead decodes a head. The bodies are slices of b. If no rank could have sent
// b, the error wraps wire.ErrMalformed.
func decodeHead(b []byte) ([]headEntry, error) {
	var out []headEntry
	r := wire.NewReader(b)
	for r.Len() > 0 {
		c := headEntry{id: r.Size(), crc: r.U32(), bytes: r.Size()}
		if c.bytes > inlineBytes {
			out = append(out, c)
			break
		}
		c.body = r.Raw(int(c.bytes))
		out = append(out, c)
	}
	if len(out) == 0 {
		r.Fail("it lists no piece")
	}
	if err := r.Done(); err != nil {
		return nil, err
	}
	return out, nil
}

// receiveAll receives from rank all pieces that it reads for this rank.
func (s *sharing) receiveAll(ctx context.Context, rank int, want map[int64]*piece) error {
	for len(want) > 0 {
		b, err := s.mail.Recv(ctx, rank, s.tag)
		if err != nil {
			return fmt.Errorf("shared reads: %w", err)
		}
		head, err := decodeHead(b)
		if err != nil {
			return fmt.Errorf("%w: message from rank %d about shared reads: %w", storage.ErrCorrupt, rank, err)
		}
		for _, c := range head {
			p := want[c.id]
			if p == nil || p.bytes != c.bytes {
				return fmt.Errorf("%w: rank %d sent %d bytes as piece %d, which the plan does not expect", storage.ErrCorrupt, rank, c.bytes, c.id)
			}
			delete(want, c.id)
			if err := s.receive(ctx, rank, p, c); err != nil {
				return plan.Named(p.item.Source.FQN, err)
			}
		}
	}
	return nil
}

// receive receives one piece and hands it over to the planner.
func (s *sharing) receive(ctx context.Context, rank int, p *piece, c headEntry) error {
	if c.body == nil && p.direct {
		mem, _ := p.to.Bytes()
		if err := s.receiveInto(ctx, rank, c, mem); err != nil {
			return err
		}
		return s.deliver(p)
	}
	body := c.body
	if body == nil {
		n, err := s.inbound.acquire(ctx, p.bytes)
		if err != nil {
			return err
		}
		defer s.inbound.free.Release(n)
		body = make([]byte, p.bytes)
		if err := s.receiveInto(ctx, rank, c, body); err != nil {
			return err
		}
	} else if err := c.check(rank, crc32c.Update(headSum(c.id, c.bytes), body)); err != nil {
		return err
	}
	src, err := tensor.FromBytes(p.dtype, p.item.Lengths, body)
	if err != nil {
		return err
	}
	if err := s.fill(p, src); err != nil {
		return err
	}
	return s.deliver(p)
}

// receiveInto fills mem with the body of a large piece and checks it.
func (s *sharing) receiveInto(ctx context.Context, rank int, c headEntry, mem []byte) error {
	crc := headSum(c.id, c.bytes)
	for len(mem) > 0 {
		part := mem[:min(len(mem), sliceBytes)]
		if err := s.mail.RecvInto(ctx, rank, s.tag, part); err != nil {
			if errors.Is(err, group.ErrDisagree) {
				err = fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
			}
			return err
		}
		crc = crc32c.Update(crc, part)
		mem = mem[len(part):]
	}
	return c.check(rank, crc)
}

// check returns an error unless the checksum is the sender's.
func (c *headEntry) check(rank int, crc uint32) error {
	if crc != c.crc {
		return fmt.Errorf("%w: the bytes that rank %d sent have a wrong checksum", storage.ErrCorrupt, rank)
	}
	return nil
}

// deliver counts a received piece and hands it over to the planner.
func (s *sharing) deliver(p *piece) error {
	s.received.Add(p.bytes)
	if err := s.commit(p); err != nil {
		return err
	}
	if s.Observer.Moved != nil {
		s.Observer.Moved(p.bytes)
	}
	return nil
}
