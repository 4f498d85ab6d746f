package torchsave

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math"
	"strings"
)

// alignment is the alignment of the bytes of each record, so that tensors can be
// used in a memory mapping.
const alignment = 64

// extraPadding is the extra field that aligns the bytes after it.
const extraPadding = "FB"

// folder is the folder of the records. torch.save uses this name if it does not
// write to a file.
const folder = "archive"

// zipLayout lays out an archive record by record like PyTorch's writer, because
// PyTorch can compute the positions of storages without reading their headers.
type zipLayout struct {
	folder  string // of the records; "" is the default
	parts   []Part
	records []*laid
	at      int64
	// pending are the bytes of the next part. The descriptor of late is filled in
	// when the part is written.
	pending []byte
	late    *laid // the storage with its descriptor at the start of pending
}

// laid is a record with its position. Its checksum may become known later.
type laid struct {
	name   string
	size   int64
	header int64
	crc    uint32
}

// wide reports whether the size or the position of the record needs 64 bits.
func (r *laid) wide() bool { return r.size >= math.MaxUint32 || r.header >= math.MaxUint32 }

// flags returns the record's flags. An empty record has no descriptor.
func (r *laid) flags() uint16 {
	if r.size == 0 {
		return flagUTF8
	}
	return flagUTF8 | flagDescriptor
}

func (r *laid) descriptor(b []byte) []byte {
	if r.size == 0 {
		return b
	}
	return appendDescriptor(b, r.crc, r.size, r.wide())
}

// begin appends the header of a record.
func (z *zipLayout) begin(name string, size int64) *laid {
	r := &laid{name: cmp.Or(z.folder, folder) + "/" + name, size: size, header: z.at}
	z.records = append(z.records, r)
	wide := r.zip64(nil)
	pad := -(z.at + localBytes + int64(len(r.name)+len(wide)+4)) & (alignment - 1)
	le := binary.LittleEndian
	b := append(make([]byte, 0, 256), signLocal...)
	b = le.AppendUint16(le.AppendUint16(b, 0), r.flags())
	b = append(b, make([]byte, 18)...) // method, times, checksum and sizes are zero
	b = le.AppendUint16(b, uint16(len(r.name)))
	b = le.AppendUint16(b, uint16(len(wide)+4+int(pad)))
	b = append(append(b, r.name...), wide...)
	b = le.AppendUint16(append(b, extraPadding...), uint16(pad))
	z.append(append(b, strings.Repeat("Z", int(pad))...))
	return r
}

// zip64 appends the extra field for values that do not fit 32 bits.
func (r *laid) zip64(b []byte) []byte {
	if !r.wide() {
		return b
	}

	le := binary.LittleEndian
	var f []byte
	if r.size >= math.MaxUint32 {
		f = le.AppendUint64(le.AppendUint64(f, uint64(r.size)), uint64(r.size))
	}
	if r.header >= math.MaxUint32 {
		f = le.AppendUint64(f, uint64(r.header))
	}
	b = le.AppendUint16(le.AppendUint16(b, extraZip64), uint16(len(f)))
	return append(b, f...)
}

// append adds bytes to the pending ones.
func (z *zipLayout) append(b []byte) {
	z.pending = append(z.pending, b...)
	z.at += int64(len(b))
}

// flush adds a part with the pending bytes. If they begin with the descriptor of
// a storage, the part is filled in once the storage's checksum is known.
func (z *zipLayout) flush() {
	b, late := z.pending, z.late
	z.pending, z.late = nil, nil
	switch {
	case len(b) == 0:
	case late == nil:
		z.parts = append(z.parts, Part{Length: int64(len(b)), Literal: b})
	default:
		z.parts = append(z.parts, Part{Length: int64(len(b)), Tail: func() ([]byte, error) {
			late.descriptor(b[:0]) // in place
			return b, nil
		}})
	}
}

func (z *zipLayout) known(name string, data []byte) {
	r := z.begin(name, int64(len(data)))
	r.crc = crc32.ChecksumIEEE(data)
	z.append(data)
	z.append(r.descriptor(nil))
}

