package torchsave

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
)

// The known records in the archive's folder.
const (
	recordPickle    = "data.pkl"
	recordStorages  = "data/" // followed by the key of a storage
	recordByteOrder = "byteorder"
	recordVersion   = "version"
	recordVersion15 = ".data/version"
	recordFormat    = ".format_version"
	recordAlignment = ".storage_alignment"
	recordID        = ".data/serialization_id"
)

// The versions of the archive that PyTorch reads.
const minVersion, maxVersion = 1, 10

// archive is the zip form of a file: its records by their names in the archive's
// only folder.
type archive struct {
	src     *source
	records []zipEntry
	byName  map[string]*zipEntry
	folder  string
}

func openArchive(ctx context.Context, s *source) (*archive, error) {
	records, limit, err := readDirectory(ctx, s)
	if err != nil {
		return nil, err
	}
	a := &archive{src: s, records: records, byName: make(map[string]*zipEntry, len(records))}
	if err := a.name(); err != nil {
		return nil, err
	}
	if err := locate(ctx, s, records, limit); err != nil {
		return nil, err
	}
	return a, a.checkKind(ctx)
}

// name finds the records' folder and sorts them by their names in it.
func (a *archive) name() error {
	if len(a.records) == 0 {
		return fmt.Errorf("%w: an archive without records", ErrMalformed)
	}
	seen := make(map[string]bool, len(a.records))
	for i := range a.records {
		r := &a.records[i]
		folder, rest, ok := strings.Cut(r.name, "/")
		if i == 0 {
			a.folder = folder
		}
		if !ok || folder != a.folder {
			return fmt.Errorf("%w: %q is not in the folder %q of the archive", errName, r.name, a.folder)
		}
		low := strings.ToLower(r.name) // PyTorch ignores case
		if seen[low] {
			return fmt.Errorf("%w: %q", errDuplicate, r.name)
		}
		seen[low] = true
		a.byName[rest] = r
	}
	return nil
}

// checkName refuses names that would leave the target folder if the archive were
// unpacked.
func checkName(name string) error {
	ok := utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return r == '\\' || r < ' ' || r == 0x7f })
	for e := range strings.SplitSeq(name, "/") {
		ok = ok && e != "" && e != "." && e != ".."
	}
	if !ok {
		return fmt.Errorf("%w: %q", errName, name)
	}
	return nil
}

// checkKind checks the records that identify the kind of archive.
func (a *archive) checkKind(ctx context.Context) error {
	version, ok, err := a.text(ctx, recordVersion)
	if err == nil && !ok {
		version, ok, err = a.text(ctx, recordVersion15)
	}
	if err != nil {
		return err
	}
	n, convErr := strconv.Atoi(strings.TrimSpace(version))
	if !ok || convErr != nil || n < minVersion || n > maxVersion {
		return fmt.Errorf("%w: %q", ErrVersion, version)
	}
	format, ok, err := a.text(ctx, recordFormat)
	if err != nil {
		return err
	}
	if ok && strings.TrimSpace(format) != "1" {
		return fmt.Errorf("%w: format %q", ErrVersion, format)
	}
	order, ok, err := a.text(ctx, recordByteOrder)
	if err != nil {
		return err
	}
	if ok && order != "little" {
		return fmt.Errorf("%w: %q", ErrByteOrder, order)
	}
	return nil
}

// maxText bounds records that hold one word.
const maxText = 64

// text returns a record that holds one word, and whether it exists.
func (a *archive) text(ctx context.Context, name string) (string, bool, error) {
	r := a.byName[name]
	if r == nil {
		return "", false, nil
	}
	b, err := a.content(ctx, r, maxText)
	return string(b), true, err
}

// content returns a record's bytes, checked against the directory's checksum.
func (a *archive) content(ctx context.Context, r *zipEntry, limit int64) ([]byte, error) {
	if r.size > limit {
		return nil, fmt.Errorf("%w: %q has %d bytes, at most %d", errLimit, r.name, r.size, limit)
	}
	b, err := a.src.bytes(ctx, r.data, r.size)
	if err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(b) != r.crc {
		return nil, fmt.Errorf("%w: %q", errChecksum, r.name)
	}
	return b, nil
}

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

// extraZip64 is the extra field for values that do not fit 32 bits.
const extraZip64 = 1

// Bounds of a single read.
const (
	maxRecords   = 1 << 20
	maxDirectory = 256 << 20
	maxPickle    = 256 << 20
)

// directory is the position of the central directory.
type directory struct {
	offset, size, count int64
}

