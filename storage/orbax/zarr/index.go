package zarr

import (
	"encoding/binary"
	"math"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

// Range is the place of an inner chunk in its shard.
type Range struct {
	Offset, Length int64
	// Absent means that the inner chunk has the fill value.
	Absent bool
}

// maxInner bounds the number of inner chunks of a shard.
const maxInner = 1 << 24

const (
	entryBytes = 16
	indexSum   = 4
)

// DecodeIndex decodes the index of a shard, which has size bytes in total. Inner chunks are in
// row-major order.
func (s *Shards) DecodeIndex(p []byte, size int64) ([]Range, error) {
	if s.Sum {
		if len(p) < indexSum {
			return nil, malformed("an index of %d bytes", len(p))
		}
		body := p[:len(p)-indexSum]
		if crc32c.Checksum(body) != binary.LittleEndian.Uint32(p[len(body):]) {
			return nil, malformed("the index of the shard differs from its checksum")
		}
		p = body
	}
	if len(p)%entryBytes != 0 {
		return nil, malformed("an index of %d bytes", len(p))
	}

	out := make([]Range, len(p)/entryBytes)
	for i := range out {
		off, n := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		p = p[entryBytes:]
		switch {
		case off == math.MaxUint64 && n == math.MaxUint64:
			out[i].Absent = true
		case off > uint64(size) || n > uint64(size)-off:
			return nil, malformed("inner chunk %d: %d bytes at %d of a shard of %d", i, n, off, size)
		default:
			out[i] = Range{Offset: int64(off), Length: int64(n)}
		}
	}
	return out, nil
}