// storage appends the record of a storage.
func (z *zipLayout) storage(name string, c content) {
	r := z.begin(name, c.bytes)
	z.flush()
	z.at += c.bytes
	if c.slot == nil {
		data := c.tensor.Contents()
		r.crc = crc32.ChecksumIEEE(data)
		if len(data) > 0 {
			z.parts = append(z.parts, Part{Length: c.bytes, Literal: data})
		}
		z.append(r.descriptor(nil))
		return
	}

	z.parts = append(z.parts, Part{Length: c.bytes, Slot: c.slot, Pass: func(p []byte, from int64) {
		if from == 0 {
			r.crc = 0
		}
		r.crc = crc32.Update(r.crc, crc32.IEEETable, p)
	}})

	if c.bytes > 0 {
		z.late = r
	}
	z.append(r.descriptor(nil))
}

// idBytes is the length of the record that identifies the content of an archive.
const idBytes = 40

// finish appends the record that identifies the content, and the directory. Both
// need all checksums.
func (z *zipLayout) finish() {
	id := z.begin(recordID, idBytes)
	z.flush()
	length := int64(len(z.end(id, nil)))
	var b []byte
	z.parts = append(z.parts, Part{Length: length, Tail: func() ([]byte, error) {
		b = z.end(id, b[:0])
		return b, nil
	}})
	z.at += length
}

// end appends the bytes of the last record and everything after it.
func (z *zipLayout) end(id *laid, b []byte) []byte {
	b = z.identify(b)
	id.crc = crc32.ChecksumIEEE(b)
	b = id.descriptor(b)
	at := id.header + z.headerBytes(id) + int64(len(b))
	from := len(b)
	for _, r := range z.records {
		b = r.central(b)
	}
	return z.appendEnd(b, at, int64(len(b)-from))
}

// headerBytes returns the length of a record's header, which ends at a multiple
// of alignment.
func (z *zipLayout) headerBytes(r *laid) int64 {
	n := r.header + localBytes + int64(len(r.name)+len(r.zip64(nil))+4)
	return n + -n&(alignment-1) - r.header
}

// identify appends hashes of the names and of the checksums, which identify the
// content.
func (z *zipLayout) identify(b []byte) []byte {
	names, sums := fnv.New64a(), fnv.New64a()
	var text []byte
	for _, r := range z.records[:len(z.records)-1] {
		text = append(append(text[:0], r.name...), 0)
		names.Write(text)
		text = fmt.Appendf(text[:0], "%08x", r.crc)
		sums.Write(text)
	}
	return fmt.Appendf(b, "%020d%020d", names.Sum64(), sums.Sum64())
}

func (r *laid) central(b []byte) []byte {
	le := binary.LittleEndian
	wide := r.zip64(nil)
	b = append(b, signCentral...)
	b = le.AppendUint16(le.AppendUint32(b, 0), r.flags())
	b = append(b, make([]byte, 6)...) // method and time are zero
	b = le.AppendUint32(b, r.crc)
	b = le.AppendUint32(le.AppendUint32(b, narrow(r.size)), narrow(r.size))
	b = le.AppendUint16(le.AppendUint16(b, uint16(len(r.name))), uint16(len(wide)))
	b = append(b, make([]byte, 10)...) // no comment, no attributes
	b = le.AppendUint32(b, narrow(r.header))
	return append(append(b, r.name...), wide...)
}

// narrow returns n in 32 bits, or all bits set if it does not fit.
func narrow(n int64) uint32 { return uint32(min(n, math.MaxUint32)) }

// appendEnd appends the end records of a directory of size bytes at the offset
// at.
func (z *zipLayout) appendEnd(b []byte, at, size int64) []byte {
	le := binary.LittleEndian
	count := int64(len(z.records))
	b = le.AppendUint64(append(b, signEnd64...), end64Bytes-12)
	b = le.AppendUint32(b, 45<<16|798) // the versions that PyTorch writes
	b = le.AppendUint64(b, 0)
	b = le.AppendUint64(le.AppendUint64(b, uint64(count)), uint64(count))
	b = le.AppendUint64(le.AppendUint64(b, uint64(size)), uint64(at))
	b = le.AppendUint32(append(b, signLocator...), 0)
	b = le.AppendUint32(le.AppendUint64(b, uint64(at+size)), 1)
	b = le.AppendUint32(append(b, signEnd...), 0)
	few := uint16(min(count, math.MaxUint16))
	b = le.AppendUint16(le.AppendUint16(b, few), few)
	b = le.AppendUint32(le.AppendUint32(b, narrow(size)), narrow(at))
	return le.AppendUint16(b, 0)
}
