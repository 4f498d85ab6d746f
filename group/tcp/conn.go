package tcp

import (
	"bufio"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// errFrame reports a frame that no correct rank sends.
var errFrame = tree.ErrFrame

// readAhead is the size of the read buffer. Bytes in it are copied once more, so it is
// small compared with a large piece, and large compared with a small piece.
const readAhead = 16 << 10

// conn sends and receives frames over a connection.
type conn struct {
	net.Conn
	tree.FrameWriter
	r *bufio.Reader
	// silence bounds the time without a byte from the other end. Zero: no bound.
	silence time.Duration

	mu      sync.Mutex
	filling bool // fill is running; guarded by mu
	cut     bool // fill must stop; guarded by mu
}

var _ tree.Conn = (*conn)(nil)

func newConn(c net.Conn) *conn {
	return &conn{Conn: c, FrameWriter: tree.FrameWriter{W: c}, r: bufio.NewReaderSize(c, readAhead)}
}

// ReadFrame returns the next frame.
func (f *conn) ReadFrame() ([]byte, error) { return f.readFrame(tree.MaxFrame) }

// readFrame returns the next frame, of at most limit bytes.
func (f *conn) readFrame(limit int) ([]byte, error) {
	if err := f.arm(); err != nil {
		return nil, err
	}
	return tree.ReadFrame(f.r, limit)
}

// readHead reads a frame without its body, and returns it with the length of the body.
func (f *conn) readHead() (frame, int, error) {
	if err := f.arm(); err != nil {
		return frame{}, 0, err
	}

	n, err := tree.ReadLength(f.r, tree.MaxFrame)
	if err != nil {
		return frame{}, 0, err
	}

	b, err := f.r.Peek(min(n, maxHead))
	if err != nil {
		return frame{}, 0, err
	}

	l, err := decodeFrame(b)
	if err != nil {
		return frame{}, 0, fmt.Errorf("%w: %w", errFrame, err)
	}

	head := len(b) - len(l.body)
	l.body = nil // the next read overwrites these bytes
	_, err = f.r.Discard(head)
	return l, n - head, err
}

// arm sets the deadline for the next byte.
func (f *conn) arm() error {
	if f.silence == 0 {
		return nil
	}
	return f.Conn.SetReadDeadline(time.Now().Add(f.silence))
}

// fill reads into b until it is full or interrupt is called, and returns the number
// of bytes read. It needs silence to be set.
func (f *conn) fill(b []byte) (n int, err error) {
	f.mu.Lock()
	f.filling = true
	f.mu.Unlock()

	for n < len(b) && err == nil {
		if err = f.resume(); err == nil {
			var k int
			k, err = f.r.Read(b[n:])
			n += k
		}
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	if f.cut && errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	f.filling, f.cut = false, false
	return n, err
}

// resume sets the deadline for the next read of fill, unless fill must stop.
func (f *conn) resume() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cut {
		return os.ErrDeadlineExceeded
	}
	return f.arm()
}

// interrupt makes fill return. If fill is not running, the next call returns at once without
// reading.
func (f *conn) interrupt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = true
	if f.filling {
		_ = f.Conn.SetReadDeadline(time.Unix(1, 0)) // fails only if the connection is closed, which interrupts too
	}
}

// CloseWrite signals to the other end that no more frames follow.
func (f *conn) CloseWrite() error {
	if c, ok := f.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

var (
	// ErrRefused reports a rank that refuses a connection.
	ErrRefused = errors.New("refused")
	// ErrSecret reports a peer that has another secret.
	ErrSecret = errors.New("secret does not match")
)

func init() {
	group.RegisterError("tcp.ErrRefused", ErrRefused)
	group.RegisterError("tcp.ErrSecret", ErrSecret)
}

// purpose is the purpose of a connection.
type purpose byte

const (
	toMeet purpose = iota + 1
	toLink
	toMail
	toCall
	toLeave
)

const (
	magic     = "cairngr3"
	maxHello  = 1024
	maxReason = 1024
	nonceSize = 32
)

// session identifies one meeting of a job's ranks.
type session [16]byte

// hello is the first message of a connection.
type hello struct {
	purpose  purpose
	from, to int
	size     int
	session  session // for toMeet and toLeave, an identifier of the process
	job      string
	addr     string // at which the rank from listens; empty if it does not listen yet
	nonce    [nonceSize]byte
}

// encode returns the magic, the length and the hello.
func (h *hello) encode() []byte {
	var w wire.Writer
	w.Byte(byte(h.purpose))
	for _, v := range []int{h.from, h.to, h.size} {
		w.U32(uint32(v))
	}

	w.B = append(w.B, h.session[:]...)
	w.String(h.job)
	w.String(h.addr)
	w.B = append(w.B, h.nonce[:]...)
	b := binary.LittleEndian.AppendUint16([]byte(magic), uint16(len(w.B)))
	return append(b, w.B...)
}

// decodeHello decodes the part of a hello after magic and length.
func decodeHello(b []byte) (hello, error) {
	r := wire.NewReader(b)
	h := hello{purpose: purpose(r.Byte())}
	for _, v := range []*int{&h.from, &h.to, &h.size} {
		*v = int(r.U32() & 0x7fffffff)
	}

	copy(h.session[:], r.Raw(len(h.session)))
	h.job, h.addr = r.String(), r.String()
	copy(h.nonce[:], r.Raw(nonceSize))
	if err := r.Done(); err != nil {
		return hello{}, fmt.Errorf("hello: %w", err)
	}

	if h.purpose < toMeet || h.purpose > toLeave || len(h.job) > maxJob || len(h.addr) > maxAddress {
		return hello{}, fmt.Errorf("hello of purpose %d: %w", h.purpose, wire.ErrMalformed)
	}
	return h, nil
}

// readHello reads a hello and also returns its bytes, which the proofs cover.
func readHello(r io.Reader) (hello, []byte, error) {
	b := make([]byte, len(magic)+2, maxHello)
	if _, err := io.ReadFull(r, b); err != nil {
		return hello{}, nil, err
	}

	n := int(binary.LittleEndian.Uint16(b[len(magic):]))
	if string(b[:len(magic)]) != magic || n > maxHello-len(b) {
		return hello{}, nil, fmt.Errorf("not the handshake of a cairn group: %w", wire.ErrMalformed)
	}

	b = b[:len(b)+n]
	if _, err := io.ReadFull(r, b[len(magic)+2:]); err != nil {
		return hello{}, nil, err
	}

	h, err := decodeHello(b[len(magic)+2:])
	return h, b, err
}

// proof returns an HMAC of the role and the parts, which needs the secret.
func proof(secret []byte, role string, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, secret)
	for _, p := range append([][]byte{[]byte(role)}, parts...) {
		m.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(p))))
		m.Write(p)
	}
	return m.Sum(nil)
}

