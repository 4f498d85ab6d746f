package tree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// kind is the first byte of a frame.
type kind byte

const (
	kindAlive   kind = iota + 1 // a keep-alive
	kindEnter                   // up: all of the subtree have made the call
	kindFail                    // up: the call cannot succeed
	kindGo                      // down: all have come, values may travel
	kindDone                    // up: all of the subtree have their values
	kindOutcome                 // down: how the call has ended
	kindAlarm                   // either way: a rank has failed before the call
	kindLost                    // up: a rank is gone; down: the group is over
)

// id names a group in a tree: zero for the group of all ranks, else derived from the
// group that it was made of and the number of the call that made it.
type id [16]byte

// frame is a frame taken apart. Which fields it has depends on its kind.
type frame struct {
	kind   kind
	id     id
	number uint64 // of the call

	call   group.Call // kindEnter
	held   bool       // kindEnter: the values wait below
	values []labelled // kindEnter, kindOutcome

	err  *group.Error // kindFail, kindOutcome; nil: it succeeded
	rank int          // kindLost
}

// labelled is a value with the rank that it is of, or for, if it is scattered.
type labelled struct {
	rank  int
	value []byte
}

// start appends the header of all frames of a call.
func (f *frame) start(n int) *wire.Writer {
	w := &wire.Writer{B: make([]byte, 0, n+32)}
	w.Byte(byte(f.kind))
	w.B = append(w.B, f.id[:]...)
	w.Uvarint(f.number)
	return w
}

// encode returns the frame's bytes.
func (f *frame) encode() []byte {
	w := f.start(f.size())
	switch f.kind {
	case kindEnter:
		putOp(w, f.call.Op)
		w.Varint(int64(f.call.Root))
		putRanks(w, f.call.Ranks)
		w.Bool(f.held)
		putValues(w, f.values)
	case kindFail:
		putError(w, f.err)
	case kindOutcome:
		w.Bool(f.err == nil)
		if f.err != nil {
			putError(w, f.err)
			break
		}
		putValues(w, f.values)
	case kindLost:
		w.Uvarint(uint64(f.rank))
		putCause(w, f.err.Err)
	}

	return w.B
}

func (f *frame) size() int {
	n := 64 + 3*len(f.call.Ranks)
	for _, v := range f.values {
		n += weight(v.value)
	}
	return n
}

// weight is the size that a value counts for in a frame.
func weight(v []byte) int { return len(v) + 8 }

// decode takes a frame apart. The frame refers to b.
func decode(b []byte) (frame, error) {
	r := wire.NewReader(b)
	f := frame{kind: kind(r.Byte())}
	if f.kind == kindAlive {
		return f, r.Done()
	}

	copy(f.id[:], r.Raw(len(f.id)))
	f.number = r.Uvarint()

	switch f.kind {
	case kindEnter:
		f.call = group.Call{Op: getOp(r), Root: int(r.Varint()), Ranks: getRanks(r)}
		f.held = r.Bool()
		f.values = getValues(r)
	case kindFail:
		f.err = getError(r)
	case kindOutcome:
		if r.Bool() {
			f.values = getValues(r)
			break
		}
		f.err = getError(r)
	case kindLost:
		f.rank = getRank(r)
		f.err = &group.Error{Err: getCause(r)}
	case kindGo, kindDone, kindAlarm:
	default:
		r.Fail("frame of kind %d", f.kind)
	}

	if err := r.Done(); err != nil {
		return frame{}, fmt.Errorf("frame: %w", err)
	}
	return f, nil
}

// piece is a message with a part of a value, which is body.
type piece struct {
	number uint64 // of the call
	label  int    // the rank that the value is of, or for if it is scattered
	total  int    // bytes of the value
	offset int
	body   []byte
}

// appendHead appends the piece without its body.
func (p *piece) appendHead(b []byte) []byte {
	w := wire.Writer{B: b}
	w.Uvarint(p.number)
	w.Uvarint(uint64(p.label))
	w.Uvarint(uint64(p.total))
	w.Uvarint(uint64(p.offset))
	return w.B
}

// decodePiece takes a piece apart. Its body refers to b.
func decodePiece(b []byte) (piece, error) {
	r := wire.NewReader(b)
	p := piece{number: r.Uvarint(), label: getRank(r), total: r.CountMax(math.MaxInt)}
	p.offset = r.CountMax(p.total)
	p.body = r.Raw(r.Len())
	if len(p.body) > p.total-p.offset || len(p.body) == 0 && p.total > 0 {
		r.Fail("piece of %d bytes at %d of %d", len(p.body), p.offset, p.total)
	}

	if err := r.Done(); err != nil {
		return piece{}, fmt.Errorf("piece of a value: %w", err)
	}
	return p, nil
}

