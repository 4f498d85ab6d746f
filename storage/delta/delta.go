// Package delta stores files as their difference to files of earlier saves. The bytes of
// a file are divided into segments, and a table says for each segment where its bytes are:
// in the delta file itself, or in a file of another folder beside this one. Reader gives
// the bytes back as if the file were stored whole, so that other packages need not handle
// references. The package does not depend on any format of checkpoints.
// docs/format/native.md describes the delta file byte by byte.
package delta

import (
	"errors"
	"fmt"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/segment"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/storage"
)

const (
	// SegmentBytes is the size of a segment that a writer makes. The last segment of a tensor
	// is shorter.
	SegmentBytes = 256 << 10
	// MaxBodies bounds the places at which the bytes of one segment are, unless an encoder is
	// told another bound.
	MaxBodies = 8
	// LongBodies is the largest bound of an encoder. A table with more bodies is refused.
	LongBodies = 64
	// MaxTable bounds the size of a table.
	MaxTable = 1 << 30

	magic = "CAIRNDLT"
	// Versions 1 and 2 were in no release.
	version = 3
	// tailBytes is the size of the end of a delta file: length and checksum of the
	// table, version, magic.
	tailBytes = 8 + 4 + 4 + 8
)

// ErrTable reports a delta file with a damaged table.
var ErrTable = errors.New("the table of a delta file is damaged")

// Hash identifies the bytes of a segment among the states of that segment: XXH3, 128 bits. It
// protects from nobody who wants two states to have the same hash. Such a hash would take
// most of the time of a save.
type Hash [16]byte

// HashOf returns the hash of p.
func HashOf(p []byte) Hash { return xxh3.Hash128(p).Bytes() }

// Kind says how a body holds bytes.
type Kind uint8

const (
	// Whole: the bytes of the segment themselves.
	Whole Kind = iota
	// Diff: the difference to the bytes that the bodies before it give; see segment.Patch.
	Diff
)

// Body is a range of a file that holds a segment, or one of several parts that make it up.
type Body struct {
	// File is 0 for the delta file itself, and otherwise 1 + the position in Table.Files.
	File int
	Off  int64
	Len  int
	Kind Kind
}

// Segment is a range of the file that a delta file stores. Segments follow each other
// without gaps.
type Segment struct {
	Len int
	// Width is the size of an element in bytes.
	Width int
	Hash  Hash
	// Bodies are the places of its bytes. The first is Whole, the others are Diff.
	Bodies []Body
	// Step, if not nil, is another way to the first body.
	Step *Step
}

// Step is the difference between an earlier state of a segment and its first body. A reader
// that has the earlier state in its cache does not read the whole body.
type Step struct {
	// From is the last body of the earlier state. Its File is the position in Table.Past, its
	// Len is 0.
	From Body
	// Diff is the difference. It is in the file of the first body.
	Diff Body
}

// File is another file that a table refers to. If its Folder is empty, it is in the folder of
// the delta file.
type File = storage.Reference

// Table says where the bytes of a file are.
type Table struct {
	// Size and CRC32C describe the file that is stored.
	Size     int64
	CRC32C   uint32
	Files    []File
	Segments []Segment
	// Past are the files of earlier states that steps begin at. They need not exist, and their
	// sizes are 0.
	Past []File
}

// Append appends the table and the end of a delta file to b.
func (t *Table) Append(b []byte) []byte {
	w := wire.Writer{B: b}
	w.Uvarint(uint64(t.Size))
	w.U32(t.CRC32C)
	w.Uvarint(uint64(len(t.Files)))
	for _, f := range t.Files {
		w.String(f.Folder)
		w.String(f.Name)
		w.Uvarint(uint64(f.Size))
	}
	w.Uvarint(uint64(len(t.Past)))
	for _, f := range t.Past {
		w.String(f.Folder)
		w.String(f.Name)
	}
	w.Uvarint(uint64(len(t.Segments)))
	past := make([]int64, len(t.Past))    // offset of the last state in each file
	ends := make([]int64, 1+len(t.Files)) // of the last body in each file
	for i := range t.Segments {
		s := &t.Segments[i]
		w.Uvarint(uint64(s.Len))
		w.B = append(w.B, byte(s.Width), byte(len(s.Bodies)))
		w.B = append(w.B, s.Hash[:]...)
		for _, o := range s.Bodies {
			w.B = append(w.B, byte(o.Kind))
			w.Uvarint(uint64(o.File))
			w.Varint(o.Off - ends[o.File])
			if o.Kind != Whole {
				w.Uvarint(uint64(o.Len))
			}
			ends[o.File] = o.Off + int64(o.Len)
		}
		appendStep(&w, s, ends, past)
	}
	n := len(w.B) - len(b)
	sum := crc32c.Checksum(w.B[len(b):])
	w.U64(uint64(n))
	w.U32(sum)
	w.U32(version)
	w.B = append(w.B, magic...)
	return w.B
}

// appendStep appends the step of a segment. ends and past have the ends of the last bodies and
// the offsets of the last states in each file.
func appendStep(w *wire.Writer, s *Segment, ends, past []int64) {
	if s.Step == nil {
		w.B = append(w.B, 0)
		return
	}
	from, diff, file := &s.Step.From, &s.Step.Diff, s.Bodies[0].File
	w.B = append(w.B, 1, byte(from.Kind))
	w.Uvarint(uint64(from.File))
	w.Varint(from.Off - past[from.File])
	past[from.File] = from.Off
	w.Varint(diff.Off - ends[file])
	w.Uvarint(uint64(diff.Len))
	ends[file] = diff.Off + int64(diff.Len)
}