// findDirectory reads the end of an archive. The archive must end there, without
// a gap after the directory.
func findDirectory(ctx context.Context, s *source) (directory, error) {
	var d directory
	b, err := s.bytes(ctx, s.size-min(s.size, endBytes32), min(s.size, endBytes32))
	if err != nil {
		return d, err
	}
	if len(b) < endBytes32 || !bytes.HasPrefix(b, []byte(signEnd)) {
		return d, fmt.Errorf("%w: no directory at the end of the archive", errTruncated)
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
		return d, fmt.Errorf("%w: a directory of %d records in %d bytes", errLimit, d.count, d.size)
	case d.offset < 0 || d.size < 0 || d.count < 0 || d.offset > end || d.size > end:
		return d, fmt.Errorf("%w: a directory of %d bytes at %d of %d", errBounds, d.size, d.offset, s.size)
	case d.offset+d.size != end:
		return d, fmt.Errorf("%w: the directory ends at %d, its end record begins at %d", errContradiction, d.offset+d.size, end)
	case d.count*centralBytes > d.size:
		return d, fmt.Errorf("%w: %d records in a directory of %d bytes", errContradiction, d.count, d.size)
	}
	return d, nil
}

// widenDirectory replaces the values of the end record by the values of the zip64 end
// record, if there is one. It returns the offset of the end records.
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
		return d, end, fmt.Errorf("%w: the two end records", errContradiction)
	}
	return w, at, nil
}

// fits reports whether a narrow field agrees with a wide one: it has the same
// value, or all bits set.
func fits(narrow, wide, ones int64) bool { return narrow == wide || narrow == ones }

// zipEntry is one file of the archive.
type zipEntry struct {
	// name is the whole name, with the archive's folder.
	name   string
	flags  uint16
	crc    uint32
	size   int64
	header int64 // offset of its local header
	// data is the offset of its bytes, known once its local header was read.
	data int64
	// wide is set if its descriptor has 64-bit sizes.
	wide bool
	// before are the bytes before the local header, normally the descriptor of
	// the previous record.
	before []byte
}

// end returns where the record's bytes end.
func (r *zipEntry) end() int64 { return r.data + r.size }

func (r *zipEntry) sum() *Sum { return &Sum{Record: r.name, Offset: r.data, End: r.end(), CRC: r.crc} }

// readDirectory returns the records in the order of the directory, each one
// validated.
func readDirectory(ctx context.Context, s *source) ([]zipEntry, int64, error) {
	d, err := findDirectory(ctx, s)
	if err != nil {
		return nil, 0, err
	}
	b, err := s.bytes(ctx, d.offset, d.size)
	if err != nil {
		return nil, 0, err
	}
	out := make([]zipEntry, 0, d.count)
	for range d.count {
		r, n, err := parseCentral(b, d.offset)
		if err != nil {
			return nil, 0, fmt.Errorf("record %d of the directory: %w", len(out), err)
		}
		out = append(out, r)
		b = b[n:]
	}
	if len(b) != 0 {
		return nil, 0, fmt.Errorf("%w: %d bytes after the last record of the directory", errContradiction, len(b))
	}
	return out, d.offset, nil
}

// parseCentral reads one entry of the directory, which begins at limit.
func parseCentral(b []byte, limit int64) (zipEntry, int, error) {
	le := binary.LittleEndian
	if len(b) < centralBytes || !bytes.HasPrefix(b, []byte(signCentral)) {
		return zipEntry{}, 0, fmt.Errorf("%w: no such record", ErrMalformed)
	}
	nameLen, extraLen := int(le.Uint16(b[28:])), int(le.Uint16(b[30:]))
	total := centralBytes + nameLen + extraLen + int(le.Uint16(b[32:]))
	if total > len(b) {
		return zipEntry{}, 0, fmt.Errorf("%w: %d bytes, of which the directory has %d", errBounds, total, len(b))
	}
	name, extra := b[centralBytes:centralBytes+nameLen], b[centralBytes+nameLen:][:extraLen]
	r := zipEntry{
		name: string(name), flags: le.Uint16(b[8:]), crc: le.Uint32(b[16:]),
		size: int64(le.Uint32(b[24:])), header: int64(le.Uint32(b[42:])),
	}
	packed := int64(le.Uint32(b[20:]))
	if err := widen(extra, &r.size, &packed, &r.header); err != nil {
		return r, 0, fmt.Errorf("%q: %w", r.name, err)
	}
	if le.Uint16(b[34:]) != 0 {
		return r, 0, fmt.Errorf("%w: %q is in another part of the archive", errBounds, r.name)
	}
	if err := checkName(r.name); err != nil {
		return r, 0, err
	}
	return r, total, checkEntry(&r, le.Uint16(b[10:]), packed, limit)
}

// checkEntry validates a record of the directory.
func checkEntry(r *zipEntry, method uint16, packed, limit int64) error {
	switch {
	case r.flags&flagsEncrypted != 0:
		return fmt.Errorf("%w: %q", errEncrypted, r.name)
	case method != 0:
		return fmt.Errorf("%w: %q, by method %d", errCompressed, r.name, method)
	case r.flags&^(flagDescriptor|flagUTF8) != 0:
		return fmt.Errorf("%w: %q has flags %#x", ErrMalformed, r.name, r.flags)
	case packed != r.size:
		return fmt.Errorf("%w: %q takes %d bytes for %d", errContradiction, r.name, packed, r.size)
	case r.header < 0 || r.size < 0 || r.header > limit-localBytes || r.size > limit-localBytes-r.header:
		return fmt.Errorf("%w: %q has %d bytes at %d of %d", errBounds, r.name, r.size, r.header, limit)
	}
	return nil
}

