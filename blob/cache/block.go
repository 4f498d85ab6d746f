package cache

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

const (
	// pageBytes is the unit of checksums: a read checks the pages that it touches.
	pageBytes = 64 << 10
	// magic begins the trailer of a block file.
	magic = "cairnblk"
)

// errDamaged reports a damaged block file.
var errDamaged = errors.New("a block of the cache is damaged")

// blockID is a block of an object, whatever the object's version is.
type blockID [sha256.Size]byte

// newBlockID returns the identity of the block n of an object. Addresses have no secrets.
func newBlockID(host, address string, size, blockBytes, n int64) blockID {
	h := sha256.New()
	for _, s := range []string{host, address} {
		binary.Write(h, binary.LittleEndian, int64(len(s)))
		h.Write([]byte(s))
	}
	binary.Write(h, binary.LittleEndian, []int64{size, blockBytes, n})
	return blockID(h.Sum(nil))
}

// dir returns the folder of the files of b. All that write to it hold its lock.
func (b blockID) dir() string { return blocksDir + "/" + hex.EncodeToString(b[:1]) }

// lock returns the name of the lock of the folder.
func (b blockID) lock() string { return locksDir + "/" + hex.EncodeToString(b[:1]) }

// prefix returns the beginning of the names of the files of b, of all versions.
func (b blockID) prefix() string { return b.dir() + "/" + hex.EncodeToString(b[1:17]) + "-" }

// at returns the key of the block of a version.
func (b blockID) at(version string) key {
	k := key{blockID: b}
	h := sha256.New()
	h.Write(b[:])
	h.Write([]byte(version))
	h.Sum(k.sum[:0])
	return k
}

// key identifies the bytes of a block: no other bytes have the same key.
type key struct {
	blockID
	sum [sha256.Size]byte
}

// name returns the name of the file.
func (k key) name() string { return k.prefix() + hex.EncodeToString(k.sum[:12]) }

// trailerBytes returns the size of the trailer of a block of n bytes.
func trailerBytes(n int64) int64 {
	return int64(len(magic)+sha256.Size) + 4*((n+pageBytes-1)/pageBytes) + 4
}

// trailer returns the trailer of a block file with the bytes p: magic, key, the CRC-32C of
// each page, and the CRC-32C of the trailer.
func trailer(k key, p []byte) []byte {
	t := make([]byte, 0, trailerBytes(int64(len(p))))
	t = append(t, magic...)
	t = append(t, k.sum[:]...)
	for len(p) > 0 {
		n := min(len(p), pageBytes)
		t = binary.LittleEndian.AppendUint32(t, crc32c.Checksum(p[:n]))
		p = p[n:]
	}
	return binary.LittleEndian.AppendUint32(t, crc32c.Checksum(t))
}

// readBlock fills p with the bytes from off on of the file r of a block of size bytes. If the
// block file is damaged or belongs to another key, the error wraps errDamaged.
func readBlock(ctx context.Context, r blob.Reader, k key, size int64, p []byte, off int64) error {
	if r.Size() != size+trailerBytes(size) {
		return fmt.Errorf("%w: it has %d bytes", errDamaged, r.Size())
	}

	t := make([]byte, trailerBytes(size))
	if err := r.ReadAt(ctx, t, size); err != nil {
		return err
	}

	body, sum := t[:len(t)-4], binary.LittleEndian.Uint32(t[len(t)-4:])
	if crc32c.Checksum(body) != sum || !strings.HasPrefix(string(body), magic+string(k.sum[:])) {
		return fmt.Errorf("%w: its trailer belongs to another block", errDamaged)
	}

	sums := body[len(magic)+sha256.Size:]
	check := func(page int64, q []byte) error {
		if crc32c.Checksum(q) != binary.LittleEndian.Uint32(sums[4*page:]) {
			return fmt.Errorf("%w at %d", errDamaged, page*pageBytes)
		}
		return nil
	}

	var edge []byte
	for len(p) > 0 {
		page := off / pageBytes
		begin, end := page*pageBytes, min((page+1)*pageBytes, size)
		if off == begin && off+int64(len(p)) >= end { // whole pages are read into p
			n := int64(len(p)) / pageBytes * pageBytes
			if off+int64(len(p)) == size {
				n = int64(len(p))
			}

			if err := r.ReadAt(ctx, p[:n], off); err != nil {
				return err
			}

			for at := int64(0); at < n; at += pageBytes {
				if err := check(page+at/pageBytes, p[at:min(at+pageBytes, n)]); err != nil {
					return err
				}
			}

			p, off = p[n:], off+n
			continue
		}

		if edge == nil {
			edge = make([]byte, pageBytes)
		}

		q := edge[:end-begin]
		if err := r.ReadAt(ctx, q, begin); err != nil {
			return err
		}

		if err := check(page, q); err != nil {
			return err
		}

		n := copy(p, q[off-begin:])
		p, off = p[n:], off+int64(n)
	}

	return nil
}
