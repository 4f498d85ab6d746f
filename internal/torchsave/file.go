// Package torchsave reads and writes files of torch.save, which may be a range of a larger
// file. It writes the zip form and also reads the stream that PyTorch wrote before 1.6. It
// does not depend on checkpoints and executes no code: the pickle becomes plain data, and
// tensors become ranges of the file. The contract for reading is at Open, the one for writing
// at Lay.
package torchsave

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/pickle"
)

// ReadFunc fills p with the bytes at off of a file, or of the range of a larger
// file that holds it. There are no partial results. It must be safe for
// concurrent use.
type ReadFunc func(ctx context.Context, p []byte, off int64) error

// File is an open file of torch.save. It is immutable.
type File struct {
	// Root is the saved value, in the types of package value. Its tensors are *Tensor. Tensors
	// of an unsupported class, such as sparse and quantised ones, are a *value.Object, with
	// arguments that may contain a *Storage.
	Root any
	// Legacy is set for a stream as PyTorch wrote it before 1.6. Such a file has
	// no checksums.
	Legacy bool
	// PickleOffset and PickleEnd are the range of Root's pickle.
	PickleOffset, PickleEnd int64
	// Unsummed is the number of bytes of the pickle and the storages without a
	// checksum: zero for the zip form, all of them for the stream.
	Unsummed int64
	// Folder is the folder of the records in the zip form. PyTorch gives it the name that
	// the file had when it was saved, without the extension, or "archive" if the file had
	// no name.
	Folder string
	// records are the records of the zip form, unless quick is set.
	records []zipEntry
	// quick is set if OpenAlike has not read the headers of records. like is the file that the
	// file shares Root with, and operands are its own operands.
	quick    *quickDirectory
	like     *File
	operands *operands
}

// Open reads the description of a file of the given size: the directory, the
// records' headers and the pickle of the zip form, or everything but the storages
// of the stream. It does not read the tensors. A small file takes one read. A
// larger file takes two, one for each storage, and more if pickle or directory
// are large.
//
// Open returns an error that wraps ErrMalformed if the bytes are not a valid
// file. The error also wraps ErrForeign if they do not begin like a file of
// torch.save, or are another kind of archive.
func Open(ctx context.Context, read ReadFunc, size int64) (*File, error) {
	s, err := newSource(ctx, read, size)
	if err != nil {
		return nil, err
	}

	switch {
	case bytes.HasPrefix(s.head, []byte(signLocal)):
		f, err := openZip(ctx, s)
		if errors.Is(err, ErrMalformed) {
			if kind := otherArchive(ctx, s); kind != "" {
				return nil, foreign(kind)
			}
			if !looksSaved(s.head) {
				return nil, foreign("a zip archive of another program")
			}
		}

		return f, err
	case bytes.HasPrefix(s.head, []byte(signEnd)):
		return nil, foreign("an empty zip archive")
	case isLegacy(s.head):
		return openLegacy(ctx, s)
	case len(s.head) > 262 && string(s.head[257:262]) == "ustar":
		return nil, ErrTar
	case size == 0:
		return nil, fmt.Errorf("%w: it is empty", errTruncated)
	case s.head[0] == 0x80:
		return nil, fmt.Errorf("%w: a pickle that torch.save did not write", ErrForeign)
	}

	return nil, fmt.Errorf("%w: neither a zip archive nor a stream of PyTorch", ErrForeign)
}

// looksSaved reports whether an archive begins like one of torch.save: with the
// pickle, or a record that identifies the kind of archive.
func looksSaved(head []byte) bool {
	if len(head) < localBytes {
		return true // too short to decide
	}

	n := int(binary.LittleEndian.Uint16(head[26:]))
	name := string(head[localBytes:min(len(head), localBytes+n)])
	_, rest, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		return false
	case strings.HasPrefix(rest, recordStorages):
		return true
	}

	return slices.Contains([]string{recordPickle, recordByteOrder, recordVersion, recordVersion15, recordFormat, recordAlignment, recordID}, rest)
}