// widen replaces fields with all bits set by the values in the zip64 extra field.
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
			return fmt.Errorf("%w: no 64-bit size or offset", ErrMalformed)
		}
		if *f = int64(binary.LittleEndian.Uint64(wide)); *f < 0 {
			return fmt.Errorf("%w: a size or offset beyond 63 bits", errBounds)
		}
		wide = wide[8:]
	}
	return nil
}

// zip64Of returns the zip64 extra field, and whether it exists.
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

// parallelHeaders is the number of headers that are read at the same time: each
// read is a request to the store, and a large file has thousands of records.
const parallelHeaders = 16

// usualExtra is the length of the longest extra fields that PyTorch writes.
// Longer ones take a second read.
const usualExtra = 64 + 4 + 28

// locate reads the header of each record and sets the offset of its bytes. It
// checks that header, directory and descriptor agree and that records do not
// overlap. The directory begins at limit.
func locate(ctx context.Context, s *source, records []zipEntry, limit int64) error {
	order := make([]*zipEntry, len(records))
	for i := range records {
		order[i] = &records[i]
	}
	slices.SortFunc(order, func(a, b *zipEntry) int { return cmp.Compare(a.header, b.header) })
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
func readHeader(ctx context.Context, s *source, r *zipEntry, limit int64) error {
	from := max(0, r.header-descriptorBytes64)
	n := min(r.header-from+localBytes+int64(len(r.name))+usualExtra, limit-from)
	b, err := s.bytes(ctx, from, n)
	if err != nil {
		return err
	}
	r.before = bytes.Clone(b[:r.header-from])
	h := b[r.header-from:]
	if len(h) < localBytes || !bytes.HasPrefix(h, []byte(signLocal)) {
		return fmt.Errorf("%w: %q does not begin at %d", errContradiction, r.name, r.header)
	}
	le := binary.LittleEndian
	total := localBytes + int64(le.Uint16(h[26:])) + int64(le.Uint16(h[28:]))
	if total > limit-r.header-r.size {
		return fmt.Errorf("%w: %q has %d bytes after a header of %d at %d", errBounds, r.name, r.size, total, r.header)
	}
	if total > int64(len(h)) {
		if h, err = s.bytes(ctx, r.header, total); err != nil {
			return err
		}
	}
	r.data = r.header + total
	return checkHeader(r, h[:total])
}

// checkHeader compares a record's local header with the directory.
func checkHeader(r *zipEntry, h []byte) error {
	le := binary.LittleEndian
	nameLen := int(le.Uint16(h[26:]))
	extra := h[localBytes+nameLen:]
	if name := h[localBytes : localBytes+nameLen]; string(name) != r.name {
		return fmt.Errorf("%w: %q is called %q in its header", errContradiction, r.name, name)
	}
	if le.Uint16(h[6:]) != r.flags || le.Uint16(h[8:]) != 0 {
		return fmt.Errorf("%w: %q has other flags, or another method, in its header", errContradiction, r.name)
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
	later := r.flags&flagDescriptor != 0 // these fields are zero, and set in the descriptor
	if crc != r.crc && !(later && crc == 0) || size != r.size && !(later && size == 0) || packed != r.size && !(later && packed == 0) {
		return fmt.Errorf("%w: %q has another size, or another checksum, in its header", errContradiction, r.name)
	}
	return nil
}

// checkDescriptor checks that a record ends before next, the offset of the next
// record or the directory, and that the descriptor after its bytes agrees with
// the directory. before are the last bytes before next, if they are known.
func checkDescriptor(ctx context.Context, s *source, r *zipEntry, next int64, before []byte) error {
	n := int64(0)
	if r.flags&flagDescriptor != 0 {
		n = descriptorBytes
		if r.wide {
			n = descriptorBytes64
		}
	}
	if r.end() > next-n {
		return fmt.Errorf("%w: %q ends at %d, the next begins at %d", errOverlap, r.name, r.end()+n, next)
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
		return fmt.Errorf("%w: the descriptor after %q", errContradiction, r.name)
	}
	return nil
}

// appendDescriptor appends the descriptor of a record, for a header that was
// written before the bytes.
func appendDescriptor(b []byte, crc uint32, size int64, wide bool) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(append(b, signDescriptor...), crc)
	if wide {
		return le.AppendUint64(le.AppendUint64(b, uint64(size)), uint64(size))
	}
	return le.AppendUint32(le.AppendUint32(b, uint32(size)), uint32(size))
}
