package hosts

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The handshake of a connection. Both ends prove that they have the secret, by an HMAC-SHA-256
// over a role, so that a proof is not valid in the other direction, and two random numbers, so
// that it is not valid on another connection:
//
//	dialler:  magic (8), nonce (32)
//	acceptor: nonce (32)
//	dialler:  proof (32) of "dial"
//	acceptor: proof (32) of "accept"; zeros if the dialler's proof is wrong
//
// After that, the connection speaks HTTP/1.1.
const (
	magic     = "cairnmh1"
	nonceSize = 32
	proofSize = sha256.Size
	// handshakeTime bounds the time of a handshake.
	handshakeTime = 10 * time.Second
)

// errStranger reports a connection that does not begin with the handshake.
var errStranger = errors.New("not a host of a cairn job")

// proof returns the proof of a role. The sizes of the nonces are fixed, so no separator is
// needed.
func proof(secret []byte, role string, dialler, acceptor []byte) []byte {
	m := hmac.New(sha256.New, secret)
	for _, p := range [][]byte{[]byte(magic), []byte(role), dialler, acceptor} {
		m.Write(p)
	}
	return m.Sum(nil)
}

// introduce runs the dialling side of the handshake.
func introduce(c io.ReadWriter, secret []byte) error {
	var mine, theirs [nonceSize]byte
	rand.Read(mine[:])
	if _, err := c.Write(append([]byte(magic), mine[:]...)); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, theirs[:]); err != nil {
		return err
	}
	if _, err := c.Write(proof(secret, "dial", mine[:], theirs[:])); err != nil {
		return err
	}

	var p [proofSize]byte
	if _, err := io.ReadFull(c, p[:]); err != nil {
		return err
	}
	if !hmac.Equal(p[:], proof(secret, "accept", mine[:], theirs[:])) {
		return ErrSecret
	}
	return nil
}

// welcome runs the accepting side of the handshake.
func welcome(c io.ReadWriter, secret []byte) error {
	var hello [len(magic) + nonceSize]byte
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return err
	}
	if string(hello[:len(magic)]) != magic {
		return errStranger
	}

	var mine [nonceSize]byte
	rand.Read(mine[:])
	if _, err := c.Write(mine[:]); err != nil {
		return err
	}

	var p [proofSize]byte
	if _, err := io.ReadFull(c, p[:]); err != nil {
		return err
	}

	theirs := hello[len(magic):]
	if !hmac.Equal(p[:], proof(secret, "dial", theirs, mine[:])) {
		_, err := c.Write(make([]byte, proofSize))
		return errors.Join(ErrSecret, err)
	}
	_, err := c.Write(proof(secret, "accept", theirs, mine[:]))
	return err
}

// Reach returns nil if a server with this secret answers at addr.
func Reach(ctx context.Context, addr string, secret []byte) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	c, err := connect(ctx, "tcp", addr, secret)
	if err != nil {
		return err
	}
	return c.Close()
}

// connect connects to the server at addr and runs the handshake, until ctx ends.
func connect(ctx context.Context, network, addr string, secret []byte) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}

	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	err = introduce(c, secret)
	if !stop() && err == nil { // the deadline is set, or is being set
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return c, nil
}