// otherArchive returns the kind of a zip archive that torch.save does not write,
// judging by the names of its records, or "" if the kind is unknown.
func otherArchive(ctx context.Context, s *source) string {
	d, err := findDirectory(ctx, s)
	if err != nil {
		return ""
	}

	b, err := s.bytes(ctx, d.offset, d.size)
	if err != nil {
		return ""
	}

	arrays := len(b) > 0
	for len(b) >= centralBytes && bytes.HasPrefix(b, []byte(signCentral)) {
		le := binary.LittleEndian
		n := int(le.Uint16(b[28:]))
		total := centralBytes + n + int(le.Uint16(b[30:])) + int(le.Uint16(b[32:]))
		if total > len(b) {
			return ""
		}

		name := string(b[centralBytes:][:n])
		_, rest, _ := strings.Cut(name, "/")
		switch {
		case rest == "constants.pkl":
			return "a TorchScript archive"
		case rest == "archive_format", name == "archive_format", name == "serialized_exported_program.json":
			return "an exported program of torch.export"
		}

		arrays = arrays && strings.HasSuffix(name, ".npy")
		b = b[total:]
	}

	if arrays && len(b) == 0 {
		return "a NumPy archive (.npz)"
	}
	return ""
}

func openZip(ctx context.Context, s *source) (*File, error) {
	a, err := openArchive(ctx, s)
	if err != nil {
		return nil, err
	}

	r := a.byName[recordPickle]
	if r == nil {
		return nil, fmt.Errorf("%w: no record %q", ErrMalformed, recordPickle)
	}

	data, err := a.content(ctx, r, maxPickle)
	if err != nil {
		return nil, err
	}

	root, err := decode(ctx, data, a.storage)
	if err != nil {
		return nil, err
	}
	return &File{Root: root, PickleOffset: r.data, PickleEnd: r.end(), records: a.records, Folder: a.folder}, nil
}

// decode decodes the value of a file.
func decode(ctx context.Context, data []byte, storage func(id any) (any, error)) (any, error) {
	v, err := pickle.Decode(data, decodeOptions(ctx, storage))
	if err != nil {
		return nil, malformed(ctx, err)
	}
	return v, nil
}

// decodeVarying is decode with pickle.DecodeVarying.
func decodeVarying(ctx context.Context, data []byte, vary []pickle.Operand, storage func(id any) (any, error)) (any, []int, error) {
	return pickle.DecodeVarying(data, vary, decodeOptions(ctx, storage))
}

func decodeOptions(ctx context.Context, storage func(id any) (any, error)) *pickle.DecodeOptions {
	return &pickle.DecodeOptions{Persistent: storage, Construct: constructs(), Limits: &pickle.Limits{Context: ctx}}
}

// malformed turns an error of package pickle into one of this package. It leaves
// errors of the context unchanged.
func malformed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("%w: %w", ErrMalformed, err)
}

// ErrMalformed reports bytes that are not a valid file of torch.save. All errors
// about the bytes of a file wrap it; the errors below name the violated rule.
// Errors of reading do not wrap it.
var ErrMalformed = errors.New("malformed torch.save file")

// ErrForeign reports a file that torch.save did not write, such as a zip archive of
// another program. It wraps ErrMalformed.
var ErrForeign error = foreign("not a file of torch.save")

// foreign is an ErrForeign that describes the file.
type foreign string

func (f foreign) Error() string { return string(f) }
func (foreign) Unwrap() error   { return ErrMalformed }

func (foreign) Is(target error) bool { return target == ErrForeign }

// The violations of the format that callers tell apart.
var (
	// ErrByteOrder reports tensors that are not little-endian.
	ErrByteOrder = fmt.Errorf("%w: unsupported byte order", ErrMalformed)
	// ErrVersion reports a version of the format that this package cannot read.
	ErrVersion = fmt.Errorf("%w: unsupported version", ErrMalformed)
	// ErrTar reports the tar form of PyTorch before 0.1.11, which is not
	// supported.
	ErrTar = fmt.Errorf("%w: tar archive of PyTorch before 0.1.11", ErrMalformed)
)

