package torchsave

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sync/errgroup"
)

// parallelHeaders is how many records' headers are read at the same time: each
// is a request to the medium, and a large file has thousands.
const parallelHeaders = 16

// usualExtra is how many bytes of extra fields a header has at most as PyTorch
// writes it; longer ones take a second read.
const usualExtra = 64 + 4 + 28

// locate reads the header of each record, finds out where its bytes begin and
// checks that header, directory and descriptor agree and that no two records
// share a byte. The directory begins at limit.
func locate(ctx context.Context, s *source, records []record, limit int64) error {
	order := make([]*record, len(records))
	for i := range records {
		order[i] = &records[i]
	}
	slices.SortFunc(order, func(a, b *record) int { return cmp.Compare(a.header, b.header) })
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelHeaders)
	for _, r := range order {
		g.Go(func() error { return readHeader(gctx, s, r, limit) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, r := range order {
		next, before := limit, []byte(nil)
		if i+1 < len(order) {
			next, before = order[i+1].header, order[i+1].before
		}
		if err := checkDescriptor(ctx, s, r, next, before); err != nil {
			return err
		}
	}
	return nil
}

// readHeader reads a record's local header, and a few bytes before it.
func readHeader(ctx context.Context, s *source, r *record, limit int64) error {
	from := max(0, r.header-descriptorBytes64)
	n := min(r.header-from+localBytes+int64(len(r.name))+usualExtra, limit-from)
	b, err := s.bytes(ctx, from, n)
	if err != nil {
		return err
	}
	r.before = bytes.Clone(b[:r.header-from])
	h := b[r.header-from:]
	if len(h) < localBytes || !bytes.HasPrefix(h, []byte(signLocal)) {
		return fmt.Errorf("%w: %q does not begin at %d", ErrContradiction, r.name, r.header)
	}
	le := binary.LittleEndian
	total := localBytes + int64(le.Uint16(h[26:])) + int64(le.Uint16(h[28:]))
	if total > limit-r.header-r.size {
		return fmt.Errorf("%w: %q has %d bytes after a header of %d at %d", ErrBounds, r.name, r.size, total, r.header)
	}
	if total > int64(len(h)) {
		if h, err = s.bytes(ctx, r.header, total); err != nil {
			return err
		}
	}
	r.data = r.header + total
	return checkHeader(r, h[:total])
}

// checkHeader compares a record's own header with the directory.
func checkHeader(r *record, h []byte) error {
	le := binary.LittleEndian
	nameLen := int(le.Uint16(h[26:]))
	extra := h[localBytes+nameLen:]
	if name := h[localBytes : localBytes+nameLen]; string(name) != r.name {
		return fmt.Errorf("%w: %q is called %q in its header", ErrContradiction, r.name, name)
	}
	if le.Uint16(h[6:]) != r.flags || le.Uint16(h[8:]) != 0 {
		return fmt.Errorf("%w: %q has other flags, or another method, in its header", ErrContradiction, r.name)
	}
	_, wide, err := zip64Of(extra)
	if err != nil {
		return fmt.Errorf("%q: %w", r.name, err)
	}
	r.wide = wide
	crc, packed, size := le.Uint32(h[14:]), int64(le.Uint32(h[18:])), int64(le.Uint32(h[22:]))
	if size == math.MaxUint32 || packed == math.MaxUint32 {
		if err := widen(extra, &size, &packed); err != nil {
			return fmt.Errorf("%q: %w", r.name, err)
		}
	}
	later := r.flags&flagDescriptor != 0 // the descriptor says what is zero here
	if crc != r.crc && !(later && crc == 0) || size != r.size && !(later && size == 0) || packed != r.size && !(later && packed == 0) {
		return fmt.Errorf("%w: %q has another size, or another checksum, in its header", ErrContradiction, r.name)
	}
	return nil
}

// checkDescriptor checks that a record ends before next, where another one or
// the directory begins, and that the descriptor after its bytes agrees with the
// directory. before are the last bytes before next, if they are known.
func checkDescriptor(ctx context.Context, s *source, r *record, next int64, before []byte) error {
	n := int64(0)
	if r.flags&flagDescriptor != 0 {
		n = descriptorBytes
		if r.wide {
			n = descriptorBytes64
		}
	}
	if r.end() > next-n {
		return fmt.Errorf("%w: %q ends at %d, the next begins at %d", ErrOverlap, r.name, r.end()+n, next)
	}
	if n == 0 {
		return nil
	}
	var d []byte
	if from := next - int64(len(before)); r.end() >= from {
		d = before[r.end()-from:][:n]
	} else {
		var err error
		if d, err = s.bytes(ctx, r.end(), n); err != nil {
			return err
		}
	}
	if !bytes.Equal(d, appendDescriptor(nil, r.crc, r.size, r.wide)) {
		return fmt.Errorf("%w: the descriptor after %q", ErrContradiction, r.name)
	}
	return nil
}

// appendDescriptor appends what follows the bytes of a record whose header was
// written before they were known.
func appendDescriptor(b []byte, crc uint32, size int64, wide bool) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(append(b, signDescriptor...), crc)
	if wide {
		return le.AppendUint64(le.AppendUint64(b, uint64(size)), uint64(size))
	}
	return le.AppendUint32(le.AppendUint32(b, uint32(size)), uint32(size))
}
