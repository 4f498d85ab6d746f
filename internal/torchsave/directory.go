package torchsave

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
)

// The structures of a zip archive: their signatures and the sizes of their
// fixed parts.
const (
	signLocal      = "PK\x03\x04"
	signDescriptor = "PK\x07\x08"
	signCentral    = "PK\x01\x02"
	signEnd64      = "PK\x06\x06"
	signLocator    = "PK\x06\x07"
	signEnd        = "PK\x05\x06"

	localBytes        = 30
	descriptorBytes   = 16
	descriptorBytes64 = 24
	centralBytes      = 46
	end64Bytes        = 56
	locatorBytes      = 20
	endBytes32        = 22
)

// The flags that a record may have.
const (
	flagDescriptor = 1 << 3
	flagUTF8       = 1 << 11
	flagsEncrypted = 1<<0 | 1<<6 | 1<<13
)

// extraZip64 is the extra field with what does not fit 32 bits.
const extraZip64 = 1

// Bounds of what is read at once, whatever the file says.
const (
	maxRecords   = 1 << 20
	maxDirectory = 256 << 20
	maxPickle    = 256 << 20
)

// directory says where the central directory lies.
type directory struct {
	offset, size, count int64
}

// findDirectory reads the end of an archive. Nothing may follow it, and nothing
// may lie between it and the directory.
func findDirectory(ctx context.Context, s *source) (directory, error) {
	var d directory
	b, err := s.bytes(ctx, s.size-min(s.size, endBytes32), min(s.size, endBytes32))
	if err != nil {
		return d, err
	}
	if len(b) < endBytes32 || !bytes.HasPrefix(b, []byte(signEnd)) {
		return d, fmt.Errorf("%w: no directory at the end of the archive", ErrTruncated)
	}
	le := binary.LittleEndian
	d = directory{offset: int64(le.Uint32(b[16:])), size: int64(le.Uint32(b[12:])), count: int64(le.Uint16(b[10:]))}
	if le.Uint32(b[4:]) != 0 || le.Uint16(b[8:]) != le.Uint16(b[10:]) || le.Uint16(b[20:]) != 0 {
		return d, fmt.Errorf("%w: an archive of several parts, or with a comment", ErrMalformed)
	}
	end := s.size - endBytes32
	if d, end, err = widenDirectory(ctx, s, d, end); err != nil {
		return d, err
	}
	switch {
	case d.count > maxRecords || d.size > maxDirectory:
		return d, fmt.Errorf("%w: a directory of %d records in %d bytes", ErrLimit, d.count, d.size)
	case d.offset < 0 || d.size < 0 || d.count < 0 || d.offset > end || d.size > end:
		return d, fmt.Errorf("%w: a directory of %d bytes at %d of %d", ErrBounds, d.size, d.offset, s.size)
	case d.offset+d.size != end:
		return d, fmt.Errorf("%w: the directory ends at %d, its end record begins at %d", ErrContradiction, d.offset+d.size, end)
	case d.count*centralBytes > d.size:
		return d, fmt.Errorf("%w: %d records in a directory of %d bytes", ErrContradiction, d.count, d.size)
	}
	return d, nil
}

// widenDirectory replaces what the end record says by what the one of zip64
// does, if there is one, and returns where the end records begin.
func widenDirectory(ctx context.Context, s *source, d directory, end int64) (directory, int64, error) {
	at := end - locatorBytes - end64Bytes
	if at < 0 {
		return d, end, nil
	}
	b, err := s.bytes(ctx, at, end64Bytes+locatorBytes)
	if err != nil {
		return d, end, err
	}
	loc, le := b[end64Bytes:], binary.LittleEndian
	if !bytes.HasPrefix(loc, []byte(signLocator)) {
		return d, end, nil
	}
	if le.Uint64(loc[8:]) != uint64(at) || le.Uint32(loc[4:]) != 0 || le.Uint32(loc[16:]) > 1 ||
		!bytes.HasPrefix(b, []byte(signEnd64)) || le.Uint64(b[4:]) != end64Bytes-12 ||
		le.Uint64(b[16:]) != 0 || le.Uint64(b[24:]) != le.Uint64(b[32:]) {
		return d, end, fmt.Errorf("%w: the end records of zip64", ErrMalformed)
	}
	w := directory{offset: int64(le.Uint64(b[48:])), size: int64(le.Uint64(b[40:])), count: int64(le.Uint64(b[32:]))}
	if !fits(d.offset, w.offset, math.MaxUint32) || !fits(d.size, w.size, math.MaxUint32) || !fits(d.count, w.count, math.MaxUint16) {
		return d, end, fmt.Errorf("%w: the two end records", ErrContradiction)
	}
	return w, at, nil
}

// fits reports whether a narrow field says what the wide one does: the same, or
// all ones.
func fits(narrow, wide, ones int64) bool { return narrow == wide || narrow == ones }

// record is one file of the archive.
type record struct {
	// name is the whole name, with the archive's folder.
	name   string
	flags  uint16
	crc    uint32
	size   int64
	header int64 // where its local header begins
	// data is where its bytes begin, once its local header was read.
	data int64
	// wide says that its descriptor has sizes of 64 bits.
	wide bool
	// before are the bytes before the local header: the descriptor of the
	// record before, as a rule.
	before []byte
}