// maxRank bounds the ranks that frames name.
const maxRank = 1<<20 - 1

// ops are the collective calls by the number that stands for them.
var ops = []group.Op{
	1: group.OpGather, 2: group.OpScatter, 3: group.OpBroadcast,
	4: group.OpAllGather, 5: group.OpBarrier, 6: group.OpSub,
}

func putOp(w *wire.Writer, op group.Op) {
	w.Byte(byte(max(0, slices.Index(ops, op))))
}

func getOp(r *wire.Reader) group.Op {
	i := r.Byte()
	if i == 0 || int(i) >= len(ops) {
		r.Fail("call of number %d", i)
		return ""
	}
	return ops[i]
}

func getRank(r *wire.Reader) int { return r.CountMax(maxRank) }

func putRanks(w *wire.Writer, ranks []int) {
	w.Uvarint(uint64(len(ranks)))
	for _, rank := range ranks {
		w.Varint(int64(rank))
	}
}

func getRanks(r *wire.Reader) []int {
	n := r.Count(1)
	if n == 0 {
		return nil
	}
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = int(r.Varint())
	}
	return ranks
}

func putValues(w *wire.Writer, vs []labelled) {
	w.Uvarint(uint64(len(vs)))
	for _, v := range vs {
		w.Uvarint(uint64(v.rank))
		w.Bytes(v.value)
	}
}

func getValues(r *wire.Reader) []labelled {
	n := r.Count(2)
	if n == 0 {
		return nil
	}
	vs := make([]labelled, n)
	for i := range vs {
		vs[i] = labelled{getRank(r), r.Bytes()}
	}
	return vs
}

func putError(w *wire.Writer, e *group.Error) {
	putOp(w, e.Op)
	putRanks(w, e.Ranks)
	putCause(w, e.Err)
}

func getError(r *wire.Reader) *group.Error {
	return &group.Error{Op: getOp(r), Ranks: getRanks(r), Err: getCause(r)}
}

func putCause(w *wire.Writer, err error) {
	b, _ := group.NewRemoteError(err).MarshalBinary() // which never fails
	w.Bytes(b)
}

func getCause(r *wire.Reader) *group.RemoteError {
	e := new(group.RemoteError)
	b := r.Bytes()
	if r.Err() != nil {
		return e
	}
	if err := e.UnmarshalBinary(b); err != nil {
		r.Fail("%w", err)
	}
	return e
}

// ErrFrame reports a length that no frame has.
var ErrFrame = errors.New("malformed frame")

// On a stream of bytes a frame stands behind its length: four bytes, least
// significant first. No frame is empty.

// maxCopied is the length up to which a frame is copied behind its length.
const maxCopied = 4 << 10

// FrameWriter writes frames to a stream, in as few calls as the stream allows.
// The zero value with W set is ready; one goroutine at a time uses it.
type FrameWriter struct {
	W       io.Writer
	scratch []byte
}

// WriteFrame writes a frame. The caller may write to b again when it returns.
func (f *FrameWriter) WriteFrame(b []byte) error {
	n := len(b)
	if n == 0 || n > MaxFrame {
		return fmt.Errorf("write frame of %d bytes: %w", n, ErrFrame)
	}

	f.scratch = binary.LittleEndian.AppendUint32(f.scratch[:0], uint32(n))
	if n <= maxCopied {
		f.scratch = append(f.scratch, b...)
		_, err := f.W.Write(f.scratch)
		return err
	}

	bufs := net.Buffers{f.scratch, b}
	_, err := bufs.WriteTo(f.W)
	return err
}

// ReadFrame reads the next frame of a stream, of at most limit bytes. It reads no
// byte more, so r is best one that reads ahead. At the end of the stream the error
// is [io.EOF], within a frame [io.ErrUnexpectedEOF].
func ReadFrame(r io.Reader, limit int) ([]byte, error) {
	n, err := ReadLength(r, limit)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	if _, err = io.ReadFull(r, b); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// ReadLength reads the length of the next frame of a stream, which follows: from
// one to limit.
func ReadLength(r io.Reader, limit int) (int, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n == 0 || uint64(n) > uint64(limit) {
		return 0, fmt.Errorf("read frame of %d bytes: %w", n, ErrFrame)
	}
	return int(n), nil
}