// The other violations.
var (
	errTruncated     = fmt.Errorf("%w: cut short", ErrMalformed)
	errCompressed    = fmt.Errorf("%w: compressed record", ErrMalformed)
	errEncrypted     = fmt.Errorf("%w: encrypted record", ErrMalformed)
	errBounds        = fmt.Errorf("%w: outside of the file", ErrMalformed)
	errOverlap       = fmt.Errorf("%w: overlapping records", ErrMalformed)
	errDuplicate     = fmt.Errorf("%w: duplicate record", ErrMalformed)
	errName          = fmt.Errorf("%w: unsafe record name", ErrMalformed) // it leads out of the archive
	errContradiction = fmt.Errorf("%w: directory and record contradict each other", ErrMalformed)
	errLimit         = fmt.Errorf("%w: limit exceeded", ErrMalformed)
	errStorage       = fmt.Errorf("%w: bad storage", ErrMalformed)
	errView          = fmt.Errorf("%w: bad tensor", ErrMalformed) // it is not inside its storage
	errChecksum      = fmt.Errorf("%w: checksum does not match", ErrMalformed)
)

// ErrValue reports a value that cannot be written.
var ErrValue = errors.New("value cannot be written by torch.save")

// Check reads all records and compares their checksums with the checksums in the directory.
// It calls problem for each mismatch, with the key of the storage, or "" if the record is not
// a storage. It returns an error if reading fails. read must read the same bytes as in Open.
// A stream of PyTorch before 1.6 has no checksums, so Check does not read it.
func (f *File) Check(ctx context.Context, read ReadFunc, problem func(key string, err error)) error {
	records := f.records
	if f.quick != nil {
		var err error
		if records, err = f.checkQuick(ctx, read); errors.Is(err, ErrMalformed) {
			problem("", err)
			return nil
		} else if err != nil {
			return err
		}
	}
	for i := range records {
		r := &records[i]
		err := r.sum().check(ctx, read, 0, nil)
		if errors.Is(err, errChecksum) {
			problem(f.keyOf(r), err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// keyOf returns the key of the storage in a record, or "".
func (f *File) keyOf(r *zipEntry) string {
	key, _ := strings.CutPrefix(r.name, f.Folder+"/"+recordStorages)
	if key == r.name {
		return ""
	}
	return key
}

// A small file is read at once. Of a larger one the two ends are read first,
// because they hold the directory and the pickle.
const (
	smallFile = 16 << 10
	endBytes  = 2 << 10
)

// source reads parts of a file and caches its ends.
type source struct {
	read       ReadFunc
	size       int64
	head, tail []byte
}

func newSource(ctx context.Context, read ReadFunc, size int64) (*source, error) {
	s := &source{read: read, size: size}
	if size < 0 {
		return nil, fmt.Errorf("%w: a size of %d", errBounds, size)
	}

	head, tail := size, int64(0)
	if size > smallFile {
		head, tail = endBytes, endBytes
	}

	var err error
	if s.head, err = s.fetch(ctx, 0, head); err != nil {
		return nil, err
	}

	s.tail, err = s.fetch(ctx, size-tail, tail)
	return s, err
}

// bytes returns n bytes at off. They must not be changed.
func (s *source) bytes(ctx context.Context, off, n int64) ([]byte, error) {
	if off < 0 || n < 0 || off > s.size || n > s.size-off {
		return nil, fmt.Errorf("%w: %d bytes at %d of %d", errBounds, n, off, s.size)
	}
	if off+n <= int64(len(s.head)) {
		return s.head[off : off+n], nil
	}

	if from := s.size - int64(len(s.tail)); off >= from {
		return s.tail[off-from : off-from+n], nil
	}
	return s.fetch(ctx, off, n)
}

func (s *source) fetch(ctx context.Context, off, n int64) ([]byte, error) {
	p := make([]byte, n)
	if n == 0 {
		return p, nil
	}
	return p, s.read(ctx, p, off)
}