// end returns where the record's bytes end.
func (r *record) end() int64 { return r.data + r.size }

// sum returns the record's checksum.
func (r *record) sum() *Sum { return &Sum{Record: r.name, Offset: r.data, End: r.end(), CRC: r.crc} }

// readDirectory returns the records in the order of the directory, each checked
// by itself.
func readDirectory(ctx context.Context, s *source) ([]record, int64, error) {
	d, err := findDirectory(ctx, s)
	if err != nil {
		return nil, 0, err
	}
	b, err := s.bytes(ctx, d.offset, d.size)
	if err != nil {
		return nil, 0, err
	}
	out := make([]record, 0, d.count)
	for range d.count {
		r, n, err := parseCentral(b, d.offset)
		if err != nil {
			return nil, 0, fmt.Errorf("record %d of the directory: %w", len(out), err)
		}
		out = append(out, r)
		b = b[n:]
	}
	if len(b) != 0 {
		return nil, 0, fmt.Errorf("%w: %d bytes after the last record of the directory", ErrContradiction, len(b))
	}
	return out, d.offset, nil
}

// parseCentral reads one entry of the directory, which begins at limit.
func parseCentral(b []byte, limit int64) (record, int, error) {
	le := binary.LittleEndian
	if len(b) < centralBytes || !bytes.HasPrefix(b, []byte(signCentral)) {
		return record{}, 0, fmt.Errorf("%w: no such record", ErrMalformed)
	}
	nameLen, extraLen := int(le.Uint16(b[28:])), int(le.Uint16(b[30:]))
	total := centralBytes + nameLen + extraLen + int(le.Uint16(b[32:]))
	if total > len(b) {
		return record{}, 0, fmt.Errorf("%w: %d bytes, of which the directory has %d", ErrBounds, total, len(b))
	}
	name, extra := b[centralBytes:centralBytes+nameLen], b[centralBytes+nameLen:][:extraLen]
	r := record{
		name: string(name), flags: le.Uint16(b[8:]), crc: le.Uint32(b[16:]),
		size: int64(le.Uint32(b[24:])), header: int64(le.Uint32(b[42:])),
	}
	packed := int64(le.Uint32(b[20:]))
	if err := widen(extra, &r.size, &packed, &r.header); err != nil {
		return r, 0, fmt.Errorf("%q: %w", r.name, err)
	}
	if le.Uint16(b[34:]) != 0 {
		return r, 0, fmt.Errorf("%w: %q is in another part of the archive", ErrBounds, r.name)
	}
	if err := checkName(r.name); err != nil {
		return r, 0, err
	}
	return r, total, checkEntry(&r, le.Uint16(b[10:]), packed, limit)
}

// checkEntry checks what the directory says about one record.
func checkEntry(r *record, method uint16, packed, limit int64) error {
	switch {
	case r.flags&flagsEncrypted != 0:
		return fmt.Errorf("%w: %q", ErrEncrypted, r.name)
	case method != 0:
		return fmt.Errorf("%w: %q, by method %d", ErrCompressed, r.name, method)
	case r.flags&^(flagDescriptor|flagUTF8) != 0:
		return fmt.Errorf("%w: %q has flags %#x", ErrMalformed, r.name, r.flags)
	case packed != r.size:
		return fmt.Errorf("%w: %q takes %d bytes for %d", ErrContradiction, r.name, packed, r.size)
	case r.header < 0 || r.size < 0 || r.header > limit-localBytes || r.size > limit-localBytes-r.header:
		return fmt.Errorf("%w: %q has %d bytes at %d of %d", ErrBounds, r.name, r.size, r.header, limit)
	}
	return nil
}

// widen replaces those of the fields that are all ones by what the extra field
// of zip64 says.
func widen(extra []byte, fields ...*int64) error {
	wide, _, err := zip64Of(extra)
	if err != nil {
		return err
	}
	for _, f := range fields {
		if *f != math.MaxUint32 {
			continue
		}
		if len(wide) < 8 {
			return fmt.Errorf("%w: no size or place of 64 bits", ErrMalformed)
		}
		if *f = int64(binary.LittleEndian.Uint64(wide)); *f < 0 {
			return fmt.Errorf("%w: a size or place beyond 63 bits", ErrBounds)
		}
		wide = wide[8:]
	}
	return nil
}

// zip64Of returns the extra field of zip64, and whether there is one.
func zip64Of(extra []byte) (wide []byte, ok bool, err error) {
	le := binary.LittleEndian
	for len(extra) > 0 {
		if len(extra) < 4 || int(le.Uint16(extra[2:])) > len(extra)-4 {
			return nil, false, fmt.Errorf("%w: extra fields of a record", ErrMalformed)
		}
		n := int(le.Uint16(extra[2:]))
		if le.Uint16(extra) == extraZip64 {
			if ok {
				return nil, false, fmt.Errorf("%w: two extra fields of zip64", ErrMalformed)
			}
			wide, ok = extra[4:4+n], true
		}
		extra = extra[4+n:]
	}
	return wide, ok, nil
}