// bodyBytes and segmentBytes are the least sizes of a body and of a segment in a table.
const (
	bodyBytes    = 3
	segmentBytes = 3 + len(Hash{}) + bodyBytes + 1
)

// decode decodes a table. body is the number of bytes before the table in the delta file.
func decode(b []byte, body int64) (*Table, error) {
	r := wire.NewReader(b)
	t := &Table{Size: r.Size(), CRC32C: r.U32()}
	n := r.Count(3)
	for range n {
		f := File{Folder: r.String(), Name: r.String(), Size: r.Size()}
		if err := checkFile(&f); err != nil {
			r.Fail("%w", err)
		}
		t.Files = append(t.Files, f)
	}
	for range r.Count(2) {
		f := File{Folder: r.String(), Name: r.String()}
		if err := checkFile(&f); err != nil {
			r.Fail("%w", err)
		}
		t.Past = append(t.Past, f)
	}
	past := make([]int64, len(t.Past))
	count := r.Count(segmentBytes)
	t.Segments = make([]Segment, 0, count)
	bodies := make([]Body, 0, count)
	ends := make([]int64, 1+n)
	sizes := make([]int64, 1+n)
	sizes[0] = body
	for i, f := range t.Files {
		sizes[i+1] = f.Size
	}
	left := t.Size
	for range count {
		s := Segment{Len: r.CountMax(segment.MaxLen), Width: int(r.Byte())}
		n := int(r.Byte())
		copy(s.Hash[:], r.Raw(len(s.Hash)))
		left -= int64(s.Len)
		if s.Len == 0 || n == 0 || n > LongBodies || left < 0 || !validWidth(s.Width) {
			r.Fail("a segment of %d bytes with elements of %d and %d bodies", s.Len, s.Width, n)
		}
		first := len(bodies)
		for k := range n {
			o := Body{Kind: Kind(r.Byte()), File: r.CountMax(len(t.Files))}
			off := r.Varint()
			if r.Err() != nil {
				return nil, fmt.Errorf("%w: %w", ErrTable, r.Err())
			}
			if o.Kind > Diff || (o.Kind == Diff) != (k > 0) {
				r.Fail("a body of kind %d in file %d", o.Kind, o.File)
				break
			}
			o.Len = s.Len
			if o.Kind != Whole {
				o.Len = r.CountMax(s.Len)
			}
			o.Off = ends[o.File] + off
			if o.Off < 0 || o.Len > s.Len || o.Off > sizes[o.File]-int64(o.Len) {
				r.Fail("a body at %d+%d of a file of %d bytes", o.Off, o.Len, sizes[o.File])
				break
			}
			ends[o.File] = o.Off + int64(o.Len)
			bodies = append(bodies, o)
		}
		s.Bodies = bodies[first:len(bodies):len(bodies)]
		if r.Err() == nil {
			decodeStep(r, &s, ends, past, sizes)
		}
		t.Segments = append(t.Segments, s)
	}
	if r.Err() == nil && left != 0 {
		r.Fail("the segments have %d bytes fewer than the file", left)
	}
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTable, err)
	}
	return t, nil
}

// decodeStep decodes the step of a segment.
func decodeStep(r *wire.Reader, s *Segment, ends, past, sizes []int64) {
	switch r.Byte() {
	case 0:
		return
	case 1:
	default:
		r.Fail("a segment with several steps")
		return
	}
	kind, n := Kind(r.Byte()), r.CountMax(len(past))
	if kind > Diff || n == len(past) {
		r.Fail("a step from a body of kind %d in file %d", kind, n)
		return
	}
	file := s.Bodies[0].File
	from := Body{File: n, Kind: kind, Off: past[n] + r.Varint()}
	diff := Body{File: file, Kind: Diff, Off: ends[file] + r.Varint()}
	diff.Len = r.CountMax(s.Len)
	if from.Off < 0 || diff.Off < 0 || diff.Off > sizes[file]-int64(diff.Len) {
		r.Fail("a step from %d by a body at %d+%d of a file of %d bytes", from.Off, diff.Off, diff.Len, sizes[file])
		return
	}
	past[n] = from.Off
	ends[file] = diff.Off + int64(diff.Len)
	s.Step = &Step{From: from, Diff: diff}
}

// checkFile returns an error if the names are not plain.
func checkFile(f *File) error {
	if err := blob.CheckName(f.Name); err != nil {
		return err
	}
	if f.Folder == "" {
		return nil
	}
	return CheckFolder(f.Folder)
}

// CheckFolder returns an error that wraps blob.ErrName unless name is the name of a folder
// directly in another one.
func CheckFolder(name string) error {
	if strings.Contains(name, "/") {
		return fmt.Errorf("%w: the folder %q is not beside this one", blob.ErrName, name)
	}
	return blob.CheckName(name)
}

// validWidth reports whether elements may have that many bytes.
func validWidth(n int) bool { return n == 1 || n == 2 || n == 4 || n == 8 || n == 16 }