// binding returns bytes that only the two ends of a TLS connection can compute, so
// that a proof is not valid on another connection.
func binding(f *conn) []byte {
	c, ok := f.Conn.(*tls.Conn)
	if !ok {
		return nil
	}

	state := c.ConnectionState()
	b, err := state.ExportKeyingMaterial("EXPORTER-cairn-group", nil, sha256.Size)
	if err != nil {
		return nil // if only one end leaves the bytes out, the proofs do not match
	}
	return b
}

// introduce runs the dialling side of the handshake.
func introduce(f *conn, secret []byte, h hello) error {
	rand.Read(h.nonce[:])
	hb, bound := h.encode(), binding(f)
	if _, err := f.Conn.Write(hb); err != nil {
		return err
	}

	var nonce [nonceSize]byte
	if _, err := io.ReadFull(f.r, nonce[:]); err != nil {
		return err
	}

	if _, err := f.Conn.Write(proof(secret, "dial", hb, nonce[:], bound)); err != nil {
		return err
	}

	var theirs [sha256.Size]byte
	if _, err := io.ReadFull(f.r, theirs[:]); err != nil {
		return err
	}

	reason, err := readReason(f.r)
	if err != nil {
		return err
	}
	if !hmac.Equal(theirs[:], proof(secret, "accept", hb, nonce[:], bound, reason)) {
		return fmt.Errorf("rank %d: %w", h.to, ErrSecret)
	}
	if len(reason) > 0 {
		return fmt.Errorf("rank %d: %w: %s", h.to, ErrRefused, reason)
	}
	return nil
}

func readReason(r io.Reader) ([]byte, error) {
	var n [2]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}

	size := binary.LittleEndian.Uint16(n[:])
	if size > maxReason {
		return nil, fmt.Errorf("reason of %d bytes: %w", size, wire.ErrMalformed)
	}

	b := make([]byte, size)
	_, err := io.ReadFull(r, b)
	return b, err
}

// welcome runs the accepting side of the handshake. Once the proof of the other side is
// verified, check decides whether the connection is accepted; its error is sent to the
// other side. After any other error than a refusal, the hello that welcome returns is empty.
func welcome(f *conn, secret []byte, check func(hello) error) (hello, error) {
	h, hb, err := readHello(f.r)
	if err != nil {
		return hello{}, err
	}

	var nonce [nonceSize]byte
	rand.Read(nonce[:])
	if _, err := f.Conn.Write(nonce[:]); err != nil {
		return hello{}, err
	}

	bound := binding(f)
	var theirs [sha256.Size]byte
	if _, err := io.ReadFull(f.r, theirs[:]); err != nil {
		return hello{}, err
	}

	known := hmac.Equal(theirs[:], proof(secret, "dial", hb, nonce[:], bound))
	var refusal error
	if !known {
		refusal = ErrSecret
	} else {
		refusal = check(h)
	}

	var reason []byte
	if refusal != nil {
		reason = []byte(refusal.Error())
		reason = reason[:min(len(reason), maxReason)]
	}

	mine := make([]byte, sha256.Size) // a peer without a valid proof receives no proof
	if known {
		mine = proof(secret, "accept", hb, nonce[:], bound, reason)
	}

	mine = binary.LittleEndian.AppendUint16(mine, uint16(len(reason)))
	if _, err := f.Conn.Write(append(mine, reason...)); err != nil && refusal == nil {
		return hello{}, err
	}
	return h, refusal
}
